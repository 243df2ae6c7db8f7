package tcp

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/transport"
)

// directConns is the largest number of connections of a domain for which progress calls recv on
// each. If there are more, progress first asks the poller which connections have input.
const directConns = 2

type completionQueue struct{ d *domain }

// Read first writes batches, because the caller may wait for the answers to these messages. Then it
// reads from the connections, handles the peers' reads and writes, and writes pending output. It
// returns messages and completions in c.
//
// Hot path: no allocation. If there is no input and no output, Read makes one system call for each
// connection, or a single one if there are more than directConns connections.
func (q *completionQueue) Read(c []transport.Completion) (int, error) {
	d := q.d
	if d.closed {
		return 0, transport.ErrClosed
	}
	d.done.Begin(c)
	d.progress()
	return d.done.End(), d.broken
}

func (d *domain) progress() {
	if d.links.hasResults.Load() {
		d.applyResults()
	}
	if d.loop.Waiting() {
		d.loop.Deliver(&d.done, d.self, d.drop)
	}
	d.round++
	if len(d.drained) > 0 {
		d.collect()
	}
	d.armed = false
	if d.batched {
		d.pushBatches()
	}
	if len(d.live) > directConns {
		d.pollReady()
	} else if n := len(d.live); n == 1 {
		d.live[0].poll()
	} else if n > 0 {
		// The two connections alternate in being polled first. Both are loaded from d.live before
		// the first poll, because a poll may remove its connection from d.live.
		first, second := d.live[d.round%2], d.live[(d.round+1)%2]
		first.poll()
		second.poll()
	}
	if len(d.outq) > 0 {
		d.pushAll()
	}
}

// pollReady polls the connections that have conn.more set, and the connections whose sockets have
// input. It does not block.
func (d *domain) pollReady() {
	if d.anyMore {
		d.pollMore()
	}
	n, err := d.poller.Now(d.events[:])
	if err != nil {
		return // the next Wait gets the error too, and returns it
	}
	for i := range n {
		if r := d.events[i].ID(); r >= 0 {
			if c := d.conns[r]; c.live >= 0 && c.polled != d.round {
				c.poll()
			}
		}
	}
}

// pollMore polls the connections that have conn.more set. Calls in successive Reads begin with
// different connections, because a Read may be full before the last connection is polled.
func (d *domain) pollMore() {
	for i := range d.live {
		if len(d.live) == 0 {
			break
		}
		if c := d.live[(int(d.round)+i)%len(d.live)]; c.more && c.polled != d.round {
			c.poll()
		}
	}
	d.anyMore = false
	for _, c := range d.live {
		d.anyMore = d.anyMore || c.more
	}
}

// applyResults takes the results of links: it adopts new connections, and handles failures, peers
// that have left, and notices.
func (d *domain) applyResults() {
	for _, h := range d.links.takeResults() {
		if h.rank < 0 {
			d.done.Emit(transport.Completion{Kind: transport.PeerNotice, Peer: -1, Err: h.err})
			continue
		}
		c := d.peer(h.rank)
		switch {
		case h.thisHost:
			d.fail(d.hostError(h.rank, h.err))
		case h.left:
			c.leave()
		case h.err != nil:
			c.fail("connect", h.err)
		default:
			c.adopt(h.fd, h.protection)
		}
	}
}

// fail makes the domain fail: from now on each Read returns err. A second call has no effect.
func (d *domain) fail(err error) {
	if d.broken == nil {
		d.broken = err
	}
}

// pushBatches writes the batches of all connections. progress calls pushBatches before it polls,
// because the caller may wait for the answers to these messages.
func (d *domain) pushBatches() {
	d.batched = false
	for _, c := range d.outq {
		if c.batched {
			c.push()
		}
	}
}

// pushAll writes the output of the connections in d.outq, and removes the connections that have no
// output left from d.outq.
func (d *domain) pushAll() {
	kept := d.outq[:0]
	for _, c := range d.outq {
		if c.state == connUp && c.hasOutput() {
			c.push()
		}
		if c.state == connUp && c.hasOutput() {
			kept = append(kept, c)
			continue
		}
		c.inOut = false
		c.setOutEvents(false)
	}
	clear(d.outq[len(kept):])
	d.outq = kept
}

// Arm returns false if the next Read has something to do that would not end a Wait: completions
// that wait for a Read, a connection with conn.more set, batches, messages of this rank to itself,
// or results of links. It also returns false after Close. If it returns true, Wait also ends when a
// connection with output has room for it.
func (q *completionQueue) Arm() bool {
	return !q.d.done.Pending() && q.d.arm()
}

// arm does what Arm does, but ignores completions that wait for a Read. Shutdown calls it, because
// it leaves those completions for the next Read.
func (d *domain) arm() bool {
	if d.closed || d.batched || d.links.hasResults.Load() || d.loop.Waiting() {
		return false
	}
	for _, c := range d.live {
		if c.more {
			return false
		}
	}
	for _, c := range d.outq {
		c.setOutEvents(c.state == connUp && c.hasOutput())
	}
	d.armed = true
	return true
}

// Wait sleeps in the poller. The poller is level-triggered, so input that has arrived since the
// last Read ends Wait.
func (q *completionQueue) Wait(timeout time.Duration) error { return q.d.wait(timeout) }

func (d *domain) wait(timeout time.Duration) error {
	d.sleepMu.Lock()
	defer d.sleepMu.Unlock()
	var end time.Time
	if timeout >= 0 {
		end = time.Now().Add(timeout)
	}
	for {
		if d.down.Load() {
			return transport.ErrClosed
		}
		ms := -1
		if timeout >= 0 {
			ms = int(min(max(0, (time.Until(end)+time.Millisecond-1)/time.Millisecond), 1<<30))
		}
		var ev [8]sys.Event
		n, err := d.poller.Wait(ev[:], ms)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%w: wait: %w", errDomain, err)
		}
		for i := range n {
			if ev[i].ID() < 0 {
				// Clear comes first. Then a Signal between the two calls finds signaled set
				// and does not use the waker, which is right, because this Wait returns. In
				// the reverse order, a Signal between the two calls would set signaled and
				// use the waker, and Clear would undo that use. signaled would stay set, and
				// no later Signal would use the waker.
				d.waker.Clear()
				d.signaled.Swap(false)
			}
		}
		return nil
	}
}

// Signal ends the Wait under way, or else the next one. That Wait clears the waker.
func (q *completionQueue) Signal() { q.d.Signal() }

// Signal implements CompletionQueue.Signal for the domain's queue. links and Shutdown call it too.
func (d *domain) Signal() {
	if !d.signaled.Swap(true) {
		d.wake()
	}
}

func (d *domain) wake() {
	d.sigMu.Lock()
	defer d.sigMu.Unlock()
	if d.waker != nil {
		d.waker.Wake()
	}
}

// FD returns the poller's descriptor. A goroutine that waits on the descriptor by other means than
// Wait must call Wait(0) when the descriptor is readable, because only Wait clears a Signal.
func (q *completionQueue) FD() (int, bool) {
	if q.d.closed {
		return -1, false
	}
	return q.d.poller.FD()
}
