// Package proto defines the messages between gorun and its agents, and their encoding on a
// stream.
//
// An agent is gorun on another host; it runs the ranks of that host. The agents form a tree with
// gorun at its root. Each agent talks only to its parent and its children. The hosts of a subtree
// have consecutive numbers; the first is the head of the subtree.
//
//	             gorun                   agents
//	Launch         │ ────────────────────► │  the hosts of the agent's subtree
//	Up             │ ◄──────────────────── │  which of these hosts answer, and their cores and addresses
//	Prepare        │ ────────────────────► │  which ranks of which programs run on each host
//	Prepared       │ ◄──────────────────── │  ports are bound, programs exist; files that are missing
//	FilePart …     │ ────────────────────► │  missing files, FileWindow bytes ahead of FileCredit
//	FileCredit     │ ◄──────────────────── │
//	Staged         │ ◄──────────────────── │  the files are written
//	Start          │ ────────────────────► │  start the ranks
//	Started        │ ◄──────────────────── │  pids of the ranks
//	               │                       │
//	Fence          │ ◄──────────────────── │  all ranks of the subtree are in the fence; what they put
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
//	Aborted        │ ◄──────────────────── │  a rank has called Abort
//	Exited         │ ◄──────────────────── │  a rank has ended, and not normally
//	Lost           │ ◄──────────────────── │  hosts of the subtree no longer answer
//	Log            │ ◄──────────────────── │  a line for the user
//	               │                       │
//	End            │ ────────────────────► │  end the ranks
//	Ended          │ ◄──────────────────── │  all ranks have ended, all output was sent
//	Bye            │ ────────────────────► │  the agent must end
//	Beat           │ ◄───────────────────► │  heartbeat
//
// Up, Prepared, Staged, Started, Fence and Ended go up once for a whole subtree: an agent waits for
// its own part and for those of its children. So gorun gets one of each from each of its children,
// regardless of the number of hosts.
//
// If a stream ends without Bye, the subtree behind it is lost. An agent that loses its parent kills
// its ranks and ends.
package proto

import (
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/place"
)

// Message is a message: one of the types below.
type Message interface{ kind() Kind }

// Kind is the number of a message's type.
type Kind uint8

// The kinds. Their numbers are part of the protocol.
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
	// Window is how many bytes of output, or of standard input, a sender may send over one link
	// without credit.
	Window = 256 << 10
	// FileWindow bounds the bytes of files on one link. If this many have no credit yet, the
	// sender sends no further FilePart.
	FileWindow = 1 << 20
)

// Beat shows that the sender runs. Links send and receive it; no other part sees it.
type Beat struct{}

// Launch is the first message to an agent.
type Launch struct {
	JobID     string       `json:"job"`
	Index     int          `json:"index"`           // index of the agent's own host
	Hosts     []hosts.Host `json:"hosts"`           // hosts of the agent's subtree; Hosts[i] has index Index+i
	Radix     int          `json:"radix"`           // the largest number of children of a node
	AtOnce    int          `json:"at_once"`         // number of connections that a node may open at the same time
	SSH       []string     `json:"ssh"`             // the ssh command for the connections to children
	Agent     string       `json:"agent,omitempty"` // path of gorun on the hosts; "": find gorun there, or copy it
	Timeout   Duration     `json:"timeout"`         // how long a child may take to answer
	Heartbeat Duration     `json:"heartbeat"`       // a link without any byte for this long is lost
	Verbose   bool         `json:"verbose,omitempty"`
}

// Duration is a time.Duration in nanoseconds.
type Duration = time.Duration

// Up reports which hosts of a subtree answer. Every host of the subtree is in exactly one of the
// lists.
type Up struct {
	Agents []Agent     `json:"agents"`
	Failed []HostError `json:"failed,omitempty"`
}

// Agent is an agent that runs, and its host.
type Agent struct {
	Index    int            `json:"index"`
	Hostname string         `json:"hostname"`
	PID      int            `json:"pid"`
	Topology place.Topology `json:"topology"`
	Addrs    []Address      `json:"addrs"`
	Reached  string         `json:"reached,omitempty"` // its address on the path to its parent; "": unknown
	Parent   string         `json:"parent,omitempty"`  // its parent's address on that path
}

// Address is an address of a host's interface.
type Address struct {
	Interface string `json:"if"`
	Prefix    string `json:"prefix"` // such as 10.0.0.7/24
}

// HostError is the error of a host that cannot do what a message asks for.
type HostError struct {
	Index int    `json:"index"`
	Code  int    `json:"code,omitempty"` // exit code for gorun; 0: ExitFailed
	Cause string `json:"cause"`
}

