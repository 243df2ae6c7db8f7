// Package proto defines the messages between gorun and its agents, and their encoding on a
// stream.
//
// An agent is a gorun process on another host. It runs the ranks of that host. The agents form a
// tree with gorun at its root. Each agent exchanges messages only with its parent and its children.
// Hosts are numbered by an index. The hosts of a subtree have consecutive indexes. The first of
// them is the head of the subtree: the host of the agent that is nearest to gorun.
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
//	Measure        │ ────────────────────► │  what have the ranks done so far?
//	Measured       │ ◄──────────────────── │  figures of the ranks of a host
//	Capture        │ ────────────────────► │  keep what the ranks do for a while
//	Captured       │ ◄──────────────────── │  it is kept, for Fetch
//	Request, Spawn │ ◄──────────────────── │  a PMI-1 request that only gorun can answer
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
//	End            │ ────────────────────► │  end the ranks of the subtree
//	Ended          │ ◄──────────────────── │  all ranks have ended, and all their output was sent
//	Fetch          │ ────────────────────► │  which bytes are in a file of a rank?
//	Part           │ ◄──────────────────── │  these bytes
//	AskTime        │ ────────────────────► │  what does the host's monotonic clock show?
//	Time           │ ◄──────────────────── │
//	Bye            │ ◄───────────────────► │  down: the agent must end; up: the agent is about to end
//	Beat           │ ◄───────────────────► │  heartbeat
//
// The ranks of a job form groups. Group 0 are the ranks that gorun starts by itself. A rank can make
// gorun start further processes (Spawn); they are a group, too, with a number of its own. In the eyes
// of its ranks each group is a job. A group has its own sequence of messages, from Prepare or, if it
// does not start, to Dismiss. Each of these messages has the number of the group:
//
//	Prepare, Prepared, FilePart, Staged, Start, Started, Fence, Release, Watch, State, Output,
//	RanksFailed, Ended, Dismiss
//
// The other messages name ranks by their numbers in the whole job. The ranks of a group have
// consecutive numbers, from Prepare.First on. If the number of a rank of group 0 is meant, that is
// the rank.
//
// Up, Prepared, Staged, Started, Fence and Ended go up once for a whole subtree: an agent waits for
// its own part and for those of its children, merges them, and sends one message. So gorun gets one
// such message from each of its children, regardless of the number of hosts.
//
// # Files of ranks
//
// A rank may leave data of any size for gorun, for example a profile. For each element of
// Prepare.RankFiles, the host gives each rank an empty file that has no name in any file system. The
// rank inherits it, and finds it by its job card. The rank writes while it runs, without waiting for
// gorun. The host keeps the file until gorun has read it, or until the host's part of the job ends;
// so nothing is left behind, regardless of how the rank, the agent or gorun ends.
//
// When the ranks have ended, gorun reads the files: it asks for a range of bytes (Fetch), and gets one
// Part for each Fetch, in the same order. So Fetch is the credit for Part. No node ever holds more
// than gorun has asked for: gorun bounds the number of its requests without an answer, and an agent
// ends the link to a child that sends a Part that nobody has asked for. The size of the files does not
// matter.
//
// While the ranks run, gorun can make the hosts fill further files (Capture): with what the ranks record for a
// while, or with profiles that the ranks make. gorun reads them in the same way.
//
// If the stream to a child ends before Bye was sent down on it, the child's subtree is lost. An
// agent that loses its parent kills its ranks and ends.
package proto

import (
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/place"
)

// Message is a message between gorun and its agents, or between agents. Only types of this package
// implement it.
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
	KindSpawn
	KindDismiss
	KindMeasure
	KindMeasured
	KindFetch
	KindPart
	KindAskTime
	KindTime
	KindCapture
	KindCaptured
)

