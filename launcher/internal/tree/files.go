package tree

import (
	"fmt"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// A file goes down the tree at the speed of the slowest disk and link:
//
//	AwaitRoom ─► Do ─► link ─► agent ─► link ─► agent ─► procs ─► Stored
//	    ▲                ▲                ▲                         │
//	    └────────────────┴── FileCredit ──┴─────── FileCredit ──────┘
//
// While a link or the process manager of a node still has more than filesAhead bytes to take, the
// node gives its parent no credit. So a node holds at most filesAhead + proto.FileWindow bytes for
// each link and for its process manager, and the reader of its parent's link never blocks. The
// reader notices Bye, or the end of the parent, even if a disk is slow.
const (
	// filesAhead is how many bytes of files may wait for a link or for the own process manager before the
	// node stops giving credit.
	filesAhead = 1 << 20
	// fileCreditAfter is the least number of bytes for which a node gives credit.
	fileCreditAfter = proto.FileWindow / 4
)

// ahead counts the bytes of files that wait for a link or the process manager. Its owner's lock
// guards it.
type ahead struct{ bytes int }

// add adds n bytes. It updates g when the count crosses filesAhead.
func (a *ahead) add(g *fileFlowControl, n int) {
	was := a.bytes > filesAhead
	a.bytes += n
	switch is := a.bytes > filesAhead; {
	case is && !was:
		g.add(1)
	case was && !is:
		g.add(-1)
	}
}

// fileFlowControl records whether every link and the own process manager has room for more of a
// file. Lock order: the mu of a link before that of its fileFlowControl.
type fileFlowControl struct {
	mu    sync.Mutex // guards full and ended
	room  sync.Cond
	full  int // number of links and process managers with more than filesAhead, and of parts that are not routed yet
	ended bool

	opened func() // called with mu held when there is room again; may be nil. Set before the first use
}

func (g *fileFlowControl) add(n int) {
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

func (g *fileFlowControl) hasRoom() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.full == 0
}

// wait blocks until there is room, the node has ended, or stop returns true.
func (g *fileFlowControl) wait(stop func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.full > 0 && !g.ended && !stop() {
		g.room.Wait()
	}
}

func (g *fileFlowControl) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	g.room.Broadcast()
}

// fileFlow counts the bytes of FilePart on a link. The link's mu guards it.
type fileFlow struct {
	sent int // sent, and not credited by the other side
	owed int // received, and not credited by this side
}

// start reports whether n more bytes may be sent, and counts them.
func (f *fileFlow) start(n int) bool {
	if f.sent >= proto.FileWindow {
		return false
	}
	f.sent += n
	return true
}

// countReceived counts received bytes. It returns an error if the sender had no credit for them.
func (l *link) countReceived(n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flow.owed >= proto.FileWindow {
		return fmt.Errorf("%w: more file data than there was credit for", proto.ErrFrame)
	}
	l.flow.owed += n
	l.signal()
	return nil
}

// giveFileCredit gives credit for received bytes if there is room. The caller holds mu.
func (l *link) giveFileCredit() {
	if l.flow.owed < fileCreditAfter || l.writeErr != nil || !l.flowControl.hasRoom() {
		return
	}
	l.urgent = append(l.urgent, &frame{m: proto.FileCredit{Bytes: l.flow.owed}})
	l.flow.owed = 0
}

// dropFiles drops the waiting parts of files, because after Bye no host needs them. The caller holds mu.
func (l *link) dropFiles() {
	l.bulk = slices.DeleteFunc(l.bulk, func(f *frame) bool {
		p, ok := f.m.(proto.FilePart)
		if ok {
			l.count.queue(-len(p.Data))
			l.files.add(l.flowControl, -len(p.Data))
		}
		return ok
	})
}

// gotFileCredit handles credit from the other side.
func (l *link) gotFileCredit(n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n <= 0 || n > l.flow.sent {
		return fmt.Errorf("%w: credit for %d bytes of files", proto.ErrFrame, n)
	}
	l.flow.sent -= n
	l.signal()
	return nil
}
