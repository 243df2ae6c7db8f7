// Package job says what a job is: the programs, how many ranks of each, where
// their output goes, what ends them. A Job comes from gorun's flags, from a
// TOML file, or from both; package launcher runs it.
package job

import (
	"strconv"
	"time"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// Job is a job as understood, with every default filled in.
type Job struct {
	Name    string        // for messages and file names; the first program's base name by default
	Apps    []App         // at least one; ranks are numbered through them in order
	NPGiven bool          // the user has said how many ranks the first app has; else its NP is 1
	Env     []EnvVar      // for every rank, after the launcher's own environment
	Timeout time.Duration // the whole job; 0: none
	Grace   time.Duration // between SIGTERM and SIGKILL when a job is ended

	OnFailure   OnFailure
	MaxRestarts int // of OnFailure's FailRestart

	Stdin     Stdin
	TagOutput bool   // prefix each line with [rank] (and the stream)
	OutputDir string // per-rank files DIR/<rank>.out and DIR/<rank>.err instead of the terminal; empty: none
	StacksDir string // for files DIR/<rank>.stacks with the stacks of goroutines, whenever the ranks are asked what they do; empty: none
	Report    string // file for the report of the job; empty: none

	// Hosts are those that the user names, each machine once, with the slots that
	// are said of them, Slots included. None: the user names none. All names of
	// this machine are one host; if that is the only one, the job is of this
	// machine alone.
	Hosts    []hosts.Host
	Hostfile string // that Hosts come from, at least in part; empty: none

	MapBy      string // what place.ParseMapBy accepts
	RankBy     string // "slot" or "node"
	Rankfile   string // for place.ReadRankfile, instead of MapBy, RankBy and Bind; empty: none
	Bind       Bind
	GOMAXPROCS int  // per rank; 0: the cores of the rank's binding or share, never below 2
	StrictSlot bool // more ranks than slots is an error instead of a line of warning
	Slots      int  // of a host of which nothing else is said; 0: its cores. Where Hosts is this machine alone, its slots

	Launcher       Launcher
	Radix          int           // agents that an agent connects with; at least 1
	AtOnce         int           // connections that one of them makes at the same time; at least 1
	ConnectTimeout time.Duration // for an agent to answer
	Heartbeat      time.Duration // of silence after which an agent is lost
	SSH            string        // command of LaunchSSH, for Words, which gives at least one
	SlurmArgs      []string      // more arguments of srun
	AgentPath      string        // of gorun on the hosts; empty: it is found there, or copied
	Stage          bool          // copy programs to the hosts that do not have them
	StageFiles     []string      // more files to copy
	Ports          Ports         // that ranks listen on; none: any
	Listen         string        // HOST:PORT that agents connect to; empty: none do
	SecretFile     string        // what both sides of Listen know; not empty where Listen is not
	Agents         int           // that connect to Listen; 0: not said

	Params  *params.Set
	Verbose bool

	// Warnings are sentences for the user about settings that the user probably did not
	// intend.
	Warnings []string

	// Source says, for a field or parameter by its TOML key ("job.timeout"),
	// where its value came from; absent: the default. "app" is of the programs,
	// "host" of Hosts.
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

// OnFailure says what becomes of a job of which a rank fails.
type OnFailure string

// The choices of OnFailure.
const (
	FailAbort   OnFailure = "abort"   // the others are ended
	FailNotify  OnFailure = "notify"  // the others are told, and go on
	FailRestart OnFailure = "restart" // the others are ended, and the job begins anew
)

// Launcher says how agents are started on hosts.
type Launcher string

// The choices of Launcher.
const (
	LaunchAuto  Launcher = "auto"  // as the hosts and the surroundings are
	LaunchLocal Launcher = "local" // none are: ranks of this machine need no agent
	LaunchSSH   Launcher = "ssh"
	LaunchSlurm Launcher = "slurm" // by srun
	LaunchDial  Launcher = "dial"  // they are started otherwise and connect to Job.Listen
)

// Ports are tcp ports from Low to High; the zero Ports are none.
type Ports struct{ Low, High int }

// String is LOW-HIGH, or empty.
func (p Ports) String() string {
	if p == (Ports{}) {
		return ""
	}
	return strconv.Itoa(p.Low) + "-" + strconv.Itoa(p.High)
}