const (
	// Window is how many bytes of output, or of standard input, the sender at one end of a
	// connection may have sent without credit from the receiver for them.
	Window = 256 << 10
	// FileWindow is the limit for files. A sender that has sent FileWindow bytes or more of files
	// without credit for them sends no further FilePart until it gets credit.
	FileWindow = 1 << 20
	// MaxPart is the largest number of bytes that one Part carries.
	MaxPart = 64 << 10
)

// Beat shows that the sender still runs. Only package tree sends and receives it, on each
// connection.
type Beat struct{}

// Launch is the first message that a parent sends to an agent.
type Launch struct {
	JobID string       `json:"job"`
	Index int          `json:"index"` // index of the agent's own host
	Hosts []hosts.Host `json:"hosts"` // hosts of the agent's subtree; Hosts[i] has index Index+i
	Radix int          `json:"radix"` // largest number of children of gorun and of each agent
	// AtOnce is the largest number of connections that gorun or an agent may open at the same time.
	AtOnce int      `json:"at_once"`
	SSH    []string `json:"ssh"` // the ssh command for the connections to children
	// Agent is the path of gorun on the hosts. If it is "", the parent finds gorun there, or copies
	// it.
	Agent string `json:"agent,omitempty"`
	// Timeout is how long a host may be silent while its parent connects with it.
	Timeout Duration `json:"timeout"`
	// Heartbeat is the time after which a connection is lost if no byte has arrived on it.
	Heartbeat Duration `json:"heartbeat"`
	Verbose   bool     `json:"verbose,omitempty"` // the user has set -v
}

// Duration is a time.Duration. In messages it is a number of nanoseconds.
type Duration = time.Duration

// Up reports which hosts of a subtree have answered. Every host of the subtree is in exactly one of
// the lists.
type Up struct {
	Agents []Agent     `json:"agents"`
	Failed []HostError `json:"failed,omitempty"`
}

// Agent describes an agent that runs, and its host.
type Agent struct {
	Index    int            `json:"index"`    // index of the host
	Hostname string         `json:"hostname"` // the host's own name for itself
	PID      int            `json:"pid"`      // pid of the agent
	Topology place.Topology `json:"topology"` // the hardware that ranks may use
	// Addrs has the addresses of the host's interfaces that are up, except loopback.
	Addrs []Address `json:"addrs"`
	// Reached is the address of the host with which the ssh of its parent in the tree has
	// connected; "": not known.
	Reached string `json:"reached,omitempty"`
	// Parent is the address from which the ssh of the host's parent has connected; "": not known.
	Parent string `json:"parent,omitempty"`
}

// Address is an address of an interface of a host.
type Address struct {
	Interface string `json:"if"`     // name of the interface
	Prefix    string `json:"prefix"` // the address and the prefix length of its network, such as 10.0.0.7/24
}

// HostError reports that a host could not be reached, or could not do what a message asked for.
type HostError struct {
	Index int    `json:"index"`          // index of the host
	Code  int    `json:"code,omitempty"` // the exit code that gorun should have; 0: ExitFailed
	Cause string `json:"cause"`          // a line for the user
}

