// Package job says what a job is: the programs, how many ranks of each, where
// their output goes, what ends them. A Job comes from gorun's flags, from a
// TOML file, or from both; package launcher runs it.
package job

import (
	"time"

	"github.com/weft-hpc/weft/internal/params"
)

// Job is a job as understood, with every default filled in.
type Job struct {
	Name    string        // for messages and file names; the first program's base name by default
	Apps    []App         // at least one; ranks are numbered through them in order
	Env     []EnvVar      // for every rank, after the launcher's own environment
	Timeout time.Duration // the whole job; 0: none
	Grace   time.Duration // between SIGTERM and SIGKILL when a job is ended

	Stdin     Stdin
	TagOutput bool   // prefix each line with [rank] (and the stream)
	OutputDir string // per-rank files DIR/<rank>.out and DIR/<rank>.err instead of the terminal; empty: none

	Bind       Bind
	GOMAXPROCS int  // per rank; 0: the cores of the rank's binding or share, never below 2
	StrictSlot bool // more ranks than slots is an error instead of a line of warning
	Slots      int  // of this machine; 0: the cores this process may use

	Launcher string // "auto" or "local", which are the same on one machine

	Params  *params.Set
	Verbose bool

	// Source says, for a field or parameter by its TOML key ("job.timeout"),
	// where its value came from; absent: the default.
	Source map[string]params.Source
}

// App is one program of a job.
type App struct {
	Program string   // a Go package directory or .go file (built first), else an executable by path or from PATH
	Args    []string // without the program's name
	NP      int      // ranks; at least 1
	Wdir    string   // working directory; empty: the launcher's
	Env     []EnvVar // for this app's ranks, after Job.Env
}

// EnvVar is a variable for the ranks.
type EnvVar struct{ Name, Value string }

// NP is the number of ranks of the whole job.
func (j *Job) NP() int {
	n := 0
	for _, a := range j.Apps {
		n += a.NP
	}
	return n
}

// Stdin says which ranks read the launcher's standard input.
type Stdin string

// The choices of Stdin.
const (
	StdinRank0 Stdin = "rank0"
	StdinAll   Stdin = "all"
	StdinNone  Stdin = "none"
)

// Bind says to what a rank's threads are bound.
type Bind string

// The choices of Bind.
const (
	BindNone Bind = "none"
	BindCore Bind = "core"
	BindNUMA Bind = "numa"
)
