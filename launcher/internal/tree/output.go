package tree

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// The way of output through a node. "window" stands where a sender waits for credit:
//
//	procs ─► Node.Output ─► source ─► forward ─► parent's link ─► source ─► … ─► Up
//	           ▲   window      │ ▲        window
//	           └───────────────┘ └────── Credit ──────────┘
//
// A source holds the output that a subtree has sent and for which the subtree has not got credit
// yet, at most proto.Window bytes. At an agent, the subtree gets credit when forward has passed its
// output on to the parent. For this, forward needs credit from the parent. At the root, the subtree
// gets credit when gorun has called Consumed for its output. So a node needs proto.Window bytes of
// memory for each subtree, and as much for its parent.

// output is the state of the output that a node passes on.
type output struct {
	credit  int        // bytes that may still be sent to the parent; not used at the root
	ready   []*subtree // subtrees with output in their source, in the order in which forward serves them
	closed  [2]bool    // [0]: the reader of the job's stdout has closed it; [1]: the same for stderr
	dropAll bool       // all output is dropped, because the node ends or the parent is lost
}

// source holds the output of one subtree that forward has not passed on yet.
type source struct {
	queue []proto.Output
	// queued and passed count the Outputs that were ever in queue, and those that have left it.
	queued, passed int64
	held           int // cost of the output that has come and has no credit yet; at most proto.Window
	owed           int // part of held that was passed on or dropped, for which credit is still to be sent
}

// window makes Node.Output block when the own process manager has passed proto.Window bytes of output
// to the node that the node has not passed on or dropped yet.
type window struct {
	mu     sync.Mutex // guards the following fields
	more   sync.Cond
	room   int     // bytes that the process manager may still pass to Node.Output
	closed [2]bool // the same as output.closed
	ended  bool    // the node has ended, is ending, or has lost its parent
}

func newWindow() *window {
	w := &window{room: proto.Window}
	w.more.L = &w.mu
	return w
}

func kindOf(o proto.Output) int {
	if o.Stderr {
		return 1
	}
	return 0
}

// take blocks until there is room for n bytes, and takes them from the room. kind is that of the
// output, see kindOf. take returns an error if the node ends or the reader of this kind of output has
// closed it.
func (w *window) take(n, kind int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.room < n && !w.ended && !w.closed[kind] {
		w.more.Wait()
	}
	switch {
	case w.ended:
		return errEnded
	case w.closed[kind]:
		return fmt.Errorf("the reader of the ranks' output has closed it: %w", syscall.EPIPE)
	}
	w.room -= n
	return nil
}

// give adds n bytes to the room and wakes the calls of take that wait.
func (w *window) give(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room += n
	w.more.Broadcast()
}

// set runs f with mu held, and wakes the calls of take that wait.
func (w *window) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	w.more.Broadcast()
}

// Output passes on what the ranks of the own host have written. It copies Data. It blocks while the
// window is full because gorun or a node on the way has not passed on earlier output. If the reader
// of stdout, or of stderr, has closed it (OutputClosed), Output returns an error for that stream
// that wraps EPIPE. When the node has ended or is ending, Output returns an error.
func (n *Node) Output(o proto.Output) error {
	data := o.Data
	for len(data) > 0 {
		piece := o
		piece.Data, data = cut(data)
		piece.Mid = o.Mid
		if len(data) > 0 {
			piece.Mid = piece.Data[len(piece.Data)-1] != '\n'
		}
		if err := n.window.take(cost(piece), kindOf(o)); err != nil {
			return err
		}
		piece.Data = slices.Clone(piece.Data)
		n.post(func() { n.fromProcs(n.subtrees[0], piece) })
	}
	return nil
}

// cut splits data into a piece that fits into one Output, and the rest. If data is too long for one
// Output, the piece ends with the last newline that fits, if there is one.
func cut(data []byte) (piece, rest []byte) {
	at := len(data)
	if at > maxOutput {
		at = bytes.LastIndexByte(data[:maxOutput], '\n') + 1
		if at == 0 {
			at = maxOutput
		}
	}
	return data[:at], data[at:]
}

