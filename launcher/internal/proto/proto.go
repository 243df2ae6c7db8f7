// Package proto defines the messages between gorun and its agents, and their encoding on a
// stream.
//
// An agent is a process of gorun on another host, which runs the ranks of that host. The agents
// form a tree with gorun at its root. Each agent exchanges messages only with its parent and its
// children. Hosts are numbered by an index. The hosts of a subtree have consecutive indexes. The
// first of them is the head of the subtree: the host of the agent that is nearest to gorun.
//
//	             gorun                   agents
//	Launch         │ ────────────────────► │  the hosts of the agent's subtree
//	Up             │ ◄──────────────────── │  which of these hosts answer, and their cores and addresses
//	Prepare        │ ────────────────────► │  which ranks of which programs run on each host
//	Prepared       │ ◄──────────────────── │  ports are bound and programs exist; which files are missing
//	FilePart …     │ ────────────────────► │  missing files, at most FileWindow bytes ahead of FileCredit
//	FileCredit     │ ◄──────────────────── │
//	Staged         │ ◄──────────────────── │  the files are written
//	Start          │ ────────────────────► │  start the ranks
//	Started        │ ◄──────────────────── │  pids of the ranks
//	               │                       │
//	Fence          │ ◄──────────────────── │  all ranks of the subtree are in a PMI fence; what they put
//	Release        │ ────────────────────► │  all ranks of the job are in the fence; what they put
//	Watch          │ ────────────────────► │  send State from now on
//	State          │ ◄──────────────────── │  which ranks may wait for ever
//	Inspect        │ ────────────────────► │  what do the ranks do?
//	Stacks         │ ◄──────────────────── │  stacks of a rank, if Inspect asks for them
//	Inspected      │ ◄──────────────────── │  what the ranks of a host do
//	Request        │ ◄──────────────────── │  a PMI-1 request that only gorun can answer
//	Reply          │ ────────────────────► │
//	Output         │ ◄──────────────────── │  at most Window bytes ahead of Credit
//	Credit         │ ────────────────────► │
//	OutputClosed   │ ────────────────────► │  the reader of gorun's output has closed it
//	Stdin          │ ────────────────────► │  at most Window bytes ahead of StdinCredit
//	StdinCredit    │ ◄──────────────────── │
//	Signal         │ ────────────────────► │  a signal for all ranks
//	RanksFailed    │ ────────────────────► │  ranks that have failed
//	Aborted        │ ◄──────────────────── │  a rank has called Abort, or has broken the PMI-1 protocol
//	Exited         │ ◄──────────────────── │  a rank has ended, and not normally
//	Lost           │ ◄──────────────────── │  hosts of the subtree no longer answer
//	Log            │ ◄──────────────────── │  a line for the user
//	               │                       │
//	End            │ ────────────────────► │  end the ranks
//	Ended          │ ◄──────────────────── │  all ranks have ended, and all their output was sent
//	Bye            │ ────────────────────► │  the agent must end
//	Beat           │ ◄───────────────────► │  heartbeat
//
// Up, Prepared, Staged, Started, Fence and Ended go up once for a whole subtree: an agent waits for
// its own part and for those of its children, merges them, and sends one message. So gorun gets one
// of each from each of its children, regardless of the number of hosts.
//
// If a stream ends without Bye, the subtree at its other end is lost. An agent that loses its
// parent kills its ranks and ends.
package proto

import (
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/place"
)

// Message is a message between gorun and its agents. Only types of this package implement it.
type Message interface{ kind() Kind }

// Kind is the number that stands for the type of a message in a frame.
type Kind uint8

// The kinds. Their numbers are part of the protocol and must not change.
const (
	KindBeat Kind = iota + 1
	KindLaunch
	KindUp
	KindPrepare
	KindPrepared
	KindFile
	KindStaged
	KindStart
	KindStarted
	KindFence
	KindRelease
	KindState
	KindWatch
	KindRequest
	KindReply
	KindOutput
	KindCredit
	KindOutputClosed
	KindStdin
	KindStdinCredit
	KindSignal
	KindRanksFailed
	KindAborted
	KindExited
	KindLost
	KindLog
	KindEnd
	KindEnded
	KindBye
	KindFileCredit
	KindInspect
	KindStacks
	KindInspected
)

