// Package proto is what gorun and its agents say to each other: messages, and
// how they stand on a stream.
//
// An agent is gorun on another host, which runs the ranks of that host. Agents
// form a tree with gorun at its root; each speaks with its parent and with its
// children only. Hosts are numbered so that those of a subtree follow on each
// other, its head first.
//
//	          gorun                   agents
//	Launch      │ ────────────────────► │  which hosts are yours and below you
//	Up          │ ◄──────────────────── │  they answer, or why not; what they have
//	Prepare     │ ────────────────────► │  which ranks run where, of what programs
//	Prepared    │ ◄──────────────────── │  ports are bound, programs found; what is wanted
//	File …      │ ────────────────────► │  what a host lacks, FileWindow bytes ahead of FileCredit
//	FileCredit  │ ◄──────────────────── │
//	Staged      │ ◄──────────────────── │
//	Start       │ ────────────────────► │  go
//	Started     │ ◄──────────────────── │  pids
//	            │                       │
//	Fence       │ ◄──────────────────── │  all ranks below are in; what they put
//	Release     │ ────────────────────► │  all are; what all put
//	Watch       │ ────────────────────► │  tell State from now on
//	State       │ ◄──────────────────── │  who may wait for ever
//	Inspect     │ ────────────────────► │  what do the ranks do?
//	Stacks      │ ◄──────────────────── │  of a rank, where they are asked for
//	Inspected   │ ◄──────────────────── │  what the ranks of a host do
//	Request     │ ◄──────────────────── │  what only gorun can answer
//	Reply       │ ────────────────────► │
//	Output      │ ◄──────────────────── │  at most Window bytes ahead of Credit
//	Credit      │ ────────────────────► │
//	OutputClosed│ ────────────────────► │  nobody reads it any more
//	Stdin       │ ────────────────────► │  at most Window bytes ahead of StdinCredit
//	StdinCredit │ ◄──────────────────── │
//	Signal, RanksFailed│ ────────────────────► │
//	Aborted     │ ◄──────────────────── │  a rank wants the job to end
//	Exited      │ ◄──────────────────── │  a rank ended, and not well
//	Lost        │ ◄──────────────────── │  hosts below do not answer any more
//	Log         │ ◄──────────────────── │  a line for the user
//	            │                       │
//	End         │ ────────────────────► │  end the ranks that run
//	Ended       │ ◄──────────────────── │  no rank lives, all output has been sent
//	Bye         │ ────────────────────► │  end yourself
//	Beat        │ ◄───────────────────► │  I live
//
// Up, Prepared, Staged, Started, Fence and Ended go up once for a whole subtree:
// an agent waits for its own part and its children's. So gorun gets as many of
// them as it has children, however many hosts there are.
//
// A stream that ends without Bye means that what is behind it is lost. An agent
// whose parent is lost kills its ranks and ends.
package proto

import (
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/place"
)

// Message is one of the types below.
type Message interface{ kind() Kind }

// Kind is the number of a message's type.
type Kind uint8

// The kinds, as they stand on the wire.
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
	// Window is how many bytes of output, or of standard input, may be on the way
	// over one link before the other side has said Credit.
	Window = 256 << 10
	// FileWindow is how many bytes of files are on the way over a link when no more
	// FilePart may go before the other side has said FileCredit.
	FileWindow = 1 << 20
)

// Beat says that the sender lives. Links send and take it; nobody else sees it.
type Beat struct{}

// Launch is the first message to an agent.
type Launch struct {
	JobID     string       `json:"job"`
	Index     int          `json:"index"` // of the agent's own host
	Hosts     []hosts.Host `json:"hosts"` // of its subtree; Hosts[i] has index Index+i
	Radix     int          `json:"radix"`
	AtOnce    int          `json:"at_once"` // connections that may be under way at the same time
	SSH       []string     `json:"ssh"`     // how to reach the children
	Agent     string       `json:"agent,omitempty"`
	Timeout   Duration     `json:"timeout"`   // for a child to answer
	Heartbeat Duration     `json:"heartbeat"` // of silence after which a link is lost
	Verbose   bool         `json:"verbose,omitempty"`
}

// Duration is a time.Duration in nanoseconds.
type Duration = time.Duration