// Prepare describes a group of the job to the hosts of a subtree.
type Prepare struct {
	First int `json:"first,omitempty"` // number of the group's rank 0 in the job; Card.Group is the group's number
	// Preput has the pairs that are in the key-value space of the group from its start.
	Preput map[string]string `json:"preput,omitempty"`
	// Universe is the number of ranks that the hosts of the job have room for; 0: not known.
	Universe int `json:"universe,omitempty"`

	// Card is the job card, the description of the job that every rank gets. Only the fields that
	// are equal on all hosts are set.
	Card bootstrap.Card `json:"card"`
	Apps []App          `json:"apps"` // the programs of the job
	// Wrap is the command that is started in place of the programs of some ranks, in the form of
	// job.ParseWrapper; "": none.
	Wrap  string `json:"wrap,omitempty"`
	Plans []Plan `json:"plans"` // one for each host of the subtree, in the order of their indexes
	// BasePort is the port on which the first rank of each host listens. The other ranks of the
	// host have the ports after it, in order. If not all of these ports are free on a host, its
	// ranks listen on others from LowPort to HighPort. 0: the ranks of each host listen on any of
	// these.
	BasePort int `json:"base_port,omitempty"`
	// LowPort is the lowest port that ranks may listen on; 0: they may listen on any port.
	LowPort  int `json:"low_port,omitempty"`
	HighPort int `json:"high_port,omitempty"` // highest port that ranks may listen on, if LowPort is not 0
	// Interface is the interface, address or subnet that the user names, and on which the ranks
	// choose their addresses themselves. A host that does not have it refuses the job. "": the user
	// names none, or the hosts need not check it.
	Interface string `json:"interface,omitempty"`
	// UDP says that the UDP ports with the same numbers as the ranks' TCP ports must be free, too.
	UDP    bool `json:"udp,omitempty"`
	Memory bool `json:"memory,omitempty"` // the ranks of each host should share a memory file

	Stdin string `json:"stdin"` // the ranks that read standard input: rank0, all or none
	// Tag says that each line of output begins with a tag such as [3]: the rank that wrote it.
	Tag     bool `json:"tag,omitempty"`
	TagHost bool `json:"tag_host,omitempty"` // with Tag, the tag also has the host
	// OneSink says that gorun's stdout and stderr are one file, so the lines of both keep their
	// order.
	OneSink bool `json:"one_sink,omitempty"`
	// PerRank says that each Output must hold bytes of only one rank, because each rank's output
	// goes to files of its own.
	PerRank bool `json:"per_rank,omitempty"`
	// Tee says that, with PerRank, the lines also go to gorun's stdout and stderr, as without it.
	Tee     bool `json:"tee,omitempty"`
	OutTerm bool `json:"out_term,omitempty"` // gorun's stdout is a terminal
	ErrTerm bool `json:"err_term,omitempty"` // gorun's stderr is a terminal
	// Notify says that the job continues without failed ranks. So each rank gets a socket on which
	// failure notifications arrive.
	Notify bool `json:"notify,omitempty"`
	// Rebind says that a host may bind a rank to another core than planned, if another job uses the
	// planned one.
	Rebind bool `json:"rebind,omitempty"`
	// Grace is the time between SIGTERM and SIGKILL if an agent ends its ranks without an End from
	// gorun.
	Grace Duration `json:"grace"`
	Stats bool     `json:"stats,omitempty"` // Ended must have the figures of the ranks
	// Detail says that the ranks record each call with exact times (package record).
	Detail bool `json:"detail,omitempty"`
	// Segments says that the hosts remove shared memory of libfabric that ranks leave in /dev/shm.
	Segments bool `json:"segments,omitempty"`
	// RankFiles are the files that each rank of the group gets and gorun reads after its end: see above.
	RankFiles []RankFile `json:"rank_files,omitempty"`
	// Files are files that hosts may need: first the program of each app whose Staged is set, then
	// the files that the user names.
	Files []File `json:"files,omitempty"`
}

// RankFile is a file that each rank gets and gorun reads after the rank has ended.
type RankFile struct {
	Name string `json:"name"` // by which the rank finds it in its job card
	// Large says that the file may have more bytes than memory should hold. It is then on disk, in the
	// host's directory for temporary files. Otherwise it is in memory, if the system has memory files.
	Large bool `json:"large,omitempty"`
	// Host says that the host fills the file, and the rank does not inherit it: the file has what the host
	// reads from the rank's record (package trace).
	Host bool `json:"host,omitempty"`
}