const (
	// Window is how many bytes of output, or of standard input, the sender at one end of a connection
	// may have sent beyond those for which the receiver has given credit.
	Window = 256 << 10
	// FileWindow is the same for files. A sender that has sent FileWindow bytes or more without
	// credit sends no further FilePart until it gets credit.
	FileWindow = 1 << 20
)

// Beat shows that the sender runs. Package tree sends and receives it on each connection, and
// passes it to no other package.
type Beat struct{}

// Launch is the first message to an agent.
type Launch struct {
	JobID     string       `json:"job"`
	Index     int          `json:"index"`             // index of the agent's own host
	Hosts     []hosts.Host `json:"hosts"`             // hosts of the agent's subtree; Hosts[i] has index Index+i
	Radix     int          `json:"radix"`             // largest number of children of gorun and of each agent
	AtOnce    int          `json:"at_once"`           // number of connections that gorun or an agent may open at the same time
	SSH       []string     `json:"ssh"`               // the ssh command for the connections to children
	Agent     string       `json:"agent,omitempty"`   // path of gorun on the hosts; "": find gorun there, or copy it
	Timeout   Duration     `json:"timeout"`           // how long a child may take to answer
	Heartbeat Duration     `json:"heartbeat"`         // a connection on which no byte arrives for this long is lost
	Verbose   bool         `json:"verbose,omitempty"` // the user wants -v
}

// Duration is a time.Duration. In messages it is a number of nanoseconds.
type Duration = time.Duration

// Up reports which hosts of a subtree answer. Every host of the subtree is in exactly one of the
// lists.
type Up struct {
	Agents []Agent     `json:"agents"`
	Failed []HostError `json:"failed,omitempty"`
}

// Agent describes an agent that runs, and its host.
type Agent struct {
	Index    int            `json:"index"`             // of the host
	Hostname string         `json:"hostname"`          // as the host calls itself
	PID      int            `json:"pid"`               // of the agent
	Topology place.Topology `json:"topology"`          // the hardware that ranks may use
	Addrs    []Address      `json:"addrs"`             // of the host's interfaces, except loopback
	Reached  string         `json:"reached,omitempty"` // the address of the host at which its parent in the tree has connected with it; "": not known
	Parent   string         `json:"parent,omitempty"`  // the address from which its parent has connected; "": not known
}

// Address is an address of an interface of a host.
type Address struct {
	Interface string `json:"if"`     // name of the interface
	Prefix    string `json:"prefix"` // the address and the length of its network's prefix, such as 10.0.0.7/24
}

// HostError reports that a host could not be reached, or could not do what a message asks for.
type HostError struct {
	Index int    `json:"index"`          // of the host
	Code  int    `json:"code,omitempty"` // the exit code that gorun should have; 0: ExitFailed
	Cause string `json:"cause"`          // a line for the user
}

