package tcp

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/transport"
)

// directConns is up to how many connections each is asked by recv, instead of
// asking the poller which have something.
const directConns = 2

// completionQueue is the user's view of the domain's progress.
type completionQueue struct{ d *domain }

// Read writes what was kept, polls connections, delivers what came, answers
// peers, and writes what had to wait.
//
// Hot path: no allocation, one system call per connection where nothing waits.
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
	if d.links.waiting.Load() {
		d.takeHanded()
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
		// Who is asked first alternates. A connection that ends leaves the list.
		first, second := d.live[d.round%2], d.live[(d.round+1)%2]
		first.poll()
		second.poll()
	}
	if len(d.outq) > 0 {
		d.pushAll()
	}
}

// pollReady polls the connections with frames left in their buffers, and those
// that the poller says have something.
func (d *domain) pollReady() {
	if d.anyMore {
		d.pollMore()
	}
	n, err := d.poller.Now(d.events[:])
	if err != nil {
		return // Wait reports a descriptor that is broken
	}
	for i := range n {
		if r := d.events[i].ID(); r >= 0 {
			if c := d.conns[r]; c.live >= 0 && c.polled != d.round {
				c.poll()
			}
		}
	}
}

// pollMore polls connections with frames left in their buffers, beginning with
// another one each time.
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

func (d *domain) takeHanded() {
	for _, h := range d.links.take() {
		if h.rank < 0 {
			d.done.Emit(transport.Completion{Kind: transport.PeerNotice, Peer: -1, Err: h.err})
			continue
		}
		c := d.peer(h.rank)
		switch {
		case h.here:
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

// pushBatches writes the messages that Send kept. It comes before the polls: what
// the user waits for may be the answer to them.
func (d *domain) pushBatches() {
	d.batched = false
	for _, c := range d.outq {
		if c.batched {
			c.push()
		}
	}
}

// pushAll writes for every connection that has something to write.
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
		c.setOut(false)
	}
	clear(d.outq[len(kept):])
	d.outq = kept
}

// Arm answers false where a Read has something to do without the kernel.
func (q *completionQueue) Arm() bool {
	return !q.d.done.Pending() && q.d.arm()
}

// arm is Arm but for completions that are already there.
func (d *domain) arm() bool {
	if d.closed || d.batched || d.links.waiting.Load() || d.loop.Waiting() {
		return false
	}
	for _, c := range d.live {
		if c.more {
			return false
		}
	}
	for _, c := range d.outq {
		c.setOut(c.state == connUp && c.hasOutput())
	}
	d.armed = true
	return true
}

// Wait sleeps in the poller, which is level-triggered: whatever has come since
// the last Read ends it.
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
				// In this order: a Signal in between ends this Wait. In the other,
				// its write would be read away and every later Signal with it.
				d.waker.Clear()
				d.signaled.Swap(false)
			}
		}
		return nil
	}
}

// Signal ends a Wait. What it writes is taken by the Wait that it ends.
func (q *completionQueue) Signal() { q.d.Signal() }

// Signal is CompletionQueue's.
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

// FD is the poller's descriptor. A goroutine that waits on it by other means calls
// Wait(0) when it is readable, which takes a Signal.
func (q *completionQueue) FD() (int, bool) {
	if q.d.closed {
		return -1, false
	}
	return q.d.poller.FD()
}