// App is a program of the job.
type App struct {
	Name string `json:"name"` // as the user wrote it
	// Path is the absolute path of the executable on each host or, if Staged is set, on gorun's
	// host.
	Path string `json:"path"`
	// Staged is File.Hash of the executable in Prepare.Files. If it is "", each host has the
	// executable at Path.
	Staged string   `json:"staged,omitempty"`
	Argv   []string `json:"argv"` // arguments, with argument 0
	// Env has variables, NAME=VALUE, which override those in the environment of the host's agent.
	// If there are no other hosts, it is the whole environment.
	Env  []string `json:"env"`
	Wdir string   `json:"wdir"` // absolute path of the working directory
	// MaxProcs is GOMAXPROCS of each rank. 0: the rank's share of the cores, unless KeepProc is
	// set.
	MaxProcs int `json:"max,omitempty"`
	// KeepProc says that Env has GOMAXPROCS, because the user has set it. So the hosts do not set
	// it.
	KeepProc bool `json:"keep,omitempty"`
}

// Plan lists the ranks of a group on one host.
type Plan struct {
	Index int `json:"index"`
	// Address is the address on which the ranks listen. If it is "", they do not listen, or choose
	// their addresses themselves.
	Address string `json:"address,omitempty"`
	Ranks   []Rank `json:"ranks"` // ascending; a rank's index here is its local number
}

// Rank is a rank of a Plan.
type Rank struct {
	Rank int   `json:"rank"`           // number of the rank in the job: Prepare.First plus its rank in the group
	App  int   `json:"app"`            // index of the rank's program in Prepare.Apps
	CPUs []int `json:"cpus,omitempty"` // hardware threads that the rank is bound to; nil: it is not bound
}

// File is a file that hosts may need: the program of an app, or a file that the user wants to copy.
type File struct {
	Hash string `json:"hash"` // SHA-256, in hexadecimal digits
	Size int64  `json:"size"` // in bytes
	Mode uint32 `json:"mode"` // permission bits
	Name string `json:"name"` // name of the copy in the job's directory on the host
	// Path is the file's path on gorun's host. A host that has the same file at this path needs no
	// copy.
	Path string `json:"path,omitempty"`
}

// Prepared answers Prepare for a subtree.
type Prepared struct {
	Group int `json:"group,omitempty"`
	// Ports has the ports of the ranks of those hosts that do not use the ports from BasePort on.
	Ports []HostPorts `json:"ports,omitempty"`
	// Need has the hashes of the files that at least one host of the subtree lacks.
	Need   []string    `json:"need,omitempty"`
	Failed []HostError `json:"failed,omitempty"` // hosts that cannot run the job, and why

	// NoMemory lists the hosts that cannot make the memory file that their ranks should share, and
	// why. That does not end the job.
	NoMemory []HostError `json:"no_memory,omitempty"`
}

// HostPorts holds the TCP port of each rank of a host, in the order of Plan.Ranks.
type HostPorts struct {
	Index int   `json:"index"`
	Ports []int `json:"ports"`
}

// FilePart is the next part of a file, for the hosts of the subtree that need this file. Data may
// be empty.
type FilePart struct {
	Group int
	Hash  string // File.Hash
	Last  bool   // this is the last part of the last file, after which each subtree sends Staged
	Data  []byte
}

// FileCredit gives its receiver credit for this many bytes of FilePart: see FileWindow. Only
// package tree sends and receives it, on each connection.
type FileCredit struct{ Bytes int }

// Staged reports that each host of the subtree has the files that it needs, or has failed to get
// them.
type Staged struct {
	Group  int         `json:"group,omitempty"`
	Failed []HostError `json:"failed,omitempty"` // the hosts that have failed to get their files, and why
}

// Start makes the hosts start the ranks of a group.
type Start struct {
	Group int `json:"group,omitempty"`
	// Addrs has the address and port of each rank of the job. It is nil if ranks compute them from
	// Card.Hosts and BasePort, exchange them, or need none.
	Addrs []string `json:"addrs,omitempty"`
}

// Started reports which ranks of the subtree were started.
type Started struct {
	Group int           `json:"group,omitempty"`
	Ranks []StartedRank `json:"ranks"`
	// Failed describes a rank that could not be started: of several, the one with the lowest
	// number. It is nil if there is none.
	Failed *StartFailure `json:"failed,omitempty"`
}