// Prepare describes the job to the hosts of a subtree.
type Prepare struct {
	Card  bootstrap.Card `json:"card"`  // the description of the job that every rank gets, with the fields that are equal on all hosts
	Apps  []App          `json:"apps"`  // the programs of the job
	Plans []Plan         `json:"plans"` // one for each host of the subtree, in the order of their indexes
	// BasePort is the port on which the first rank of each host listens; the next ranks of the host
	// have the next ports. If these ports are not free on a host, its ranks listen on any others.
	// 0: the ranks listen on any ports.
	BasePort int `json:"base_port,omitempty"`
	LowPort  int `json:"low_port,omitempty"`  // lowest port that ranks may listen on; 0: any port
	HighPort int `json:"high_port,omitempty"` // highest port that ranks may listen on, if LowPort is not 0
	// Interface is the interface, address or subnet on which the ranks choose their addresses
	// themselves, because the user names it. A host that does not have it refuses the job. "": the
	// user names none.
	Interface string `json:"interface,omitempty"`
	UDP       bool   `json:"udp,omitempty"`    // the UDP ports with the numbers of the TCP ports must be free, too
	Memory    bool   `json:"memory,omitempty"` // the ranks of a host share a memory file

	Stdin    string   `json:"stdin"`              // the ranks that read standard input: rank0, all or none
	Tag      bool     `json:"tag,omitempty"`      // each line of output begins with the rank that wrote it
	TagHost  bool     `json:"tag_host,omitempty"` // with Tag, also with the host
	OneSink  bool     `json:"one_sink,omitempty"` // gorun's stdout and stderr are one file
	PerRank  bool     `json:"per_rank,omitempty"` // each Output must hold bytes of only one rank, because each rank's output goes to files of its own
	OutTerm  bool     `json:"out_term,omitempty"` // gorun's stdout is a terminal
	ErrTerm  bool     `json:"err_term,omitempty"` // gorun's stderr is a terminal
	Notify   bool     `json:"notify,omitempty"`   // the job continues without failed ranks, so each rank gets a socket for failure notifications
	Rebind   bool     `json:"rebind,omitempty"`   // a rank may be bound to another core than planned, if another job uses the planned one
	Grace    Duration `json:"grace"`              // time between SIGTERM and SIGKILL if an agent ends its ranks without an End from gorun
	Segments bool     `json:"segments,omitempty"` // ranks may leave shared memory of libfabric in /dev/shm, which the hosts remove at the end
	Files    []File   `json:"files,omitempty"`    // files for the hosts: first the program of each app with Staged, then those that the user names
}

// App is a program of the job.
type App struct {
	Name     string   `json:"name"`             // as the user wrote it
	Path     string   `json:"path"`             // absolute path of the executable on each host or, if Staged is set, on gorun's host
	Staged   string   `json:"staged,omitempty"` // hash of the executable, by which it is in Prepare.Files; "": each host has it at Path
	Argv     []string `json:"argv"`             // arguments, with argument 0
	Env      []string `json:"env"`              // variables, NAME=VALUE, that are added to the host's own environment
	Wdir     string   `json:"wdir"`             // absolute path of the working directory
	MaxProcs int      `json:"max,omitempty"`    // GOMAXPROCS of each rank; 0: the rank's share of the cores, unless KeepProc is set
	KeepProc bool     `json:"keep,omitempty"`   // Env has GOMAXPROCS, because the user has set it
}

// Plan lists the ranks of one host.
type Plan struct {
	Index   int    `json:"index"`
	Address string `json:"address,omitempty"` // address on which the ranks listen; "": they do not listen, or choose their addresses themselves
	Ranks   []Rank `json:"ranks"`             // in the order of their numbers on the host
}

// Rank is a rank of a Plan.
type Rank struct {
	Rank int   `json:"rank"`           // number in the job
	App  int   `json:"app"`            // index of its program in Prepare.Apps
	CPUs []int `json:"cpus,omitempty"` // hardware threads that the rank is bound to; nil: it is not bound
}

// File is a file that hosts need: the program of an app, or a file that the user wants to copy.
type File struct {
	Hash string `json:"hash"`           // SHA-256, in hexadecimal digits
	Size int64  `json:"size"`           // in bytes
	Mode uint32 `json:"mode"`           // permission bits
	Name string `json:"name"`           // name in the job's directory on the host
	Path string `json:"path,omitempty"` // path on gorun's host; a host that has the same file at this path needs no copy
}

