package tree

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// Output goes from window to window:
//
//	procs ─► Node.Output ─► source ─► forward ─► parent's link ─► source ─► … ─► Up
//	           ▲   window      │ ▲        window
//	           └───────────────┘ └────── Credit ──────────┘
//
// A source holds the output that its subtree has sent and that has no credit yet, at most proto.Window
// bytes. It gets credit when forward has passed the output on, for which forward needs credit from the
// parent; at the root, when gorun has consumed the output. So a node needs one window of memory for
// each subtree and one for its parent.

// output is the state of the output that a node passes on.
type output struct {
	credit  int        // bytes that may still be sent to the parent; not used at the root
	ready   []*subtree // subtrees with output in their source, in the order in which forward serves them
	closed  [2]bool    // the reader of stdout, of stderr has closed it
	dropAll bool       // all output is dropped
}

// source holds the output of one subtree.
type source struct {
	queue []proto.Output
	held  int // cost of the output that has come and has no credit yet; at most proto.Window
	owed  int // part of held for which credit may be given
}

// window bounds the output of the own process manager.
type window struct {
	mu     sync.Mutex // guards the following fields
	more   sync.Cond
	room   int     // bytes that the process manager may still pass to Node.Output
	closed [2]bool // the reader of stdout, of stderr has closed it
	ended  bool    // the node has ended
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

// take blocks until there is room for n bytes.
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

// give gives back n bytes.
func (w *window) give(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room += n
	w.more.Broadcast()
}

// set runs f under the lock and wakes all waiters.
func (w *window) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	w.more.Broadcast()
}

// Output passes on what the ranks of the own host have written. It copies Data, and blocks while gorun
// is behind. After OutputClosed its error wraps EPIPE.
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

// cut takes as much data as one Output may hold, whole lines if possible.
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

// Consumed gives back an Output that Up has got. At an agent it does nothing.
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

// take handles Output of a subtree.
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
	return nil
}

// forward passes on as much Output as the parent's credit allows, one Output of each subtree in turn.
func (n *Node) forward() {
	for len(n.ready) > 0 {
		m := n.ready[0]
		o := m.source.queue[0]
		if n.parent != nil {
			if cost(o) > n.credit {
				return
			}
			n.credit -= cost(o)
		}
		n.ready = n.ready[1:]
		m.source.queue[0] = proto.Output{}
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
	if n.endHeld {
		n.sendEnded()
	}
}

// credited gives credit for Output that was passed on or dropped.
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

// closeOutput drops the output whose reader has closed it.
func (n *Node) closeOutput(g proto.OutputClosed) {
	kind := kindOf(proto.Output{Stderr: g.Stderr})
	n.closed[kind] = true
	n.window.set(func() { n.window.closed[kind] = true })
	n.dropQueued(func(o proto.Output) bool { return kindOf(o) == kind })
}

// dropOutput drops all output, queued and future.
func (n *Node) dropOutput() {
	n.dropAll = true
	n.window.set(func() { n.window.ended = true })
	n.flowControl.end()
	n.dropQueued(func(proto.Output) bool { return true })
}

// dropQueued drops the queued output that drop selects.
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
			return true
		})
		if len(m.source.queue) > 0 {
			n.ready = append(n.ready, m)
		}
		n.credited(m, c)
	}
}
