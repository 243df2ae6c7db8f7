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
//	launcher ── line ──► failureLoop ──┐                    ┌─► markEnded   requests and waits that need the rank
//	                                   ├─► Engine.markFailed┤
//	agreement ──► MarkFailed ──────────┘                    └─► Disconnect  the transport's operations with the rank
//
// A transport reports a process that dies, but not a host that no longer answers: tcp repeats its
// packets for a quarter of an hour. The engine marks a reported rank as failed for good, whether
// it is dead or not. If the rank lives, this rank's transport refuses it, and the rank then takes
// this rank for dead. If a rank gets a report of itself, its engine fails, because the other
// ranks have the same report.
//
// The goroutine of failureLoop sleeps in the runtime's poller, and takes the lock only for a
// report, so it adds no cost to calls.

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

// Unwrap returns ErrProcFailed.
func (l *lossError) Unwrap() error { return ErrProcFailed }

// errShutdownCancelled is the cause with which Close stops waiting for other ranks.
var errShutdownCancelled = errors.New("a rank failed while this one left")

// shutdownGrace is how long Close still waits for the transports' Shutdown after it has learned
// that a rank has failed. The other ranks may need this rank meanwhile.
const shutdownGrace = time.Second

// failureLoop reads the launcher's reports. It ends when Close closes the file, and Close waits
// for it. If a line is malformed the engine fails, because it no longer knows which ranks have
// failed.
func (e *Engine) failureLoop() {
	defer e.failureReader.Done()
	lines := bufio.NewReaderSize(e.launcher, wire.FailuresMaxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, os.ErrClosed) || errors.Is(err, io.EOF) && len(line) == 0 {
			return // Close, or the end of the launcher, which other parts detect
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

// MarkFailed marks world ranks as failed: operations with them that are under way and later ones
// end with ErrProcFailed and the reason. A rank that is marked already keeps its first reason.
// MarkFailed does not block.
func (e *Engine) MarkFailed(reason string, ranks ...int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		if e.cancelShutdown != nil {
			time.AfterFunc(shutdownGrace, e.cancelShutdown) // has no effect after the shutdown
		}
		return
	}
	e.drain()
	for _, r := range ranks {
		if r != e.rank {
			e.markFailed(int32(r), reason)
		}
	}
	for _, r := range ranks {
		if r == e.rank {
			e.fail(nil, &lossError{r, reason})
		}
	}
	e.wakeSleeper() // a poll ends the operations that the transport has in flight with the ranks
	e.poll()
}

// drain reads all messages that have arrived, because the program can still receive what a rank
// has sent before it died. The number of reads is limited, because other ranks may never stop
// sending.
func (e *Engine) drain() {
	for range 100 {
		e.readAll()
		if e.progress() == 0 {
			return
		}
	}
}

// markFailed is MarkFailed for one peer. If the transport has reported the end of the peer
// before, the new reason replaces the transport's, because the launcher knows better why the peer
// has ended.
func (e *Engine) markFailed(peer int32, reason string) {
	p := &e.peers[peer]
	if p.markedFailed || e.fatal != nil {
		return
	}
	p.markedFailed = true
	why := &lossError{int(peer), reason}
	if p.err == nil || p.left {
		e.markEnded(peer, why, false)
	} else {
		p.err = why
	}
	e.disconnect(peer)
}

// disconnect drops the transport's operations and messages with a peer, if the transport can
// disconnect a peer.
func (e *Engine) disconnect(peer int32) {
	if r := e.peers[peer].rail; r != nil && r.disconnect != nil {
		_ = r.disconnect.Disconnect(transport.Addr(peer)) // fails only for a peer that does not exist
	}
}

// cannotDisconnect reports whether a peer is marked as failed and its transport cannot disconnect
// it.
func (e *Engine) cannotDisconnect(peer int32) bool {
	return peer >= 0 && e.peers[peer].markedFailed && e.peers[peer].rail.disconnect == nil
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

// Gone returns the error of a world rank that has ended. It returns nil if the rank has not
// ended, if it is this rank, or if this rank itself has failed.
func (e *Engine) Gone(rank int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.endedErr(int32(rank))
}

// endedErr is Gone for a caller that holds the lock.
func (e *Engine) endedErr(rank int32) error {
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
		gone[i] = e.endedErr(int32(r)) != nil
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
		if w := c.world(i); e.endedErr(w) != nil {
			if c.acknowledged == nil {
				c.acknowledged = make(map[int32]bool)
			}
			c.acknowledged[w] = true
		}
	}
}

// Acknowledged returns the ranks of the group that Acknowledge has found ended.
func (c *Context) Acknowledged() (ranks []int) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	for i := range c.size {
		if c.acknowledged[c.world(i)] {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

// unacknowledged returns the error of a member that has failed and whose failure was not
// acknowledged, or nil.
func (c *Context) unacknowledged() error {
	e := c.e
	if e.failures == 0 {
		return nil
	}
	for i := range c.size {
		w := c.world(i)
		if p := &e.peers[w]; p.err != nil && !p.left && !c.acknowledged[w] {
			return p.err
		}
	}
	return nil
}