// StartedRank describes the process of a rank.
type StartedRank struct {
	Rank int   `json:"rank"`
	PID  int   `json:"pid"`
	At   int64 `json:"at"`             // when the rank was started: ns since 1970, by the clock of its host
	CPUs []int `json:"cpus,omitempty"` // hardware threads that the rank is bound to; nil: those of the Plan
}

// StartFailure describes a rank that could not be started.
type StartFailure struct {
	Rank   int    `json:"rank"`
	Code   int    `json:"code"`   // the exit code that gorun should have
	Reason string `json:"reason"` // a line for the user
}

// Fence reports that every rank of the subtree is in its N-th PMI fence, counted from 1. If
// Prepare.Notify is set, a rank that has ended counts as being in every fence.
type Fence struct {
	Group int `json:"group,omitempty"`
	N     int `json:"n"`
	// Puts is what the ranks of the subtree have put into the key-value space since the fence
	// before.
	Puts map[string]string `json:"puts,omitempty"`
	// Waiting says that a rank that has not ended is in the fence, so the hosts must get Release.
	Waiting bool `json:"waiting,omitempty"`
}

// Release makes the hosts end the N-th fence of their ranks, because all ranks of the job are in
// it.
type Release struct {
	Group int `json:"group,omitempty"`
	N     int `json:"n"`
	// Puts is what all ranks of the job have put since the fence before.
	Puts    map[string]string `json:"puts,omitempty"`
	Waiting bool              `json:"waiting,omitempty"` // as in Fence, for the whole job
}

// Watch makes every host send its State of a group at once, and again whenever that State changes.
type Watch struct {
	Group int `json:"group,omitempty"`
}

// State is what gorun needs to know about the ranks of a group on a host to detect ranks that wait for ever for a rank that
// has ended. A host sends it after Watch. Without Watch, it begins to send it soon after one of its
// ranks has ended normally, or after all of them have ended.
type State struct {
	Group int `json:"group,omitempty"`
	Index int `json:"index"` // index of the host
	// Waiting is the number of the PMI fence in which a rank of the host waits; 0: no rank waits in
	// one.
	Waiting int  `json:"waiting"`
	Begun   bool `json:"begun"`  // a running rank of the host has called Init
	Left    int  `json:"left"`   // a rank of the host that has ended and was not in a fence; -1: there is none
	Absent  int  `json:"absent"` // a rank of the host that has ended and never called Init; -1: there is none
	Ended   bool `json:"gone"`   // all ranks of the host have ended; their output may still be on the way
}

// Inspect asks every host what its ranks do. A host answers with Inspected.
type Inspect struct {
	// N is the number of this Inspect, which is higher than that of each earlier one. The answers
	// have the same number.
	N int `json:"n"`
	// Stacks says that it also asks for the stacks of all goroutines, which the hosts send as
	// Stacks.
	Stacks bool `json:"stacks,omitempty"`
}

// Measure asks every host for the figures of its ranks, which from then on record each call. A host
// answers with Measured.
type Measure struct {
	N int `json:"n"` // number of this Measure, higher than that of each earlier one
	// Peers says that the figures contain the messages to each rank.
	Peers bool `json:"peers,omitempty"`
}

// Measured answers Measure for one host.
type Measured struct {
	N     int `json:"n"`     // Measure.N
	Index int `json:"index"` // index of the host
	// Figures of the ranks that have begun a record; Figures.Rank is the number in the job.
	Figures []record.Figures `json:"figures,omitempty"`
}

// Capture makes every host fill a file for each rank that runs. A host answers with Captured. It forgets the files
// of earlier Captures.
type Capture struct {
	File int      `json:"file"` // number of the files, for Fetch: FirstCapture or more, and higher than that of each earlier Capture
	Kind string   `json:"kind"` // CaptureTrace, or a kind of profile (wire.ProfileKinds)
	Time Duration `json:"time"` // how long the hosts or the ranks record; of profiles, only cpu takes time
}