// Prepare describes the job to the hosts of a subtree.
type Prepare struct {
	Card  bootstrap.Card `json:"card"` // the parts that are equal on all hosts
	Apps  []App          `json:"apps"`
	Plans []Plan         `json:"plans"` // the plans of the subtree's hosts, by Index
	// BasePort is the port of the first rank of each host; the next ranks have the next ports. If
	// these ports are not free on a host, its ranks use any others. 0: any ports.
	BasePort int `json:"base_port,omitempty"`
	LowPort  int `json:"low_port,omitempty"`  // lowest port that ranks may listen on; 0: any port
	HighPort int `json:"high_port,omitempty"` // highest such port
	// Interface is the interface, address or subnet that the ranks of each host listen on
	// by themselves. A host that does not have it refuses the job. "": not given.
	Interface string `json:"interface,omitempty"`
	UDP       bool   `json:"udp,omitempty"`    // the UDP ports of the same numbers must be free, too
	Memory    bool   `json:"memory,omitempty"` // the ranks of a host share a memory file

	Stdin    string   `json:"stdin"`              // the ranks that read standard input: rank0, all or none
	Tag      bool     `json:"tag,omitempty"`      // each line begins with its rank
	TagHost  bool     `json:"tag_host,omitempty"` // and its host
	OneSink  bool     `json:"one_sink,omitempty"` // stdout and stderr are one file
	PerRank  bool     `json:"per_rank,omitempty"` // each Output holds the bytes of one rank
	OutTerm  bool     `json:"out_term,omitempty"` // stdout is a terminal
	ErrTerm  bool     `json:"err_term,omitempty"` // stderr is a terminal
	Notify   bool     `json:"notify,omitempty"`   // a failed rank does not end the job: ranks get a channel for failure notifications
	Rebind   bool     `json:"rebind,omitempty"`   // a rank may be bound to another core than planned, if another job has that one
	Grace    Duration `json:"grace"`              // time between SIGTERM and SIGKILL if an agent must end its ranks
	Segments bool     `json:"segments,omitempty"` // libfabric may leave segments in /dev/shm; remove them at the end
	Files    []File   `json:"files,omitempty"`    // files for the hosts; first the program of each app with Staged
}

// App is a program of the job.
type App struct {
	Name     string   `json:"name"`             // as the user wrote it
	Path     string   `json:"path"`             // path of the executable; if Staged is set, on gorun's host
	Staged   string   `json:"staged,omitempty"` // hash of the executable among Prepare.Files; "": it exists on each host
	Argv     []string `json:"argv"`
	Env      []string `json:"env"`            // variables that extend the host's own environment
	Wdir     string   `json:"wdir"`           // absolute path of the working directory
	MaxProcs int      `json:"max,omitempty"`  // GOMAXPROCS of each rank; 0: the rank's share of the cores
	KeepProc bool     `json:"keep,omitempty"` // the user has set GOMAXPROCS in Env
}

// Plan lists the ranks of one host.
type Plan struct {
	Index   int    `json:"index"`
	Address string `json:"address,omitempty"` // address that the ranks listen on; "": none
	Ranks   []Rank `json:"ranks"`             // in the order of their local numbers
}

// Rank is a rank of a Plan.
type Rank struct {
	Rank int   `json:"rank"`
	App  int   `json:"app"`
	CPUs []int `json:"cpus,omitempty"` // cpus that the rank is bound to; nil: all
}

// File is a file that hosts need: a program that gorun has built, or a file that the user wants to
// copy.
type File struct {
	Hash string `json:"hash"` // SHA-256, in hexadecimal digits
	Size int64  `json:"size"`
	Mode uint32 `json:"mode"`
	Name string `json:"name"`           // base name in the job's directory on the host
	Path string `json:"path,omitempty"` // path on gorun's host; a host that has the same file at this path needs no copy
}

// Prepared answers Prepare for a subtree.
type Prepared struct {
	Ports  []HostPorts `json:"ports,omitempty"` // ports of hosts on which those from BasePort on are not free
	Need   []string    `json:"need,omitempty"`  // hashes of files that at least one host of the subtree lacks
	Failed []HostError `json:"failed,omitempty"`

	// NoMemory names the hosts that have no memory file for their ranks, and why.
	NoMemory []HostError `json:"no_memory,omitempty"`
}

// HostPorts holds the tcp port of each rank of a host, by local number.
type HostPorts struct {
	Index int   `json:"index"`
	Ports []int `json:"ports"`
}

