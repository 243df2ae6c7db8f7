package engine

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Ranks that the launcher or other ranks report as failed
//
//	launcher ── line ──► newsLoop ──┐
//	                                ├─► giveUp ──► end         all that waits for it
//	ranks that agree ► MarkFailed ──┘      └─────► Disconnect  all that the transport has
//
// A transport reports a process that dies, but not a host that no longer answers:
// tcp sends to it again for a quarter of an hour. The engine gives a reported rank up
// for good, whether it is dead or not. If it lives, the transport refuses it, and it
// takes us for dead in turn. If a rank is reported to itself, its engine fails: the
// others have got the same report.
//
// The reader sleeps in the runtime's poller, and takes the lock only for a report, so
// that it adds no cost to calls.

// lossError is the error of a rank that was reported as failed.
type lossError struct {
	rank   int // world rank
	reason string
}

// Error names the rank and the reason.
func (l *lossError) Error() string {
	if l.reason == "" {
		return fmt.Sprintf("rank %d of the world failed", l.rank)
	}
	return fmt.Sprintf("rank %d of the world failed: %s", l.rank, l.reason)
}

// Unwrap makes it an ErrProcFailed.
func (l *lossError) Unwrap() error { return ErrProcFailed }

// errLate is the cause with which Close stops waiting for other ranks.
var errLate = errors.New("a rank failed while this one left")

// lateGrace is how long Close still waits for the transports' Shutdown after it has
// learned that a rank has failed. The other ranks may need this rank meanwhile.
const lateGrace = time.Second

// newsLoop reads the launcher's reports. It ends when Close closes the file, and Close
// waits for it. If a line is malformed the engine fails: it cannot know any more which
// ranks have failed.
func (e *Engine) newsLoop() {
	defer e.listening.Done()
	lines := bufio.NewReaderSize(e.launcher, wire.FailuresMaxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, os.ErrClosed) || errors.Is(err, io.EOF) && len(line) == 0 {
			return // at Close, or the launcher has ended: others notice that
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			err = wire.ErrFailuresLong
		}
		var ranks []int
		var reason string
		if err == nil {
			ranks, reason, err = wire.ParseFailures(line, e.size)
		}
		if err != nil {
			e.mu.Lock()
			e.fail(nil, fmt.Errorf("report of the launcher: %w", err))
			e.mu.Unlock()
			return
		}
		e.MarkFailed(reason, ranks...)
	}
}

// MarkFailed gives world ranks up: operations with them that are under way and later
// ones end with ErrProcFailed and the reason. A rank that is given up already
// stays so. It does not block.
func (e *Engine) MarkFailed(reason string, ranks ...int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		if e.late != nil {
			time.AfterFunc(lateGrace, e.late) // does nothing when it comes late
		}
		return
	}
	e.drain()
	for _, r := range ranks {
		if r != e.rank {
			e.giveUp(int32(r), reason)
		}
	}
	for _, r := range ranks {
		if r == e.rank {
			e.fail(nil, &lossError{r, reason})
		}
	}
	e.rouse() // what the transport had with them ends at its next poll
	e.poll()
}

// drain takes what has come already: what a rank sent before it died can still be
// received. The number of reads is limited, because others may never stop sending.
func (e *Engine) drain() {
	for range 100 {
		e.readAll()
		if e.progress() == 0 {
			return
		}
	}
}

// giveUp is MarkFailed for a peer. If the transport has reported the peer's end before, the
// new reason replaces the transport's, since the launcher knows better why.
func (e *Engine) giveUp(peer int32, reason string) {
	p := &e.peers[peer]
	if p.givenUp || e.fatal != nil {
		return
	}
	p.givenUp = true
	why := &lossError{int(peer), reason}
	if p.err == nil || p.left {
		e.end(peer, why, false)
	} else {
		p.err = why
	}
	e.cut(peer)
}

// cut drops what the transport has with a peer, if it can.
func (e *Engine) cut(peer int32) {
	if r := e.peers[peer].rail; r != nil && r.cut != nil {
		_ = r.cut.Disconnect(transport.Addr(peer)) // it fails only for a peer that does not exist
	}
}

// clings reports whether a peer is given up that its transport cannot disconnect.
func (e *Engine) clings(peer int32) bool {
	return peer >= 0 && e.peers[peer].givenUp && e.peers[peer].rail.cut == nil
}

// Failed returns the world ranks that are known to have failed.
func (e *Engine) Failed() []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	var ranks []int
	for i := range e.peers {
		if e.peers[i].err != nil && !e.peers[i].left {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

// Gone returns why a world rank has ended; nil: it has not, or it is this rank, or this
// rank itself has failed.
func (e *Engine) Gone(rank int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.lost(int32(rank))
}

// lost is Gone for a caller that holds the lock.
func (e *Engine) lost(rank int32) error {
	if int(rank) == e.rank || e.fatal != nil {
		return nil // if this rank has failed, the others have not
	}
	return e.peers[rank].err
}

// Absent reports for each of the world ranks whether it has ended, in good order or not.
func (e *Engine) Absent(ranks []int) []bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	gone := make([]bool, len(ranks))
	for i, r := range ranks {
		gone[i] = e.lost(int32(r)) != nil
	}
	return gone
}

// Acknowledge makes receives from any source ignore the members of the group that are
// known to have ended (MPIX_Comm_failure_ack of ULFM).
func (c *Context) Acknowledge() {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range c.size {
		if w := c.world(i); e.lost(w) != nil {
			if c.known == nil {
				c.known = make(map[int32]bool)
			}
			c.known[w] = true
		}
	}
}

// Acknowledged returns the ranks of the group that Acknowledge has found ended.
func (c *Context) Acknowledged() (ranks []int) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	for i := range c.size {
		if c.known[c.world(i)] {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

// unknown returns the error of a member that has failed and was not acknowledged; nil:
// there is none.
func (c *Context) unknown() error {
	e := c.e
	if e.failures == 0 {
		return nil
	}
	for i := range c.size {
		w := c.world(i)
		if p := &e.peers[w]; p.err != nil && !p.left && !c.known[w] {
			return p.err
		}
	}
	return nil
}
