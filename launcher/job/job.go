// Package job describes jobs: their programs and numbers of ranks, the hosts, the output, and what
// happens when a rank fails. [Parse] makes a [Job] from gorun's flags, a TOML file and the
// environment. Package launcher runs it.
package job

import (
	"strconv"
	"time"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
)

// Job describes a job. Parse fills in every default.
type Job struct {
	Name string // name of the job in the report; default: the base name of the first program
	Apps []App  // the programs, at least one; their ranks are numbered in this order
	// NPGiven says that the user has given the number of ranks of the first app. If it is false, NP
	// of that app is 1, the default.
	NPGiven bool
	Env     []EnvVar      // variables for every rank, which override those in the launcher's own environment
	Timeout time.Duration // how long the whole job may run, restarts included; 0: without limit
	Grace   time.Duration // time between SIGTERM and SIGKILL when the launcher ends the job

	OnFailure   OnFailure
	MaxRestarts int // largest number of restarts, if OnFailure is FailRestart

	Stdin Stdin
	// TagOutput makes each line of stdout begin with the rank, such as [3], and each line of stderr
	// with [3]<stderr>. If the job uses another host, that is [3@HOST] and [3@HOST]<stderr>.
	TagOutput bool
	// OutputDir is the directory for the ranks' output, in files RANK.out and RANK.err. If it is
	// empty, output goes to Stdio. With Tee it goes to both. RANK has leading zeros, so that all names
	// have the same length.
	OutputDir string
	Tee       bool
	// StacksDir is the directory for the stacks of the ranks' goroutines, in files RANK.stacks. The
	// launcher writes them when it reports what the ranks do. If StacksDir is empty, the launcher
	// writes no stacks, except at SIGQUIT to a temporary directory.
	StacksDir string
	Report    string // file for the report; empty: none
	// Stats makes the launcher print statistics of calls and messages at the end of the job. StatsDir
	// is a directory for the files stats.json, matrix.svg and matrix.png with them; empty: no files.
	Stats    bool
	StatsDir string

	// Progress makes the launcher show a line on the terminal while the ranks run: what they do.
	Progress bool
	// Metrics is the address, HOST:PORT, of a server that gives the state of the job as metrics; empty:
	// there is none. An empty host is the loopback interface.
	Metrics string
	// Profile lists the kinds of profiles that the launcher collects from all ranks, each once, such as
	// cpu and heap; empty: none. ProfileDir is the directory for the merged profiles, in files
	// weft-JOB.KIND.pprof, where JOB is the job's id.
	Profile    []string
	ProfileDir string
	// Trace is the file for a trace of the calls and messages of all ranks; empty: none.
	Trace       string
	TraceFormat TraceFormat

	// UI is the address, HOST:PORT, of a server with a live page of the job; empty: there is none. An
	// empty host is the loopback interface.
	UI string

	// Hosts are the hosts that the user names, each once, with their slots; Parse has already
	// applied Slots to them. It is empty if the user names none. All names of this machine are one
	// host. If that is the only host, all ranks usually run on this machine without agents.
	Hosts []Host
	// Hostfile is the file with the list of hosts from which Hosts or properties of them come;
	// empty: there is none.
	Hostfile string

	MapBy    string // rule that places ranks: slot, node, core, numa or ppr:N:node|core|numa
	RankBy   string // order in which ranks are numbered: "slot" or "node"
	Rankfile string // file with the place of each rank, instead of MapBy, RankBy and Bind; empty: none
	// Wrap is the command that is started in place of the programs of some ranks, in the form of
	// ParseWrapper; empty: none.
	Wrap string
	Bind Bind
	// GOMAXPROCS is the value for each rank. If it is 0, a rank gets the value of the environment.
	// If the environment has none, the value is the number of hardware threads that the rank is
	// bound to. A rank that is not bound gets its share of the host's hardware threads. In both
	// cases the value is at least 2.
	GOMAXPROCS int
	StrictSlot bool // make more ranks than slots an error instead of a warning
	// Slots is the number of slots of each host for which nothing else gives them; 0: they follow
	// from the host's cores. If this machine is the only one of Hosts, Slots are its slots.
	Slots int

	Launcher Launcher
	// Radix is the largest number of agents with which the launcher connects, and with which each
	// agent connects further down the tree; at least 1.
	Radix int
	// AtOnce is the largest number of connections that the launcher or an agent opens at the same
	// time; at least 1.
	AtOnce         int
	ConnectTimeout time.Duration // time limit for an agent to answer
	// Heartbeat is the time after which a host counts as lost if nothing has arrived on the
	// connection with its agent.
	Heartbeat time.Duration
	SSH       string   // ssh command with arguments, which [Words] splits; for LaunchSSH
	SlurmArgs []string // more arguments of srun and salloc; for LaunchSlurm
	// AgentPath is the path of the agents' executable on the hosts. If it is empty, the launcher
	// searches for the executable there, or copies itself.
	AgentPath  string
	Stage      bool     // copy programs to hosts that do not have them
	StageFiles []string // more files to copy to the hosts
	Ports      Ports    // TCP ports that ranks may listen on; zero: any
	Listen     string   // HOST:PORT on which the launcher waits for agents, for LaunchDial; empty: none
	// SecretFile is the file with the secret that agents must know. Parse requires it if Listen is
	// set.
	SecretFile string
	Agents     int // number of agents to wait for, for LaunchDial; 0: one for each host of Hosts

	// Params are the parameters of the library, in params.Table, for the ranks; nil: all have their
	// defaults.
	Params  *params.Set
	Verbose bool // report each step of the launcher and of the ranks on stderr

	// Warnings are sentences for the user about settings that the user probably did not
	// intend.
	Warnings []string

	// Source says where each value came from, by its key in a job file, such as "job.timeout". The
	// key "app" stands for Apps, and "host" for Hosts. A key is absent if its value is the default.
	Source map[string]params.Source

	user *jobFile // the user's file; nil: there is none
}