// FilePart is the next part of a file, for the hosts of the subtree that need it. The last part of
// the last file has Last set. The subtree answers it by Staged.
type FilePart struct {
	Hash string
	Last bool
	Data []byte
}

// FileCredit gives credit for bytes of FilePart. Links send and receive it; no other part sees it.
type FileCredit struct{ Bytes int }

// Staged reports that the subtree has all files.
type Staged struct {
	Failed []HostError `json:"failed,omitempty"`
}

// Start starts the ranks.
type Start struct {
	Addrs []string `json:"addrs,omitempty"` // address of each rank; nil: as Card.Hosts and BasePort say
}

// Started lists the ranks that run.
type Started struct {
	Ranks  []StartedRank `json:"ranks"`
	Failed *StartFailure `json:"failed,omitempty"` // the failed rank of the subtree with the lowest number; nil: all ranks run
}

// StartedRank is the process of a rank.
type StartedRank struct {
	Rank int   `json:"rank"`
	PID  int   `json:"pid"`
	At   int64 `json:"at"`             // ns since 1970, by its host's clock
	CPUs []int `json:"cpus,omitempty"` // cpus that it is bound to; nil: as planned
}

// StartFailure is a rank that could not be started.
type StartFailure struct {
	Rank   int    `json:"rank"`
	Code   int    `json:"code"`
	Reason string `json:"reason"`
}

// Fence reports that every rank of the subtree is in its N-th fence, counted from 1, and what the
// ranks have put since the fence before.
type Fence struct {
	N       int               `json:"n"`
	Puts    map[string]string `json:"puts,omitempty"`
	Waiting bool              `json:"waiting,omitempty"` // a running rank is in the fence, so Release must come
}

// Release ends the N-th fence of the ranks.
type Release struct {
	N       int               `json:"n"`
	Puts    map[string]string `json:"puts,omitempty"`
	Waiting bool              `json:"waiting,omitempty"` // as in Fence; false: no further fence will follow
}

// Watch makes every host send its State, now and whenever it changes.
type Watch struct{}

// State is what gorun needs to know of a host to detect a job that hangs. A host sends it without
// Watch, too, if one of its ranks has ended normally and the job does not end soon afterwards.
type State struct {
	Index   int  `json:"index"`
	Waiting int  `json:"waiting"` // number of the fence that some rank there waits in; 0: none does
	Begun   bool `json:"begun"`   // a running rank has called Init
	Left    int  `json:"left"`    // a rank that has ended and was not in a fence; -1: none
	Absent  int  `json:"absent"`  // a rank that has ended and never called Init; -1: none
	Ended   bool `json:"gone"`    // all ranks have ended; their output may still be on the way
}

// Inspect asks every host what its ranks do. N grows with each Inspect.
type Inspect struct {
	N      int  `json:"n"`
	Stacks bool `json:"stacks,omitempty"` // also asks for the stacks of all goroutines
}

// Stacks holds the stacks of a rank's goroutines. It precedes the host's Inspected, unless
// the rank answers late.
type Stacks struct {
	N    int // number of the Inspect
	Rank int
	Data []byte // at most wire.InspectMaxStacks
}

// Inspected answers Inspect for one host. Each running rank of the host is in one group.
type Inspected struct {
	N      int     `json:"n"`
	Index  int     `json:"index"`
	Groups []Group `json:"groups,omitempty"`
}

// Group is a set of ranks that do the same. Either State or Process is set.
type Group struct {
	Ranks []int           `json:"ranks"`
	State *wire.RankState `json:"state,omitempty"`
	// Process is what the kernel reports about a rank that has not answered, such as
	// "sleep sleeps in hrtimer_nanosleep".
	Process  string `json:"process,omitempty"`
	NoAnswer bool   `json:"mute,omitempty"` // the rank has called comm.Init, so it should have answered
}

// Request is a PMI-1 request that only gorun can answer: publish, look up or unpublish a name.
type Request struct {
	Rank int    `json:"rank"`
	Line []byte `json:"line"`
}

// Reply answers a Request.
type Reply struct {
	Rank int    `json:"rank"`
	Line []byte `json:"line"`
}

// Merged is the Stream of an Output that holds lines of several ranks.
const Merged = -1

// Output is what ranks have written. It holds whole lines, unless Mid is set.
type Output struct {
	Index  int  // index of the host
	Stderr bool // written to stderr; false: to stdout
	Stream int  // number of the rank, or Merged
	Mid    bool // Data ends within a line, which a later Output continues
	Data   []byte
}

// Credit allows the receiver to send as many more bytes of Output.
type Credit struct{ Bytes int }

