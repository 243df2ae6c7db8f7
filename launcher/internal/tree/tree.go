// Package tree connects gorun with its agents on other hosts. Each node of the tree talks only to
// its parent and its children. It merges or passes on the messages that go up, and routes those
// that go down. gorun's root and every agent use the same Node. The messages are those of package
// proto.
//
//	         gorun, or the parent's link
//	   Up ▲                            │ Do, Consumed
//	┌─────┼────────────────────────────▼──────┐
//	│     │                            │ Node │   one goroutine, loop, which never
//	│   merge ◄── forward ◄─┐        route    │   blocks and owns all that is merged
//	│     ▲                 │          │      │   or routed
//	└─────┼─────────────────┼──────────┼──────┘
//	      │          queues of Output  ▼
//	      ├── own procs ────┤      own procs      one window each
//	      ├── link ─────────┤      link: urgent, bulk ──► writer ──► child
//	      └── link ─────────┘      link: urgent, bulk ──► writer ──► child
//	            ▲ reader ◄── child
//
// A window is the number of bytes, at most proto.Window, that a sender may send before the receiver
// gives it credit for more.
//
// A link has a reader goroutine, a writer goroutine and a timer. The reader hands each message to
// loop and waits until loop takes it. Because loop never blocks, the reader notices the end of the
// stream at once, and received messages need no queue. The writer takes messages from queues, so
// that a slow peer does not delay the others. The queues are bounded, see queue.go.
//
// The messages of one host arrive in the order in which they were sent, with two exceptions.
// Output, Stdin, FilePart, Stacks, Inspected, Measured, Part, Ended and Bye keep their order among each other,
// but all other messages may overtake them. State may overtake these nine, and all others may overtake
// State. If several States of a host wait, only the newest is sent.
package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// Stream is a byte stream to an agent, or to the parent. Read and Write may run at the same time.
// Close unblocks both.
type Stream interface {
	io.ReadWriteCloser
	// Cause returns in one line why the stream has ended; nil: not known. The node calls it after
	// a Read has failed.
	Cause() error
}

// Open connects with the agent on a host. It returns when the agent has sent its greeting, or with
// an error: for example, when the host has not answered within Launch.Timeout. ctx bounds only the
// connecting; the stream outlives it.
type Open func(ctx context.Context, h hosts.Host) (Stream, error)

// Procs is the process manager of the node's own host: it runs the ranks there. It answers by emit,
// an argument of Config.Procs, which does not block. It may emit Prepared, Staged, Started, Fence,
// State, Request, Spawn, Stacks, Inspected, Aborted, Exited, StdinCredit, Log, Ended, Part and Time, each about
// this host alone. It passes the output of its ranks to Node.Output. When it no longer needs the data of
// a FilePart, it calls Node.Stored.
type Procs interface {
	// Do takes a message from gorun. It does not block. A Prepare contains one plan, that of this
	// host. There is one for each group of ranks that runs on this host, and one of group 0. If gorun copies several files to the hosts, the FilePart with Last set may belong to a
	// file that this host does not need; then it has no data.
	Do(m proto.Message)
}

// Config configures a node.
type Config struct {
	// Launch describes the node and the hosts below it. Hosts[0] is the node's own host. At gorun's
	// root, Index may be -1: then gorun's own host runs no ranks, and Procs is nil.
	Launch proto.Launch
	// Self describes the node's own host in the message Up. It is not used if Procs is nil.
	Self proto.Agent
	// Procs makes the process manager. The node calls it once, while New or Serve makes the node.
	// nil: no ranks run on this host.
	Procs func(n *Node, emit func(proto.Message)) Procs
	Open  Open
	// Up takes the messages to gorun, or to the parent. One goroutine calls it, in order. It must
	// not block. It may call Do and Consumed. At the root, the program must give back each Output
	// by Consumed. Serve sets Up.
	Up func(m proto.Message)
	// OnPartialUp gets the hosts that have answered or failed since its last call, so that gorun
	// can show the progress. The message Up follows when all hosts have answered or failed. The
	// goroutine that calls Up calls it. It may be nil.
	OnPartialUp func(some proto.Up)
}

// errEnded is the error of Output after the node has ended, is about to end, or has lost its
// parent.
var errEnded = errors.New("the connection with gorun has ended")

const (
	// outputCost is how many bytes an Output counts in a window besides its data. It bounds the
	// memory that many small Outputs take.
	outputCost = 64
	// maxOutput is the largest amount of data in one Output. It bounds how long a message that
	// may overtake Output waits for the Output that is being written.
	maxOutput = 64 << 10
	// creditAfter is the least number of bytes of Output for which a node sends a child credit. A
	// sender that lacks less than this much credit can still send the largest Output.
	creditAfter = proto.Window / 4

	launchLimit = time.Minute     // time in which the parent must send Launch
	endLimit    = 5 * time.Second // time in which ranks must end after SIGKILL when the agent must end
	byeLimit    = 2 * time.Second // time in which children must end after Bye

	// openExtra is the time beyond Launch.Timeout that Open may take, because it may copy gorun to
	// the host. Open itself reports a host that does not answer, with a better message.
	openExtra = 5 * time.Minute

	defaultHeartbeat = 5 * time.Second
	defaultTimeout   = 30 * time.Second
	minHeartbeat     = 80 * time.Millisecond
)

// cost returns how many bytes an Output counts in a window.
func cost(o proto.Output) int { return len(o.Data) + outputCost }

// normalize fills in default values and bounds others. It refuses a Launch with which no node can
// work.
func normalize(l proto.Launch) (proto.Launch, error) {
	if len(l.Hosts) == 0 || len(l.Hosts) > hosts.Limit || l.Index < -1 || l.Index > hosts.Limit-len(l.Hosts) {
		return l, fmt.Errorf("%w: Launch with %d hosts from host %d on", proto.ErrFrame, len(l.Hosts), l.Index)
	}
	if l.Heartbeat <= 0 {
		l.Heartbeat = defaultHeartbeat
	}
	if l.Timeout <= 0 {
		l.Timeout = defaultTimeout
	}
	l.Heartbeat = min(max(l.Heartbeat, minHeartbeat), time.Hour)
	l.Timeout = min(l.Timeout, 24*time.Hour)
	l.Radix, l.AtOnce = max(l.Radix, 1), max(l.AtOnce, 1)
	l.AtOnce = min(l.AtOnce, len(l.Hosts))
	return l, nil
}

// part is a range of consecutive hosts.
type part struct{ first, count int }

// split divides hosts into at most n parts, whose sizes differ by at most one.
func split(p part, n int) []part {
	n = min(n, p.count)
	parts := make([]part, 0, n)
	for ; n > 0; n-- {
		size := (p.count + n - 1) / n
		parts = append(parts, part{p.first, size})
		p.first, p.count = p.first+size, p.count-size
	}
	return parts
}

// Depth returns the number of levels of agents in a tree over count hosts, besides gorun's own, if
// each node has at most radix children.
func Depth(count, radix int) int {
	levels := 0
	for ; count > 0; levels++ {
		count = (count+radix-1)/radix - 1
	}
	return levels
}