// Consumed reports that gorun no longer needs an Output that Up has got, so that the child or
// process manager that has sent it gets credit. At an agent it does nothing.
func (n *Node) Consumed(o proto.Output) {
	if n.parent != nil {
		return
	}
	index, c := o.Index, cost(o)
	n.post(func() {
		if m := n.subtreeOf(index); m != nil {
			n.credited(m, c)
		}
	})
}

// take queues an Output that has come from a subtree. If the subtree had no credit for it, take
// returns an error.
func (n *Node) take(m *subtree, o proto.Output) error {
	s := &m.source
	if len(o.Data) > maxOutput || s.held+cost(o) > proto.Window {
		return fmt.Errorf("%w: more output than there was credit for", proto.ErrFrame)
	}
	s.held += cost(o)
	n.count.queue(cost(o))
	if n.closed[kindOf(o)] || n.dropAll {
		n.credited(m, cost(o))
		return nil
	}
	if len(s.queue) == 0 {
		n.ready = append(n.ready, m)
	}
	s.queue = append(s.queue, o)
	s.queued++
	return nil
}

// forward passes on as much Output as the parent's credit allows, one Output of each subtree in turn.
// Then it sends the Ended that have waited for the Output that is passed on now.
func (n *Node) forward() {
	for len(n.ready) > 0 {
		m := n.ready[0]
		o := m.source.queue[0]
		if n.parent != nil {
			if cost(o) > n.credit {
				break
			}
			n.credit -= cost(o)
		}
		n.ready = n.ready[1:]
		m.source.queue[0] = proto.Output{}
		m.source.passed++
		if m.source.queue = m.source.queue[1:]; len(m.source.queue) > 0 {
			n.ready = append(n.ready, m)
		} else {
			m.source.queue = nil
		}
		n.up(o)
		if n.parent != nil {
			n.credited(m, cost(o))
		}
	}
	for i := 0; i < len(n.groups); {
		if g := n.groups[i]; g.endHeld != nil && n.passed(g) {
			n.sendEnded(g)
			i = 0 // sendEnded may have removed the group
			continue
		}
		i++
	}
}

// credited accounts for c bytes of Output that were passed on or dropped. A child gets credit only
// when at least creditAfter bytes have gathered; the own process manager gets room at once.
func (n *Node) credited(m *subtree, c int) {
	s := &m.source
	s.owed = min(s.owed+c, s.held)
	switch {
	case m.procs != nil:
		n.window.give(s.owed)
	case s.owed < creditAfter && m.link != nil:
		return
	case m.link != nil:
		m.link.send(proto.Credit{Bytes: s.owed})
	}
	n.count.queue(-s.owed)
	s.held -= s.owed
	s.owed = 0
}

// closeOutput handles OutputClosed: it drops what is queued of the output to stdout, or to stderr,
// and what comes later.
func (n *Node) closeOutput(g proto.OutputClosed) {
	kind := kindOf(proto.Output{Stderr: g.Stderr})
	n.closed[kind] = true
	n.window.set(func() { n.window.closed[kind] = true })
	n.dropQueued(func(o proto.Output) bool { return kindOf(o) == kind })
}

// dropOutput drops all output, queued and future. It makes AwaitRoom return.
func (n *Node) dropOutput() {
	n.dropAll = true
	n.window.set(func() { n.window.ended = true })
	n.flowControl.end()
	n.dropQueued(func(proto.Output) bool { return true })
}

// dropQueued drops the queued output for which drop returns true, and gives credit for it.
func (n *Node) dropQueued(drop func(proto.Output) bool) {
	waiting := n.ready
	n.ready = nil
	for _, m := range waiting {
		c := 0
		m.source.queue = slices.DeleteFunc(m.source.queue, func(o proto.Output) bool {
			if !drop(o) {
				return false
			}
			c += cost(o)
			m.source.passed++
			return true
		})
		if len(m.source.queue) > 0 {
			n.ready = append(n.ready, m)
		}
		n.credited(m, c)
	}
}