// Prepared answers Prepare for a subtree.
type Prepared struct {
	Ports  []HostPorts `json:"ports,omitempty"`  // the ports of the ranks on hosts on which those from BasePort on are not free
	Need   []string    `json:"need,omitempty"`   // hashes of the files that at least one host of the subtree lacks
	Failed []HostError `json:"failed,omitempty"` // hosts that cannot run the job, and why

	// NoMemory lists the hosts that cannot make the memory file that their ranks should share, and
	// why. The job runs all the same.
	NoMemory []HostError `json:"no_memory,omitempty"`
}

// HostPorts holds the TCP port of each rank of a host, in the order of Plan.Ranks.
type HostPorts struct {
	Index int   `json:"index"`
	Ports []int `json:"ports"`
}

// FilePart is the next part of a file, for the hosts of the subtree that need the file.
type FilePart struct {
	Hash string // File.Hash
	Last bool   // the last part of the last file; the subtree answers it by Staged
	Data []byte
}

// FileCredit gives credit for this many more bytes of FilePart: see FileWindow. Package tree sends
// and receives it on each connection, and passes it to no other package.
type FileCredit struct{ Bytes int }

// Staged reports that each host of the subtree has the files that it needs, or has failed to get
// them.
type Staged struct {
	Failed []HostError `json:"failed,omitempty"` // the hosts that have failed, and why
}

// Start makes the hosts start the ranks.
type Start struct {
	Addrs []string `json:"addrs,omitempty"` // address and port of each rank of the job; nil: they follow from Card.Hosts and BasePort, or ranks exchange them
}

// Started reports which ranks of the subtree run.
type Started struct {
	Ranks  []StartedRank `json:"ranks"`
	Failed *StartFailure `json:"failed,omitempty"` // of the ranks that could not be started, the one with the lowest number; nil: all ranks were started
}

// StartedRank describes the process of a rank.
type StartedRank struct {
	Rank int   `json:"rank"`
	PID  int   `json:"pid"`
	At   int64 `json:"at"`             // when it was started: ns since 1970, by the clock of its host
	CPUs []int `json:"cpus,omitempty"` // hardware threads that it is bound to; nil: those of the Plan
}

// StartFailure describes a rank that could not be started.
type StartFailure struct {
	Rank   int    `json:"rank"`
	Code   int    `json:"code"`   // the exit code that gorun should have
	Reason string `json:"reason"` // a line for the user
}

// Fence reports that every rank of the subtree is in its N-th PMI fence, counted from 1. A rank
// that has ended counts as being in every fence.
type Fence struct {
	N       int               `json:"n"`
	Puts    map[string]string `json:"puts,omitempty"`    // what the ranks of the subtree have put into the key-value space since the fence before
	Waiting bool              `json:"waiting,omitempty"` // a running rank is in the fence, so it must get Release
}

// Release makes the hosts let the ranks out of their N-th fence, because all ranks of the job are
// in it.
type Release struct {
	N       int               `json:"n"`
	Puts    map[string]string `json:"puts,omitempty"`    // what all ranks of the job have put since the fence before
	Waiting bool              `json:"waiting,omitempty"` // as in Fence, for the whole job; false: all ranks have ended, so no further fence follows
}

// Watch makes every host send its State now, and again whenever it changes.
type Watch struct{}

// State is what gorun needs to know about a host to detect ranks that wait for ever for a rank that
// has ended. A host sends it after Watch. It also sends it without Watch if one of its ranks has
// ended normally and the other ranks have not ended soon after.
type State struct {
	Index   int  `json:"index"`   // of the host
	Waiting int  `json:"waiting"` // number of the fence in which a rank of the host waits; 0: no rank waits
	Begun   bool `json:"begun"`   // a running rank of the host has called Init
	Left    int  `json:"left"`    // a rank of the host that has ended and was not in a fence; -1: there is none
	Absent  int  `json:"absent"`  // a rank of the host that has ended and never called Init; -1: there is none
	Ended   bool `json:"gone"`    // all ranks of the host have ended; their output may still be on the way
}

// Inspect asks every host what its ranks do.
type Inspect struct {
	N      int  `json:"n"`                // a number that grows with each Inspect; the answers have it, too
	Stacks bool `json:"stacks,omitempty"` // also asks for the stacks of all goroutines
}