// Captured answers Capture for one host: the files are complete.
type Captured struct {
	File  int `json:"file"`  // Capture.File
	Index int `json:"index"` // index of the host
}

const (
	// FirstCapture is the number of the files of the first Capture.
	FirstCapture = 1 << 16
	// CaptureTrace is the kind of a Capture for a trace: the files have what the ranks record (package trace).
	CaptureTrace = "trace"
)

// Stacks holds the stacks of all goroutines of a rank. It arrives before the Inspected of the
// rank's host, unless the rank takes too long to answer.
type Stacks struct {
	N    int // Inspect.N
	Rank int
	Data []byte // the stacks as text, at most wire.InspectMaxStacks bytes
}

// Inspected answers Inspect for one host. Each running rank of the host is in exactly one group.
type Inspected struct {
	N      int     `json:"n"`                // Inspect.N
	Index  int     `json:"index"`            // index of the host
	Groups []Group `json:"groups,omitempty"` // empty: no rank of the host runs
	// Last says what ranks did last that are in no call of package comm, or that have not answered, as far
	// as their records show it.
	Last []RankText `json:"last,omitempty"`
}

// RankText is a line of text about a rank.
type RankText struct {
	Rank int    `json:"rank"`
	Text string `json:"text"`
}

// Group is a set of ranks of a host that do the same. Exactly one of State and Process is set.
type Group struct {
	Ranks []int           `json:"ranks"`
	State *wire.RankState `json:"state,omitempty"` // the answer of each of the ranks; nil: they have not answered
	// Process is what the kernel reports about the process of each rank, if the ranks have not
	// answered, such as "sleep sleeps in hrtimer_nanosleep".
	Process string `json:"process,omitempty"`
	// NoAnswer says that the ranks have called comm.Init, so they should have answered, but have
	// not.
	NoAnswer bool `json:"mute,omitempty"`
}

// Request is a PMI-1 request of a rank that only gorun can answer: to publish, look up or unpublish
// the name of a service.
type Request struct {
	Rank int    `json:"rank"` // the rank that has sent the request
	Line []byte `json:"line"` // the line of the request
}

// Spawn is a rank's request to start processes as a new group. If the request is malformed, the host
// answers it itself. A rank has at most one Request or Spawn without an answer.
type Spawn struct {
	Rank    int        `json:"rank"` // the rank that has sent the request
	Request wire.Spawn `json:"request"`
}

// Dismiss makes the hosts forget a group that they have prepared and that will not start.
type Dismiss struct {
	Group int `json:"group"`
}

// Reply answers a Request or a Spawn.
type Reply struct {
	Rank int    `json:"rank"` // the field Rank of the Request or Spawn
	Line []byte `json:"line"` // the line for the rank
}

// Merged is the Stream of an Output that may hold lines of several ranks of a host, or lines of
// gorun itself.
const Merged = -1

// Output is what ranks of a host have written. With Stream Merged, it ends with the end of a line,
// unless Mid is set. Otherwise it may end anywhere, and Mid is not set.
type Output struct {
	Index  int  // index of the host
	Group  int  // the group of the ranks that have written Data
	Stderr bool // the ranks have written Data to stderr; false: to stdout, or to either if both are one file
	Stream int  // the rank in the group that has written Data; Merged: any ranks of the group on the host, or gorun
	Mid    bool // Data does not end with the end of a line; the rest of the line may follow in a later Output
	Data   []byte
}

// Credit gives its receiver credit for this many bytes of Output: see Window.
type Credit struct{ Bytes int }

// OutputClosed reports that the reader of gorun's stdout, or stderr, has closed the pipe. The hosts
// then close their ends of the ranks' pipes for it, so that the ranks' writes fail with EPIPE and
// cause SIGPIPE.
type OutputClosed struct {
	Stderr bool `json:"stderr,omitempty"` // the pipe is stderr; false: stdout
}