// App is one program of a job.
type App struct {
	// Program is a Go package (a directory, a .go file or an import path), or an executable (a
	// path, or a name in PATH).
	Program string
	Args    []string // without the name of the program
	NP      int      // number of ranks, at least 1
	Wdir    string   // working directory of the ranks; empty: that of the launcher
	Env     []EnvVar // variables for the ranks of this app, which override Job.Env
}

// Host is a host of a job.
type Host = hosts.Host

// EnvVar is an environment variable for ranks.
type EnvVar struct{ Name, Value string }

// Dials reports whether gorun waits for agents that others start, at Job.Listen.
func (j *Job) Dials() bool {
	return j.Launcher == LaunchDial || j.Listen != "" && (j.Launcher == LaunchAuto || j.Launcher == "")
}

// NP returns the number of ranks of the whole job.
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

// Bind says which cores a rank is bound to.
type Bind string

// The choices of Bind.
const (
	BindNone Bind = "none"
	BindCore Bind = "core"
	BindNUMA Bind = "numa"
)

// OnFailure says what happens to a job if a rank fails.
type OnFailure string

// The choices of OnFailure.
const (
	FailAbort   OnFailure = "abort"   // the launcher ends the other ranks
	FailNotify  OnFailure = "notify"  // the other ranks get a notification and continue
	FailRestart OnFailure = "restart" // the launcher ends the other ranks and starts the job again
)

// TraceFormat is the format of a trace.
type TraceFormat string

// The choices of TraceFormat.
const (
	TraceAuto     TraceFormat = "auto"     // TraceChrome if the file's name ends in .json, and otherwise TracePerfetto
	TracePerfetto TraceFormat = "perfetto" // protocol buffers, for ui.perfetto.dev
	TraceChrome   TraceFormat = "chrome"   // JSON, for chrome://tracing and others
)

// Launcher says how agents are started on other hosts.
type Launcher string

// The choices of Launcher.
const (
	LaunchAuto  Launcher = "auto"  // the launcher chooses one of the others by Listen, the hosts and the environment
	LaunchLocal Launcher = "local" // no agents: all ranks run on this machine
	LaunchSSH   Launcher = "ssh"   // the launcher starts agents by ssh, and agents start further agents by ssh
	LaunchSlurm Launcher = "slurm" // srun starts the agents, and they connect with the launcher
	LaunchDial  Launcher = "dial"  // the user or another system starts the agents, and they connect with Job.Listen
)

// Ports are the TCP ports from Low to High. The zero value means any port.
type Ports struct{ Low, High int }

// String returns LOW-HIGH, or "" for any port.
func (p Ports) String() string {
	if p == (Ports{}) {
		return ""
	}
	return strconv.Itoa(p.Low) + "-" + strconv.Itoa(p.High)
}