// OutputClosed reports that the reader of gorun's stdout, or stderr, has closed it. The hosts must
// close the ranks' pipes, so that the ranks' writes fail with EPIPE.
type OutputClosed struct {
	Stderr bool `json:"stderr,omitempty"`
}

// Stdin is standard input for the ranks of the subtree that read it. Empty Data is the end of the
// input.
type Stdin struct{ Data []byte }

// StdinCredit allows the receiver to send as many more bytes of Stdin.
type StdinCredit struct{ Bytes int }

// Signal is a signal for every rank.
type Signal struct {
	Signal int `json:"signal"`
}

// RanksFailed reports failed ranks to the other ranks of a job that continues without them.
type RanksFailed struct {
	Ranks  []int  `json:"ranks"`
	Reason string `json:"reason"`
}

// Aborted reports a rank that has called Abort or has broken the PMI-1 protocol.
type Aborted struct {
	Rank   int    `json:"rank"`
	PID    int    `json:"pid,omitempty"` // 0: not known yet
	Code   int    `json:"code"`
	Reason string `json:"reason"`
	Broken bool   `json:"broken,omitempty"` // it has broken the PMI-1 protocol

	Consequence bool `json:"consequence,omitempty"` // the reason follows from the failure of another rank
	AfterEnd    bool `json:"told,omitempty"`        // the rank had got SIGTERM or SIGKILL for the job's end before
}

// Exited reports a rank that has not ended normally. Ranks that have are listed in Ended only.
type Exited struct {
	Exit
}

// Exit is how a rank ended.
type Exit struct {
	Rank   int    `json:"rank"`
	PID    int    `json:"pid"`
	Code   int    `json:"code,omitempty"`
	Signal int    `json:"signal,omitempty"` // signal that ended it; 0: none
	At     int64  `json:"at"`               // ns since 1970, by its host's clock
	Early  bool   `json:"early,omitempty"`  // it ended after Init and without Finalize
	Final  bool   `json:"final,omitempty"`  // it was the last rank of its host
	Joined bool   `json:"joined,omitempty"` // it has called Init
	Memory string `json:"memory,omitempty"` // the reason for SIGKILL if it may be lack of memory
	Late   bool   `json:"late,omitempty"`   // it still ran at the end of End's grace period
	Stuck  bool   `json:"stuck,omitempty"`  // it has not ended: the kernel holds it, and SIGKILL has no effect

	Usage   *Usage        `json:"usage,omitempty"`   // nil: not known
	Account *wire.Account `json:"account,omitempty"` // nil: the rank has not reported one in Finalize

	// gorun needs these to find the rank whose failure caused the others. AfterEnd: the host had
	// begun to end its ranks. The other two are the state when the first rank of the host failed,
	// or when the host began to end its ranks. KillPending: another process had sent this rank
	// SIGKILL. Exiting: this rank was in exit(2).
	AfterEnd    bool `json:"told,omitempty"`
	KillPending bool `json:"doomed,omitempty"`
	Exiting     bool `json:"dying,omitempty"`
}

// Usage is the resource usage of a rank and the processes that it has waited for.
type Usage struct {
	User   Duration `json:"user"`   // CPU time in user mode
	System Duration `json:"system"` // CPU time in kernel mode
	MaxRSS int64    `json:"rss"`    // peak resident memory of the largest of these processes, in bytes
}

// Lost reports hosts that no longer answer, or whose agent has ended.
type Lost struct {
	First, Count int // the hosts from index First on
	Cause        string
}

// Log is a line for the user.
type Log struct {
	Index int    `json:"index"`
	Line  string `json:"line"`
}

// End makes the hosts end every rank of the subtree: SIGTERM, and SIGKILL after Grace, or SIGKILL at
// once if Grace is 0. A second End may shorten the grace period.
type End struct {
	Grace Duration `json:"grace"`
	// Linger is how much later busy ranks get SIGTERM. They may be about to write an error message
	// and end.
	Linger Duration `json:"linger,omitempty"`
	Except int      `json:"except"`          // a rank that is about to end by itself and gets no SIGTERM; -1: none
	Asked  bool     `json:"asked,omitempty"` // the ranks have already got SIGTERM, not from gorun
}

// Ended reports that all ranks of the subtree have ended and that all their output was sent.
type Ended struct {
	Exits []Exit `json:"exits"`
	Tails []Tail `json:"tails,omitempty"` // for ranks that have not ended normally
}

// Tail holds the last lines that a rank wrote to stderr.
type Tail struct {
	Rank  int      `json:"rank"`
	Lines []string `json:"lines"`
}

// Bye makes an agent end. The agent passes Bye on to its children first.
type Bye struct{}