// Stacks holds the stacks of all goroutines of a rank. It arrives before the Inspected of the
// rank's host, unless the rank answers late.
type Stacks struct {
	N    int // Inspect.N
	Rank int
	Data []byte // text, at most wire.InspectMaxStacks bytes
}

// Inspected answers Inspect for one host. Each running rank of the host is in exactly one group.
type Inspected struct {
	N      int     `json:"n"`                // Inspect.N
	Index  int     `json:"index"`            // of the host
	Groups []Group `json:"groups,omitempty"` // empty: no rank of the host runs
}

// Group is a set of ranks of a host that do the same. Either State or Process is set.
type Group struct {
	Ranks []int           `json:"ranks"`
	State *wire.RankState `json:"state,omitempty"` // what the ranks have answered; nil: they have not answered
	// Process is what the kernel reports about the process of a rank that has not answered, such as
	// "sleep sleeps in hrtimer_nanosleep".
	Process  string `json:"process,omitempty"`
	NoAnswer bool   `json:"mute,omitempty"` // the ranks have called comm.Init, so they should have answered, and have not
}

// Request is a PMI-1 request of a rank that only gorun can answer: publish, look up or unpublish
// the name of a service.
type Request struct {
	Rank int    `json:"rank"` // the rank that has made the request
	Line []byte `json:"line"` // the line of the request
}

// Reply answers a Request.
type Reply struct {
	Rank int    `json:"rank"` // Request.Rank
	Line []byte `json:"line"` // the line for the rank
}

// Merged is the Stream of an Output that is not kept apart by rank: it may hold lines of several ranks
// of a host, or lines of gorun itself.
const Merged = -1

// Output is what ranks of a host have written. It holds whole lines, unless Mid is set.
type Output struct {
	Index  int  // index of the host
	Stderr bool // the ranks have written it to stderr; false: to stdout
	Stream int  // number of the rank that has written it; Merged: any of them, or gorun
	Mid    bool // Data ends within a line, which a later Output with the same Index, Stderr and Stream continues
	Data   []byte
}

// Credit allows its receiver to send this many more bytes of Output: see Window.
type Credit struct{ Bytes int }

// OutputClosed reports that the reader of gorun's stdout, or stderr, has closed it. The hosts close
// their ends of the ranks' pipes, so that writes of the ranks to it fail with EPIPE and cause
// SIGPIPE.
type OutputClosed struct {
	Stderr bool `json:"stderr,omitempty"` // stderr was closed; false: stdout
}

// Stdin is standard input for the ranks of the subtree that read it. Empty Data means the end of the
// input.
type Stdin struct{ Data []byte }

// StdinCredit allows its receiver to send this many more bytes of Stdin: see Window.
type StdinCredit struct{ Bytes int }

// Signal makes the hosts send a signal to every rank.
type Signal struct {
	Signal int `json:"signal"` // number of the signal
}

// RanksFailed reports to the other ranks that ranks have failed, in a job that continues without
// them.
type RanksFailed struct {
	Ranks  []int  `json:"ranks"`
	Reason string `json:"reason"` // how they have failed, for errors in the other ranks
}

// Aborted reports that a rank has called Abort or has broken the PMI-1 protocol.
type Aborted struct {
	Rank   int    `json:"rank"`
	PID    int    `json:"pid,omitempty"`    // 0: not known yet
	Code   int    `json:"code"`             // the exit code that gorun should have
	Reason string `json:"reason"`           // why it called Abort, or what it did wrong; "": Abort had no reason
	Broken bool   `json:"broken,omitempty"` // the rank has broken the PMI-1 protocol; false: it has called Abort

	Consequence bool `json:"consequence,omitempty"` // the rank called Abort because another rank had failed
	AfterEnd    bool `json:"told,omitempty"`        // the rank had already got SIGTERM or SIGKILL, because its host had begun to end the job
}

