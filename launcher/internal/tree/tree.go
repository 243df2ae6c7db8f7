// Package tree connects gorun with its agents on other hosts, however many there
// are: each node of the tree speaks with its parent and its children only, merges
// what goes up and routes what goes down. gorun's root and every agent are the same
// Node; what it says is package proto.
//
//	         gorun, or the parent's link
//	   Up ▲                            │ Do, Consumed
//	┌─────┼────────────────────────────▼──────┐
//	│     │                            │ Node │   one goroutine, loop, which never
//	│   merge ◄── forward ◄─┐        route    │   blocks and owns all that is merged
//	│     ▲                 │          │      │   or routed
//	└─────┼─────────────────┼──────────┼──────┘
//	      │          queues of Output  ▼
//	      ├── own crew ─────┤      own crew       one window each
//	      ├── link ─────────┤      link: urgent, bulk ──► writer ──► child
//	      └── link ─────────┘      link: urgent, bulk ──► writer ──► child
//	            ▲ reader ◄── child
//
// A link is two goroutines and a timer. Its reader waits for loop, which never waits, so
// that what comes takes no memory but its own, and the end of a peer is seen at once;
// its writer takes from queues, so that no peer that is slow holds up another. What may
// stand in them is bounded, see queue.go.
//
// Messages of one host arrive in the order in which they were sent, but that Output,
// Stdin and FilePart, which may be many, are overtaken by all others than Ended and
// Bye, and State by all but these; of State that waits, the newest alone goes on.
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

// Stream is a byte stream to an agent, or to the parent. Read and Write may run at
// the same time; Close unblocks both.
type Stream interface {
	io.ReadWriteCloser
	// Cause says in one line why the stream ended; nil: it does not know. It is
	// asked after a Read has failed.
	Cause() error
}

// Open connects with the agent on a host and returns when it has greeted, or when
// the host has not answered within Launch.Timeout. ctx is for connecting alone; the
// stream outlives it.
type Open func(ctx context.Context, h hosts.Host) (Stream, error)

// Crew runs the ranks of the node's own host. It answers by the emit function that
// it was given, which does not block: Prepared, Staged, Started, Fence, State,
// Request, Aborted, Exited, StdinCredit, Log and Ended, each about itself alone. What
// its ranks write goes to Node.Output; each FilePart goes back by Node.Stored.
type Crew interface {
	// Do takes a message from gorun; it does not block. A Prepare has one plan, the
	// host's own. Where several files are staged, the part with Last set may be of
	// a file that is not needed here, and has no data then.
	Do(m proto.Message)
}

// Config is what a node is made of.
type Config struct {
	// Launch has the node's own host as Hosts[0]. At gorun's root Index may be -1:
	// that host is gorun's own and runs no ranks, and Crew is nil.
	Launch proto.Launch
	// Self is what the node says of itself in Up; not used where Crew is nil.
	Self proto.Agent
	// Crew makes the crew; nil: no ranks here. It is called once, by New.
	Crew func(n *Node, emit func(proto.Message)) Crew
	Open Open
	// Up takes what goes to gorun, or to the parent. One goroutine calls it, the
	// calls are in order, and it does not block; it may call Do and Consumed. At the
	// root each Output is to be given back by Consumed.
	Up func(m proto.Message)
	// OnPartialUp is told of hosts that have answered, or failed, before Up says so of all:
	// for somebody who waits. nil: nobody does.
	OnPartialUp func(some proto.Up)
}

// errOver is the error of what comes after a node's end.
var errOver = errors.New("the connection with gorun is over")

const (
	// outputCost is what an Output counts of a window beside its data, so that many
	// small ones take no more memory than a few large ones.
	outputCost = 64
	// maxOutput is how much data goes in one Output; messages that overtake it wait
	// for no more than that.
	maxOutput = 64 << 10
	// creditAfter is how many bytes of credit are given back at once. A sender that
	// lacks them has still room for the largest Output.
	creditAfter = proto.Window / 4

	launchLimit = time.Minute     // for the parent to say Launch
	endLimit    = 5 * time.Second // for the crew to end when the parent is lost
	byeLimit    = 2 * time.Second // for children to end after Bye

	// openExtra is for an Open that has got an answer, and sends gorun to the host. It
	// says by itself, and better, that nobody answers.
	openExtra = 5 * time.Minute

	defaultHeartbeat = 5 * time.Second
	defaultTimeout   = 30 * time.Second
	minHeartbeat     = 80 * time.Millisecond
)

// cost is what an Output takes of a window.
func cost(o proto.Output) int { return len(o.Data) + outputCost }

// sane puts what was left out, and refuses what no node can work with.
func sane(l proto.Launch) (proto.Launch, error) {
	if len(l.Hosts) == 0 || len(l.Hosts) > hosts.Limit || l.Index < -1 || l.Index > hosts.Limit-len(l.Hosts) {
		return l, fmt.Errorf("%w: Launch of %d hosts from %d on", proto.ErrFrame, len(l.Hosts), l.Index)
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

// part is hosts that follow on each other.
type part struct{ first, count int }

// split cuts hosts into at most n parts of nearly the same size.
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

// Depth is how many levels of agents a tree over count hosts has.
func Depth(count, radix int) int {
	levels := 0
	for ; count > 0; levels++ {
		count = (count+radix-1)/radix - 1
	}
	return levels
}