// Up tells which hosts of a subtree answer. Every host of the subtree stands in
// one of the lists.
type Up struct {
	Agents []Agent     `json:"agents"`
	Failed []HostError `json:"failed,omitempty"`
}

// Agent is an agent that is up, and its host.
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
	Prefix    string `json:"prefix"` // as 10.0.0.7/24
}

// HostError is a host that cannot do what it is asked.
type HostError struct {
	Index int    `json:"index"`
	Code  int    `json:"code,omitempty"` // exit code for gorun; 0: its usual one for a failure
	Cause string `json:"cause"`
}

// Prepare describes the job to the hosts of a subtree.
type Prepare struct {
	Card     bootstrap.Card `json:"card"` // but for the parts that are a host's own
	Apps     []App          `json:"apps"`
	Plans    []Plan         `json:"plans"` // of the subtree's hosts, in their order
	BasePort int            `json:"base_port,omitempty"`
	LowPort  int            `json:"low_port,omitempty"` // ranks listen from this port on; 0: on any
	HighPort int            `json:"high_port,omitempty"`
	// Interface is the interface, address or subnet that the ranks of each host listen on
	// by themselves. A host that does not have it refuses the job. "": not given.
	Interface string `json:"interface,omitempty"`
	UDP       bool   `json:"udp,omitempty"` // the UDP ports of the same numbers must be free, too
	Memory    bool   `json:"memory,omitempty"`

	Stdin    string   `json:"stdin"`              // rank0, all, none
	Tag      bool     `json:"tag,omitempty"`      // each line begins with its rank
	TagHost  bool     `json:"tag_host,omitempty"` // and its host
	OneSink  bool     `json:"one_sink,omitempty"` // stdout and stderr are one file
	PerRank  bool     `json:"per_rank,omitempty"` // each Output holds the bytes of one rank
	OutTerm  bool     `json:"out_term,omitempty"` // stdout is a terminal
	ErrTerm  bool     `json:"err_term,omitempty"` // stderr is a terminal
	Notify   bool     `json:"notify,omitempty"`   // a failed rank does not end the job: ranks get a channel for failure notifications
	Rebind   bool     `json:"rebind,omitempty"`   // a rank may be bound to another core than planned, if another job has that one
	Grace    Duration `json:"grace"`
	Segments bool     `json:"segments,omitempty"` // libfabric may leave segments in /dev/shm
	Files    []File   `json:"files,omitempty"`    // those that apps run first, one of each app with Staged
}

// App is a program of the job.
type App struct {
	Name     string   `json:"name"` // as the user wrote it
	Path     string   `json:"path"` // of the executable; where Staged is set, of gorun's own host
	Staged   string   `json:"staged,omitempty"`
	Argv     []string `json:"argv"`
	Env      []string `json:"env"`            // over what the host's own environment says
	Wdir     string   `json:"wdir"`           // absolute
	MaxProcs int      `json:"max,omitempty"`  // GOMAXPROCS of each rank; 0: by its share of the cores
	KeepProc bool     `json:"keep,omitempty"` // the user has set GOMAXPROCS in Env
}

// Plan is which ranks run on a host.
type Plan struct {
	Index   int    `json:"index"`
	Address string `json:"address,omitempty"` // that the ranks listen on; "": on none
	Ranks   []Rank `json:"ranks"`             // in the order of their local numbers
}

// Rank is a rank's place.
type Rank struct {
	Rank int   `json:"rank"`
	App  int   `json:"app"`
	CPUs []int `json:"cpus,omitempty"` // that it is bound to; nil: all
}

// File is what a host needs to have: a program that was built, or that the user
// wants to be copied.
type File struct {
	Hash string `json:"hash"` // SHA-256, in hexadecimal digits
	Size int64  `json:"size"`
	Mode uint32 `json:"mode"`
	Name string `json:"name"`           // base name in the job's directory on the host
	Path string `json:"path,omitempty"` // on gorun's host; a file there with the same hash will do
}

// Prepared answers Prepare.
type Prepared struct {
	Ports  []HostPorts `json:"ports,omitempty"` // of hosts where those from BasePort on are not free
	Need   []string    `json:"need,omitempty"`  // hashes of files that some host of the subtree lacks
	Failed []HostError `json:"failed,omitempty"`

	// NoMemory names the hosts that have no memory file for their ranks, and why.
	NoMemory []HostError `json:"no_memory,omitempty"`
}

