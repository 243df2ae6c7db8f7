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
//	crew ─► Node.Output ─► source ─► forward ─► parent's link ─► source ─► … ─► Up
//	          ▲   window      │ ▲        window
//	          └───────────────┘ └────── Credit ──────────┘
//
// A source holds what its member has sent and has got no credit for, which is at
// most proto.Window. It gets credit when forward has passed it on, which needs
// credit from the parent; at the root, when gorun has consumed it. So all memory
// that a node needs for output is a window for each member and one for its parent.

// output is what waits to be passed on.
type output struct {
	credit int       // that the parent has given; at the root it is not used
	ready  []*member // whose source has something, each once: forward takes turns
	broken [2]bool   // nobody reads stdout, stderr
	mutes  bool      // nothing is passed on any more
}

// source is a member's output.
type source struct {
	queue []proto.Output
	held  int // cost of what has come and has not been credited; at most proto.Window
	owed  int // the part of held that may be credited
}

// window is the own crew's.
type window struct {
	mu   sync.Mutex // guards what follows
	more sync.Cond
	room int
	gone [2]bool // nobody reads stdout, stderr
	over bool
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
	for w.room < n && !w.over && !w.gone[kind] {
		w.more.Wait()
	}
	switch {
	case w.over:
		return errOver
	case w.gone[kind]:
		return fmt.Errorf("nobody reads the ranks' output: %w", syscall.EPIPE)
	}
	w.room -= n
	return nil
}

func (w *window) give(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room += n
	w.more.Broadcast()
}

func (w *window) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	w.more.Broadcast()
}

// Output takes what the ranks of the own host have written. It copies Data and
// blocks while gorun is behind. After OutputClosed its error wraps EPIPE.
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
		n.post(func() { n.fromCrew(n.members[0], piece) })
	}
	return nil
}

// cut takes as much as goes in one Output, whole lines if it can.
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

// Consumed gives back what Up has got. At an agent it does nothing.
func (n *Node) Consumed(o proto.Output) {
	if n.parent != nil {
		return
	}
	index, c := o.Index, cost(o)
	n.post(func() {
		if m := n.member(index); m != nil {
			n.credited(m, c)
		}
	})
}

// take takes Output of a member.
func (n *Node) take(m *member, o proto.Output) error {
	s := &m.source
	if len(o.Data) > maxOutput || s.held+cost(o) > proto.Window {
		return fmt.Errorf("%w: more output than there was credit for", proto.ErrFrame)
	}
	s.held += cost(o)
	n.count.queue(cost(o))
	if n.broken[kindOf(o)] || n.mutes {
		n.credited(m, cost(o))
		return nil
	}
	if len(s.queue) == 0 {
		n.ready = append(n.ready, m)
	}
	s.queue = append(s.queue, o)
	return nil
}

// forward passes on what there is credit for, one Output of each member in turn.
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
		n.sayEnded()
	}
}

// credited gives credit for Output that has been passed on, or dropped.
func (n *Node) credited(m *member, c int) {
	s := &m.source
	s.owed = min(s.owed+c, s.held)
	switch {
	case m.crew != nil:
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

// gone drops what nobody reads any more.
func (n *Node) gone(g proto.OutputClosed) {
	kind := kindOf(proto.Output{Stderr: g.Stderr})
	n.broken[kind] = true
	n.window.set(func() { n.window.gone[kind] = true })
	n.sift(func(o proto.Output) bool { return kindOf(o) == kind })
}

// silence drops all output, now and from now on.
func (n *Node) silence() {
	n.mutes = true
	n.window.set(func() { n.window.over = true })
	n.gate.end()
	n.sift(func(proto.Output) bool { return true })
}

func (n *Node) sift(drop func(proto.Output) bool) {
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