// Stdin is the next part of standard input, for the ranks of the subtree that read it. Empty Data
// means the end of the input.
type Stdin struct{ Data []byte }

// StdinCredit gives its receiver credit for this many bytes of Stdin: see Window.
type StdinCredit struct{ Bytes int }

// Signal makes the hosts send a signal to the process group of every rank, except SIGQUIT to ranks
// that have called comm.Init.
type Signal struct {
	Signal int `json:"signal"` // number of the signal
}

// RanksFailed reports to the ranks of a group that ranks have failed, in a job that continues without
// them.
type RanksFailed struct {
	Group  int    `json:"group,omitempty"`  // the group that gets the report
	JobID  string `json:"job_id,omitempty"` // job id of the group whose ranks have failed; "": the same group
	Ranks  []int  `json:"ranks"`            // ranks in that group
	Reason string `json:"reason"`           // how these ranks have failed, for errors in the other ranks
}

// Aborted reports that a rank has called Abort or has broken the PMI-1 protocol.
type Aborted struct {
	Rank int `json:"rank"`
	PID  int `json:"pid,omitempty"` // pid of the rank; 0: not known yet
	Code int `json:"code"`          // the exit code that gorun should have
	// Reason says why the rank called Abort, or how it broke the protocol; "": it gave no reason.
	Reason string `json:"reason"`
	Broken bool   `json:"broken,omitempty"` // the rank has broken the PMI-1 protocol; false: it has called Abort

	// Consequence is set if the rank says that it called Abort because another rank had failed.
	Consequence bool `json:"consequence,omitempty"`
	// AfterEnd says that the rank had already got SIGTERM or SIGKILL, because its host had begun to
	// end the ranks.
	AfterEnd bool `json:"after_end,omitempty"`
}

// Exited reports a rank that has not ended normally. A rank has ended normally if it exited with
// code 0 and had called Finalize, or had never called Init. A rank that has ended normally is
// reported only in Ended.
type Exited struct {
	Exit
}

// Exit describes how a rank ended.
type Exit struct {
	Rank   int   `json:"rank"`
	PID    int   `json:"pid"`
	Code   int   `json:"code,omitempty"`   // exit code of the rank; 0 if a signal ended it
	Signal int   `json:"signal,omitempty"` // signal that ended the rank; 0: none
	At     int64 `json:"at"`               // when the rank ended: ns since 1970, by the clock of its host
	Early  bool  `json:"early,omitempty"`  // the rank had called Init and not Finalize
	Final  bool  `json:"final,omitempty"`  // all ranks of the host have ended, this one as the last
	Joined bool  `json:"joined,omitempty"` // the rank had called Init
	// Memory says why SIGKILL may have ended the rank: a text about memory that has run out; "": no
	// such reason is known.
	Memory string `json:"memory,omitempty"`
	Late   bool   `json:"late,omitempty"` // SIGKILL ended the rank, after the grace period of End was over
	// Stuck says that the process has not ended after SIGKILL, probably because it waits in the
	// kernel. The host no longer waits for it.
	Stuck bool `json:"stuck,omitempty"`

	// Last says what a rank that a signal has ended did last, as far as its record shows it; "": not
	// known.
	Last string `json:"last,omitempty"`

	Usage *Usage `json:"usage,omitempty"` // nil: not known
	// Account is what the rank has reported in Finalize about its messages; nil: not known.
	Account *wire.Account `json:"account,omitempty"`

	// From the next fields gorun finds the rank whose failure caused the others. AfterEnd: the host
	// had begun to end its ranks before this rank ended. The other two describe this rank at the
	// moment when the first rank of its host failed, or when its host began to end its ranks.
	// KillPending: another process had sent this rank SIGKILL, but the rank had not ended yet.
	// Exiting: the rank was in exit(2), or a signal was ending it. Both may be false if that was
	// not known.
	AfterEnd    bool `json:"after_end,omitempty"`
	KillPending bool `json:"kill_pending,omitempty"`
	Exiting     bool `json:"dying,omitempty"`
}