// HostPorts is the tcp port of each rank of a host, by its local number.
type HostPorts struct {
	Index int   `json:"index"`
	Ports []int `json:"ports"`
}

// FilePart is the next part of a file, for whoever of the subtree needs it. The
// last part of the last file has Last set, and is answered by Staged.
type FilePart struct {
	Hash string
	Last bool
	Data []byte
}

// FileCredit says that as many bytes of FilePart have been taken. Links send and take
// it, as Beat.
type FileCredit struct{ Bytes int }

// Staged says that all files are there.
type Staged struct {
	Failed []HostError `json:"failed,omitempty"`
}

// Start has the ranks started.
type Start struct {
	Addrs []string `json:"addrs,omitempty"` // of each rank; nil: as Card.Hosts and BasePort say
}

// Started says that the ranks run, or that not all of them do.
type Started struct {
	Ranks  []StartedRank `json:"ranks"`
	Failed *StartFailure `json:"failed,omitempty"` // the first of the subtree
}

// StartedRank is a process.
type StartedRank struct {
	Rank int   `json:"rank"`
	PID  int   `json:"pid"`
	At   int64 `json:"at"`             // ns since 1970, by its host's clock
	CPUs []int `json:"cpus,omitempty"` // that it is bound to; nil: as planned
}

// StartFailure is a rank that could not be started.
type StartFailure struct {
	Rank   int    `json:"rank"`
	Code   int    `json:"code"`
	Reason string `json:"reason"`
}

// Fence says that every rank of the subtree is in its N-th fence, from 1 on, and
// what they have put since the one before.
type Fence struct {
	N       int               `json:"n"`
	Puts    map[string]string `json:"puts,omitempty"`
	Waiting bool              `json:"waiting,omitempty"` // a rank that lives is in it, and is not to wait in vain
}

// Release lets the ranks out of their N-th fence.
type Release struct {
	N       int               `json:"n"`
	Puts    map[string]string `json:"puts,omitempty"`
	Waiting bool              `json:"waiting,omitempty"` // as in Fence; else there will be no fence after it
}

// Watch has every host tell its State, now and when it changes.
type Watch struct{}

// State is what gorun has to know of a host to tell a job that hangs. A host tells
// it by itself when one of its ranks has ended well and the job has not ended
// soon after that.
type State struct {
	Index   int  `json:"index"`
	Waiting int  `json:"waiting"` // number of the fence that some rank there waits in; 0: none does
	Begun   bool `json:"begun"`   // a rank that lives has called Init
	Left    int  `json:"left"`    // a rank that has ended, and is in no fence; -1: none
	Absent  int  `json:"absent"`  // a rank that has ended and never called Init; -1: none
	Ended   bool `json:"gone"`    // no rank lives; what they wrote is on the way
}

// Inspect asks every host what its ranks do. N grows with each Inspect.
type Inspect struct {
	N      int  `json:"n"`
	Stacks bool `json:"stacks,omitempty"` // also asks for the stacks of all goroutines
}

// Stacks holds the stacks of a rank's goroutines. It precedes the host's Inspected, unless
// the rank answers late.
type Stacks struct {
	N    int // of the Inspect
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
	NoAnswer bool   `json:"mute,omitempty"` // the rank has called comm.Init, and should have answered
}

// Request is a line of PMI-1 that gorun answers: of services' names.
type Request struct {
	Rank int    `json:"rank"`
	Line []byte `json:"line"`
}

// Reply answers a Request.
type Reply struct {
	Rank int    `json:"rank"`
	Line []byte `json:"line"`
}

// Merged is the Stream of Output in which the lines of several ranks stand.
const Merged = -1

// Output is what ranks have written: whole lines, but where Mid says otherwise.
type Output struct {
	Index  int  // of the host
	Stderr bool // else stdout
	Stream int  // rank, or Merged
	Mid    bool // Data ends within a line that was too long to be kept
	Data   []byte
}

// Credit allows as many bytes of Output more.
type Credit struct{ Bytes int }

// OutputClosed says that nobody reads the ranks' stdout, or stderr, any more: they are to
// find their pipe broken.
type OutputClosed struct {
	Stderr bool `json:"stderr,omitempty"`
}

