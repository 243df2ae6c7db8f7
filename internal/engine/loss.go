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

// Ranks that are given up because somebody said so
//
//	launcher ── line ──► newsLoop ──┐
//	                                ├─► giveUp ──► end         all that waits for it
//	ranks that agree ──► Lose ──────┘      └─────► Disconnect  all that the transport has
//
// A transport tells of a process that dies, not of a host that no longer answers:
// tcp asks it again for a quarter of an hour. Who is named here is given up for
// good, whether it is dead or not; if it is not, the transport refuses it, and it
// takes us for dead in turn. A rank that is told of itself fails as a whole: the
// others have been told the same.
//
// The reader sleeps in the runtime's poller, and takes the lock when there is
// something to say: nothing is added to a call.

// lossError is the end of a rank of which the engine was told.
type lossError struct {
	rank   int
	reason string
}

// Error tells what was told.
func (l *lossError) Error() string {
	if l.reason == "" {
		return fmt.Sprintf("rank %d failed", l.rank)
	}
	return fmt.Sprintf("rank %d failed: %s", l.rank, l.reason)
}

// Unwrap makes it an ErrProcFailed.
func (l *lossError) Unwrap() error { return ErrProcFailed }

// errLate is the cause of a Close that waits no longer for a rank.
var errLate = errors.New("a rank failed while this one left")

// lateGrace is how long a Close that has come to the transports goes on for the
// sake of the others when it hears that a rank has failed.
const lateGrace = time.Second

// newsLoop reads what the launcher has to tell. It ends with the channel, which
// Close closes, and Close waits for it. What is no news is the end of the
// engine: it would not know any more whom to wait for.
func (e *Engine) newsLoop() {
	defer e.listening.Done()
	lines := bufio.NewReaderSize(e.launcher, wire.NewsMaxLine)
	for {
		line, err := lines.ReadSlice('\n')
		switch {
		case err == nil:
		case errors.Is(err, os.ErrClosed):
			return
		case errors.Is(err, io.EOF) && len(line) == 0:
			return // the launcher is gone, and will be missed by others
		case errors.Is(err, bufio.ErrBufferFull):
			err = wire.ErrNewsLong
		}
		var ranks []int
		var reason string
		if err == nil {
			ranks, reason, err = wire.ParseNews(line, e.size)
		}
		if err != nil {
			e.mu.lock()
			e.doom(fmt.Errorf("what the launcher tells: %w", err))
			e.mu.unlock()
			return
		}
		e.Lose(reason, ranks...)
	}
}

// Lose gives world ranks up: operations with them that are under way and later
// ones end with ErrProcFailed and the reason. A rank that is given up already
// stays so. It does not block.
func (e *Engine) Lose(reason string, ranks ...int) {
	e.mu.lock()
	defer e.mu.unlock()
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
			e.doom(&lossError{r, reason})
		}
	}
	e.rouse() // what the transport had with them ends at its next poll
	e.poll()
}

// drain takes what has come already: what a rank sent before it died can still be
// received.
func (e *Engine) drain() {
	for range drainReads {
		for i := range e.rails {
			e.rails[i].skip = 0
		}
		if e.progress() == 0 {
			return
		}
	}
}

// drainReads bounds it where others send without end.
const drainReads = 100

// giveUp is Lose for a peer. What the transport told of it before is true, but the
// launcher knows better why.
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
		_ = r.cut.Disconnect(transport.Addr(peer)) // it fails for a peer that there is not, and all are
	}
}

// clings says that a peer is given up of which the transport cannot be told.
func (e *Engine) clings(peer int32) bool {
	return peer >= 0 && e.peers[peer].givenUp && e.peers[peer].rail.cut == nil
}

// doom ends everything but the transports: this rank is of no further use. They
// are told to drop the others, which so hear of it.
func (e *Engine) doom(err error) {
	if e.fatal != nil || e.closed {
		return
	}
	e.endAll(nil, err)
	for i := range e.peers {
		e.cut(int32(i))
	}
	e.rouse()
}

// Failed returns the world ranks that are known to have failed.
func (e *Engine) Failed() []int {
	e.mu.lock()
	defer e.mu.unlock()
	var ranks []int
	for i := range e.peers {
		if e.peers[i].err != nil && !e.peers[i].left {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

// Gone says why a world rank can be reached no more; nil: it can, or is this one.
func (e *Engine) Gone(rank int) error {
	e.mu.lock()
	defer e.mu.unlock()
	if rank == e.rank || e.fatal != nil {
		return nil // the end of this one is not theirs
	}
	return e.peers[rank].err
}

// Absent says of world ranks whether they have ended, be it in good order.
func (e *Engine) Absent(ranks []int) []bool {
	e.mu.lock()
	defer e.mu.unlock()
	gone := make([]bool, len(ranks))
	for i, r := range ranks {
		gone[i] = r != e.rank && e.fatal == nil && e.peers[r].err != nil
	}
	return gone
}

// Acknowledge has receives from any source go on without those members of the
// group that are known to have ended (MPIX_Comm_failure_ack of ULFM).
func (c *Context) Acknowledge() {
	e := c.e
	e.mu.lock()
	defer e.mu.unlock()
	for i := range c.size {
		w := c.world(i)
		if int(w) == e.rank || e.fatal != nil || e.peers[w].err == nil {
			continue
		}
		if c.known == nil {
			c.known = make(map[int32]bool)
		}
		c.known[w] = true
	}
}

// Acknowledged gives the ranks of the group that Acknowledge was called for.
func (c *Context) Acknowledged() (ranks []int) {
	c.e.mu.lock()
	defer c.e.mu.unlock()
	for i := range c.size {
		if c.known[c.world(i)] {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

// unknown says why some member has failed that nobody has acknowledged; nil: there
// is none.
func (c *Context) unknown() error {
	e := c.e
	for i := range c.size {
		w := c.world(i)
		if p := &e.peers[w]; p.err != nil && !p.left && !c.known[w] {
			return p.err
		}
	}
	return nil
}
