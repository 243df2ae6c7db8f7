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
// A transport reports a process that dies, but not a host that no longer answers: TCP retransmits
// for about a quarter of an hour. So the engine also learns of failed ranks from the launcher, and
// from the agreement on failures (package internal/mpi/agree).
//
// The engine marks a reported rank as failed for good, whether the rank is dead or not. If the rank
// is alive, the transport of this rank refuses its operations, as far as the transport can
// disconnect a single peer. So that rank in turn takes this rank as failed. If a rank gets a report
// of its own failure, its engine fails, because the other ranks have the same report.
//
// The goroutine of failureLoop is blocked in a Read of the launcher's stream, and takes the lock
// only for a report, so it adds no cost to calls.

// lossError is the error of operations with a rank that MarkFailed or the launcher has reported as
// failed.
type lossError struct {
	rank   int    // world rank of the rank that has failed
	reason string // text of the report; may be empty
}

// Error returns a text that names the rank and, if there is one, the reason.
func (l *lossError) Error() string {
	if l.reason == "" {
		return fmt.Sprintf("rank %d of the world failed", l.rank)
	}
	return fmt.Sprintf("rank %d of the world failed: %s", l.rank, l.reason)
}

// Unwrap returns ErrProcFailed.
func (l *lossError) Unwrap() error { return ErrProcFailed }

// errShutdownCancelled is the cause with which Engine.Close cancels the context.Context of its
// Shutdown calls, so that they no longer wait for other ranks.
var errShutdownCancelled = errors.New("a rank failed while this one left")

// shutdownGrace is how long the Shutdown calls of Engine.Close continue at most after a failure
// that could keep them from ending; see Engine.close and MarkFailed. They do not end at once,
// because the other ranks may still need them.
const shutdownGrace = time.Second

// failureLoop reads the launcher's reports of failed ranks, and marks these ranks as failed. It
// ends when Close closes the file, and Close waits for its end. It also ends when the launcher has
// closed the stream, at a malformed or incomplete line, or at another error of a read. Such a line
// or error makes the engine fail, because the engine no longer knows which ranks have failed.
//
// Reports about ranks of other jobs concern other engines of the process: failureLoop only passes them
// to reported, which is Config.Reported.
func (e *Engine) failureLoop(reported func(job string, ranks []int, reason string)) {
	defer e.failureReader.Done()
	lines := bufio.NewReaderSize(e.launcher, wire.FailuresMaxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, os.ErrClosed) || errors.Is(err, io.EOF) && len(line) == 0 {
			return // Close was called, or the launcher has ended, which other code detects
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			err = wire.ErrFailuresLong
		}
		var job, reason string
		var ranks []int
		if err == nil {
			job, ranks, reason, err = wire.ParseFailures(line, e.size)
		}
		if err != nil {
			e.mu.Lock()
			e.fail(nil, fmt.Errorf("report of the launcher: %w", err))
			e.mu.Unlock()
			return
		}
		if job == "" {
			e.MarkFailed(reason, ranks...)
		}
		if reported != nil {
			reported(job, ranks, reason)
		}
	}
}

// MarkFailed marks world ranks as failed: operations with these ranks that are under way, and later
// ones, end with ErrProcFailed and the reason. For a rank that was marked before, the first reason
// stays. If this rank is one of ranks, the engine fails. Once Close has closed the engine,
// MarkFailed only makes the Shutdown calls of Close end after shutdownGrace. MarkFailed does not
// block.
func (e *Engine) MarkFailed(reason string, ranks ...int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		if e.cancelShutdown != nil {
			// The call has no effect if the Shutdown calls have ended by then.
			time.AfterFunc(shutdownGrace, e.cancelShutdown)
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
	// The goroutine that sleeps then polls, and the poll ends the operations in flight with the ranks.
	e.wakeSleeper()
	e.poll()
}

// drain reads the messages that have arrived, because the program can still receive what a failed
// rank has sent before its failure. The number of polls is limited, because other ranks may send
// for ever. While drain polls, no stalled request continues, and no stream starts: that would take
// long, and Engine.progress would count it, so drain would not end early. Afterwards drain retries
// the stalled requests once.
func (e *Engine) drain() {
	e.draining = true
	for range 100 {
		e.readAll()
		if e.progress() == 0 {
			break
		}
	}
	e.draining = false
	e.retry()
}

// markFailed marks one peer as failed. If the transport has reported the end of the peer before,
// the error with the new reason replaces that of the transport, because the launcher knows better
// why the peer has ended.
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

// disconnect makes the transport drop its operations and messages with a peer, if the transport can
// disconnect a single peer.
func (e *Engine) disconnect(peer int32) {
	if r := e.peers[peer].rail; r != nil && r.disconnect != nil {
		// Disconnect fails only if there is no such peer or the endpoint is closed.
		_ = r.disconnect.Disconnect(transport.Addr(peer))
	}
}

// cannotDisconnect reports whether a peer is marked as failed, and its transport cannot disconnect
// it. Operations in flight with such a peer may never end. It returns false if peer is negative,
// which stands for any source.
func (e *Engine) cannotDisconnect(peer int32) bool {
	return peer >= 0 && e.peers[peer].markedFailed && e.peers[peer].rail.disconnect == nil
}

// Failed returns the world ranks that this rank knows to have failed. It leaves out ranks that have
// shut down in good order.
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

// Gone returns the error of operations with a world rank that has ended, by a failure or in good
// order. It returns nil if this rank does not know that the rank has ended, if it is this rank
// itself, or if the engine of this rank has failed.
func (e *Engine) Gone(rank int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.endedErr(int32(rank))
}

// endedErr is Gone for a caller that holds the lock.
func (e *Engine) endedErr(rank int32) error {
	if int(rank) == e.rank || e.fatal != nil {
		return nil // after a failure of this engine, peer.err does not say that the peer has ended
	}
	return e.peers[rank].err
}

// Absent reports, for each of the world ranks in ranks, whether Gone returns an error.
func (e *Engine) Absent(ranks []int) []bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	gone := make([]bool, len(ranks))
	for i, r := range ranks {
		gone[i] = e.endedErr(int32(r)) != nil
	}
	return gone
}

// Acknowledge records the members of the group that this rank knows to have ended. Receives from
// any source then no longer fail because of these members (MPIX_Comm_failure_ack of ULFM).
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

// Acknowledged returns the ranks in the group of the members that calls of Acknowledge have
// recorded.
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

// unacknowledged returns the error of a member of the group that has failed and that Acknowledge
// has not recorded; nil: there is none.
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