// Stdin is standard input for the ranks of the subtree that read it. Data is
// empty at its end.
type Stdin struct{ Data []byte }

// StdinCredit allows as many bytes of Stdin more.
type StdinCredit struct{ Bytes int }

// Signal is for every rank.
type Signal struct {
	Signal int `json:"signal"`
}

// RanksFailed is of ranks that have failed, for those that go on.
type RanksFailed struct {
	Ranks  []int  `json:"ranks"`
	Reason string `json:"reason"`
}

// Aborted is a rank that called Abort, or that made no sense on its control
// channel.
type Aborted struct {
	Rank   int    `json:"rank"`
	PID    int    `json:"pid,omitempty"` // 0: not known yet
	Code   int    `json:"code"`
	Reason string `json:"reason"`
	Broken bool   `json:"broken,omitempty"` // it does not speak PMI-1

	Consequence bool `json:"consequence,omitempty"` // the reason follows from the failure of another rank
	AfterEnd    bool `json:"told,omitempty"`        // before the abort, the rank had got SIGTERM or SIGKILL because the job ends
}

// Exited is a rank that has not ended well. Those that did stand in Ended only.
type Exited struct {
	Exit
}

// Exit is how a rank ended.
type Exit struct {
	Rank   int    `json:"rank"`
	PID    int    `json:"pid"`
	Code   int    `json:"code,omitempty"`
	Signal int    `json:"signal,omitempty"` // that ended it; 0: none
	At     int64  `json:"at"`               // ns since 1970, by its host's clock
	Early  bool   `json:"early,omitempty"`  // after Init and without Finalize
	Final  bool   `json:"final,omitempty"`  // no rank of its host is left
	Joined bool   `json:"joined,omitempty"` // it has called Init
	Memory string `json:"memory,omitempty"` // the reason for SIGKILL if it may be lack of memory
	Late   bool   `json:"late,omitempty"`   // it still ran at the end of End's grace period
	Stuck  bool   `json:"stuck,omitempty"`  // it has not ended: the kernel holds it, and SIGKILL has no effect

	Usage   *Usage        `json:"usage,omitempty"`   // nil: not known
	Account *wire.Account `json:"account,omitempty"` // nil: the rank has not reported one in Finalize

	// What tells a cause from its consequences. AfterEnd is set where the host had
	// been told before that the job is to end. At that time the rank was KillPending if
	// somebody had sent it SIGKILL, and Exiting if it was in exit(2).
	AfterEnd    bool `json:"told,omitempty"`
	KillPending bool `json:"doomed,omitempty"`
	Exiting     bool `json:"dying,omitempty"`
}

// Usage is the resource usage of a rank and the processes that it has waited for.
type Usage struct {
	User   Duration `json:"user"`   // CPU time
	System Duration `json:"system"` // CPU time in kernel mode
	MaxRSS int64    `json:"rss"`    // peak resident memory of the largest of these processes, in bytes
}

// Lost tells of hosts that do not answer any more, or whose agent has ended.
type Lost struct {
	First, Count int // hosts
	Cause        string
}

// Log is a line for the user.
type Log struct {
	Index int    `json:"index"`
	Line  string `json:"line"`
}

// End has every rank of the subtree ended: SIGTERM, and SIGKILL after Grace, or
// at once where Grace is 0. It may come twice, the second time with less grace.
type End struct {
	Grace  Duration `json:"grace"`
	Linger Duration `json:"linger,omitempty"` // how much later busy ranks get SIGTERM: they may be about to write an error message and end
	Except int      `json:"except"`           // a rank that is about to end by itself and gets no SIGTERM; -1: none
	Asked  bool     `json:"asked,omitempty"`  // the ranks have already got SIGTERM, not from gorun
}

// Ended says that no rank of the subtree lives and that all they wrote has been
// sent.
type Ended struct {
	Exits []Exit `json:"exits"`
	Tails []Tail `json:"tails,omitempty"` // of ranks that have not ended well
}

// Tail is the last that a rank wrote to stderr.
type Tail struct {
	Rank  int      `json:"rank"`
	Lines []string `json:"lines"`
}

// Bye has an agent end when it has passed Bye on to its children.
type Bye struct{}
