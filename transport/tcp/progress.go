package tcp

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/transport"
)

// directConns is the largest number of connections that progress polls by a recv of each. With
// more, it first asks the poller which ones have input.
const directConns = 2

type completionQueue struct{ d *domain }

// Read writes batches, reads from the connections, returns completions, answers the peers' reads
// and writes, and writes pending output.
//
// Hot path: no allocation; one system call per connection if there is no input and no output.
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
		// The two alternate in being first. Keep both here: a poll may remove its connection
		// from the list.
		first, second := d.live[d.round%2], d.live[(d.round+1)%2]
		first.poll()
		second.poll()
	}
	if len(d.outq) > 0 {
		d.pushAll()
	}
}

// pollReady polls the connections that may have whole frames in their buffers, and those with
// input in their sockets.
func (d *domain) pollReady() {
	if d.anyMore {
		d.pollMore()
	}
	n, err := d.poller.Now(d.events[:])
	if err != nil {
		return // Wait reports the error
	}
	for i := range n {
		if r := d.events[i].ID(); r >= 0 {
			if c := d.conns[r]; c.live >= 0 && c.polled != d.round {
				c.poll()
			}
		}
	}
}

// pollMore polls the connections that may have whole frames in their buffers. Each round begins
// with another connection.
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

// applyResults adopts the connections that links has made, and handles the failures.
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

// fail makes the domain fail: the next Read returns err.
func (d *domain) fail(err error) {
	if d.broken == nil {
		d.broken = err
	}
}

// pushBatches writes the batches. progress calls it before it polls, because the user may wait
// for the answers to these messages.
func (d *domain) pushBatches() {
	d.batched = false
	for _, c := range d.outq {
		if c.batched {
			c.push()
		}
	}
}

// pushAll writes the output of the connections in d.outq, and removes those without output.
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

// Arm returns false if a Read has something to do that does not end Wait: completions or whole
// frames in memory, batches, messages of this rank to itself, and results of links.
func (q *completionQueue) Arm() bool {
	return !q.d.done.Pending() && q.d.arm()
}

// arm is Arm without regard to pending completions.
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
				// Clear comes first. A Signal between the two calls writes nothing, and
				// this Wait, which returns, serves it. In the reverse order, Clear would
				// take the write of a Signal between the two calls, and signaled would
				// suppress all later ones.
				d.waker.Clear()
				d.signaled.Swap(false)
			}
		}
		return nil
	}
}

// Signal ends a Wait. That Wait clears the waker.
func (q *completionQueue) Signal() { q.d.Signal() }

// Signal implements CompletionQueue.Signal. links and Shutdown call it too.
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

// FD returns the poller's descriptor. A goroutine that waits on it by other means calls Wait(0)
// when it is readable, because only Wait clears a Signal.
func (q *completionQueue) FD() (int, bool) {
	if q.d.closed {
		return -1, false
	}
	return q.d.poller.FD()
}