// Exited reports a rank that has not ended normally. A rank has ended normally if it exited with
// code 0 and had called Finalize, or had never called Init. Such ranks are reported only in Ended.
type Exited struct {
	Exit
}

// Exit describes how a rank ended.
type Exit struct {
	Rank   int    `json:"rank"`
	PID    int    `json:"pid"`
	Code   int    `json:"code,omitempty"`   // exit code; 0 if a signal ended the rank
	Signal int    `json:"signal,omitempty"` // signal that ended the rank; 0: none
	At     int64  `json:"at"`               // when the rank ended: ns since 1970, by the clock of its host
	Early  bool   `json:"early,omitempty"`  // the rank had called Init and not Finalize
	Final  bool   `json:"final,omitempty"`  // it was the last rank of its host to end
	Joined bool   `json:"joined,omitempty"` // the rank had called Init
	Memory string `json:"memory,omitempty"` // if the kernel may have sent SIGKILL for lack of memory, a text that says so; "" otherwise
	Late   bool   `json:"late,omitempty"`   // SIGKILL ended the rank, because it still ran at the end of the grace period of End
	Stuck  bool   `json:"stuck,omitempty"`  // the process still exists, because it waits in the kernel, where SIGKILL has no effect; the host no longer waits for it

	Usage   *Usage        `json:"usage,omitempty"`   // nil: not known
	Account *wire.Account `json:"account,omitempty"` // what the rank has reported in Finalize about its messages; nil: nothing

	// From the next fields gorun finds the rank whose failure caused the others. AfterEnd: the host
	// had begun to end its ranks before this rank ended. The other two describe this rank at the
	// moment when the first rank of its host failed, or when its host began to end its ranks.
	// KillPending: another process had sent this rank SIGKILL, which it had not handled yet. Exiting:
	// this rank was in exit(2), or a signal was ending it.
	AfterEnd    bool `json:"told,omitempty"`
	KillPending bool `json:"doomed,omitempty"`
	Exiting     bool `json:"dying,omitempty"`
}

// Usage is the resource usage of a rank and of its child processes that it has waited for.
type Usage struct {
	User   Duration `json:"user"`   // CPU time in user mode
	System Duration `json:"system"` // CPU time in kernel mode
	MaxRSS int64    `json:"rss"`    // peak resident memory of the largest of these processes, in bytes
}

// Lost reports that the connection with an agent has ended, or that the agent no longer answers.
// First is the index of its host. The other Count-1 hosts, which follow, are below it in the tree,
// so gorun cannot reach them any more.
type Lost struct {
	First, Count int
	Cause        string // a line for the user
}

// Log is a line for the user from a host.
type Log struct {
	Index int    `json:"index"` // of the host
	Line  string `json:"line"`
}

// End makes the hosts end every rank of the subtree. The ranks get SIGTERM, and SIGKILL after
// Grace. If Grace is 0, they get SIGKILL at once. A second End may shorten the grace period.
type End struct {
	Grace Duration `json:"grace"`
	// Linger is how long a busy rank may go on before it gets SIGTERM, because it may be about to write
	// an error message and end by itself. The grace period begins after that.
	Linger Duration `json:"linger,omitempty"`
	Except int      `json:"except"`          // a rank that gets no SIGTERM, because it called Abort and is about to end by itself; -1: none
	Asked  bool     `json:"asked,omitempty"` // the ranks get no SIGTERM, because another process has sent it to them already
}

// Ended reports that all ranks of the subtree have ended, and that all their output was sent before.
type Ended struct {
	Exits []Exit `json:"exits"`           // one for each rank of the subtree that was started
	Tails []Tail `json:"tails,omitempty"` // the last lines of stderr of ranks that have not ended normally
}

// Tail holds the last lines that a rank wrote to stderr.
type Tail struct {
	Rank  int      `json:"rank"`
	Lines []string `json:"lines"`
}

// Bye makes an agent end. The agent first passes Bye on to its children.
type Bye struct{}
