package tree

import (
	"fmt"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// A file goes down the tree as fast as the slowest disk and link take it:
//
//	AwaitRoom ─► Do ─► link ─► agent ─► link ─► agent ─► crew ─► Stored
//	    ▲        gate    ▲      gate      ▲      gate              │
//	    └─────────┴──────┴── FileCredit ──┴── FileCredit ──┴───────┘
//
// A node holds its gate while some link, or its crew, has much to take still, and
// gives its parent no credit then. So it holds no more than filesAhead and
// proto.FileWindow for each of them, and its reader never waits: it finds Bye, or the
// end of the parent, however slow a disk is.
const (
	// filesAhead is how many bytes of files may wait on a link, or for the own crew,
	// before no more are asked for.
	filesAhead = 1 << 20
	// filesPaid is how many bytes of credit are given at once.
	filesPaid = proto.FileWindow / 4
)

// ahead is bytes of files that wait. Whoever has it guards it.
type ahead struct{ bytes int }

// add holds the gate from the byte on that is too many.
func (a *ahead) add(g *gate, n int) {
	was := a.bytes > filesAhead
	a.bytes += n
	switch is := a.bytes > filesAhead; {
	case is && !was:
		g.add(1)
	case was && !is:
		g.add(-1)
	}
}

// gate tells when every link, and the own crew, has room for more of a file. A link's
// mu may be held when its mu is taken, not the other way.
type gate struct {
	mu   sync.Mutex // guards what follows
	room sync.Cond
	full int // those with more than filesAhead, and parts that have not been routed yet
	over bool

	opened func() // when there is room again, under mu; nil: nobody wants to know. Set once, before all use
}

func (g *gate) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.full += n; g.full > 0 {
		return
	}
	g.room.Broadcast()
	if g.opened != nil {
		g.opened()
	}
}

func (g *gate) hasRoom() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.full == 0
}

// wait blocks until there is room, or stop says that there is no use.
func (g *gate) wait(stop func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.full > 0 && !g.over && !stop() {
		g.room.Wait()
	}
}

func (g *gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.over = true
	g.room.Broadcast()
}

// fileFlow is bytes of FilePart on a link; its mu guards them.
type fileFlow struct {
	sent int // and no credit has come for them
	owed int // they have come, and no credit was given for them
}

// start says whether n more may be sent, and counts them.
func (f *fileFlow) start(n int) bool {
	if f.sent >= proto.FileWindow {
		return false
	}
	f.sent += n
	return true
}

// owe notes what has come.
func (l *link) owe(n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flow.owed >= proto.FileWindow {
		return fmt.Errorf("%w: more of files than there was credit for", proto.ErrFrame)
	}
	l.flow.owed += n
	l.signal()
	return nil
}

// pay gives credit, where there is room; mu is held.
func (l *link) pay() {
	if l.flow.owed < filesPaid || l.mute != nil || !l.gate.hasRoom() {
		return
	}
	l.urgent = append(l.urgent, &frame{m: proto.FileCredit{Bytes: l.flow.owed}})
	l.flow.owed = 0
}

// dropFiles drops the parts that wait, when nobody waits for them any more; mu is held.
func (l *link) dropFiles() {
	l.bulk = slices.DeleteFunc(l.bulk, func(f *frame) bool {
		p, ok := f.m.(proto.FilePart)
		if ok {
			l.count.queue(-len(p.Data))
			l.files.add(l.gate, -len(p.Data))
		}
		return ok
	})
}

// paid takes credit.
func (l *link) paid(n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n <= 0 || n > l.flow.sent {
		return fmt.Errorf("%w: credit for %d bytes of files", proto.ErrFrame, n)
	}
	l.flow.sent -= n
	l.signal()
	return nil
}