// Usage is the resource usage of a rank and of its child processes that it has waited for.
type Usage struct {
	User   Duration `json:"user"`   // CPU time in user mode
	System Duration `json:"system"` // CPU time in kernel mode
	MaxRSS int64    `json:"rss"`    // peak resident memory of the largest of these processes, in bytes
}

// Lost reports that the connection with an agent has ended, or that the agent no longer answers.
// First is the index of the agent's host. The Count-1 hosts with the next indexes are below this
// agent in the tree, so gorun cannot reach them any more.
type Lost struct {
	First, Count int
	Cause        string // a line for the user
}

// Log is a line for the user from a host.
type Log struct {
	Index int    `json:"index"` // index of the host
	Line  string `json:"line"`
}

// End makes the hosts end every rank of the subtree, or every rank of one group. Idle ranks get SIGTERM at once, and busy ranks
// after at most Linger. Ranks that still run after Linger and Grace get SIGKILL. If Grace is 0, all
// ranks get SIGKILL at once. A second End can only make SIGKILL come earlier.
type End struct {
	Grace Duration `json:"grace"`
	// Linger is how long a busy rank may continue before it gets SIGTERM, because it may be about
	// to write an error message and end by itself. The grace period begins after Linger.
	Linger Duration `json:"linger,omitempty"`
	// Except is a rank that gets no SIGTERM, because it called Abort and is about to end by itself;
	// -1: there is none.
	Except int `json:"except"`
	// Asked says that the ranks get no SIGTERM, because another process has sent it to them
	// already.
	Asked bool `json:"asked,omitempty"`
	// Failed says that a rank or a host has failed, so that no barrier of the ranks will end.
	Failed bool `json:"failed,omitempty"`
	// Only is the number of the group whose ranks are to end; 0: the ranks of all groups. Group 0
	// never ends alone.
	Only int `json:"only,omitempty"`
}

// Ended reports that all ranks of a group in the subtree have ended, and that all their output was sent before
// it.
type Ended struct {
	Group int    `json:"group,omitempty"`
	Exits []Exit `json:"exits"` // one for each rank of the subtree that was started
	// Tails has the last lines of stderr of ranks that have not ended normally and have written
	// such lines.
	Tails []Tail `json:"tails,omitempty"`
	// Figures of the ranks that have begun a record, if Prepare.Stats is set.
	Figures []record.Figures `json:"figures,omitempty"`
}

// Tail holds the last lines that a rank wrote to stderr.
type Tail struct {
	Rank  int      `json:"rank"`
	Lines []string `json:"lines"`
}

// Fetch asks a host for bytes of a file of a rank: at most MaxPart bytes from Offset on. If the file is one of
// Prepare.RankFiles, all ranks of the rank's group on the host have ended.
type Fetch struct {
	Index  int   `json:"index"` // index of the host
	Rank   int   `json:"rank"`
	File   int   `json:"file"` // index in Prepare.RankFiles, or Capture.File
	Offset int64 `json:"offset"`
}

// Part answers a Fetch. If it has fewer than MaxPart bytes, the file ends with them, and the host has
// closed the file.
type Part struct {
	Index int // Fetch.Index
	Rank  int // Fetch.Rank
	File  int // Fetch.File
	// Failed says that the file cannot be read. Data is then the reason, a line for the user.
	Failed bool
	Data   []byte
}

// AskTime asks a host for the time of its monotonic clock.
type AskTime struct {
	Index int `json:"index"` // index of the host
}

// Time answers an AskTime.
type Time struct {
	Index int      `json:"index"` // AskTime.Index
	Now   Duration `json:"now"`   // the host's monotonic clock
}

// Bye makes an agent end. The agent first sends Bye to its children, and last to its parent.
type Bye struct{}
