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
// node gives its parent no credit. So a node holds about filesAhead + proto.FileWindow bytes at
// most for each link and for its process manager, and the reader of its parent's link never blocks.
// The reader notices Bye, or the end of the parent, even if a disk is slow.
const (
	// filesAhead is how many bytes of files may wait for a link, or for the own process manager,
	// while the node still gives its parent credit.
	filesAhead = 1 << 20
	// fileCreditAfter is the least number of bytes for which a node gives credit.
	fileCreditAfter = proto.FileWindow / 4
)

// ahead counts the bytes of files that wait for one link, or for the own process manager. link.mu
// guards that of a link; only loop uses that of the process manager.
type ahead struct{ bytes int }

// add adds n bytes, which may be negative. When the count rises above filesAhead, add counts its
// owner in g.full. When the count falls to filesAhead or less, add takes its owner out again.
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

// fileFlowControl records whether every link of a node, and its process manager, has room for more
// of a file. Lock order: link.mu before fileFlowControl.mu.
type fileFlowControl struct {
	mu   sync.Mutex // guards full and ended
	room sync.Cond  // signaled when full becomes 0 or ended is set
	// full is the number of links and process managers for which more than filesAhead bytes wait,
	// plus the number of FileParts that loop has not routed yet. 0: there is room.
	full  int
	ended bool // the node has ended

	// The method add calls opened, with mu held, when full is 0. opened may be nil, and must be set
	// before the first use.
	opened func()
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
	sent int // bytes sent for which the other side has not given credit yet
	owed int // bytes received for which this side has not given credit yet
}

// start reports whether n more bytes may be sent now. If so, it counts them as sent.
func (f *fileFlow) start(n int) bool {
	if f.sent >= proto.FileWindow {
		return false
	}
	f.sent += n
	return true
}

// countReceived counts n received bytes of a file. It returns an error if the other side had no
// credit for them.
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

// giveFileCredit queues credit for the received bytes of files if there are at least
// fileCreditAfter and the node has room for more. The caller holds mu.
func (l *link) giveFileCredit() {
	if l.flow.owed < fileCreditAfter || l.writeErr != nil || !l.flowControl.hasRoom() {
		return
	}
	l.urgent = append(l.urgent, &frame{m: proto.FileCredit{Bytes: l.flow.owed}})
	l.flow.owed = 0
}

// dropFiles drops the FileParts that wait in bulk, because after Bye no host needs them. The caller
// holds mu.
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

// gotFileCredit handles credit from the other side: this side may send n more bytes of files.
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
