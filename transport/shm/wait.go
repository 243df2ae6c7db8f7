//go:build linux && !portable

package shm

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// Sleeping
//
//	rank that sleeps                          rank that has something for it
//	sleep ◄ asleep                            stores a message or an event (a full barrier)
//	looks for events and messages again       looks at sleep
//	futex_wait while sleep is asleep          if it is asleep: ◄ awake, futex_wake
//
// Each side stores before it loads, so at least one sees the other's store. The rank that
// changes sleep from asleep to awake subtracts 1 from fileHeader.sleepers.
//
// A peer's death wakes no rank. So a rank sleeps for at most a scan interval at a time, and
// then checks all peers. The cost of this on a host grows with the square of the number
// of ranks, so the interval is longer if there are many.
const (
	awake  = 0
	asleep = 1

	minScanInterval = 250 * time.Millisecond // the scan interval on a host with fewer than scanPeers ranks
	// The scan interval grows by minScanInterval for each scanPeers ranks of the host.
	scanPeers = 64
)

// epoch is the zero of monotonic times.
var epoch = time.Now()

// scanInterval returns the longest time that this rank sleeps before it checks all peers.
func (d *domain) scanInterval() time.Duration {
	if s := d.attached.Load(); s != nil {
		return minScanInterval * time.Duration(1+s.n/scanPeers)
	}
	return minScanInterval
}

// wakePeer wakes a peer if it sleeps.
func (d *domain) wakePeer(p *peer) { wakeRank(d.seg, p.sleep) }

// wakeRank wakes the rank whose card.sleep is word, if that rank sleeps or is about to sleep.
func wakeRank(s *segment, word *atomic.Uint32) {
	if word.CompareAndSwap(asleep, awake) {
		s.header().sleepers.Add(-1)
		futexWake(word)
	}
}

// sleepWord returns the word that this rank sleeps on, and the segment that holds the word. Before
// join and after Close, the word is d.early, and the segment nil. The caller must keep the segment
// alive while it uses the word.
func (d *domain) sleepWord() (*segment, *atomic.Uint32) {
	if s := d.attached.Load(); s != nil {
		return s, &s.card(s.self).sleep
	}
	return nil, &d.early
}

// wakeSelf ends the sleep of this rank, if it sleeps or is about to sleep.
func (d *domain) wakeSelf() {
	s, word := d.sleepWord()
	if s != nil {
		wakeRank(s, word)
	} else if word.CompareAndSwap(asleep, awake) {
		futexWake(word)
	}
	runtime.KeepAlive(s)
}

// wakeWaiter ends a Wait of this rank. The calling goroutine has found something that a Read
// must report and for which no peer will wake this rank. If no goroutine waits, it costs
// one load.
func (d *domain) wakeWaiter() {
	if _, word := d.sleepWord(); word.Load() == asleep {
		d.wakeSelf()
	}
}

// Arm announces in card.sleep that this rank is about to sleep, unless a Read has something to do.
// It returns false if a Read has something to do.
func (q *completionQueue) Arm() bool {
	d := q.d
	if d.closed || d.busy() {
		return false
	}
	if s := d.seg; s != nil {
		s.header().sleepers.Add(1)
		if s.card(d.self).sleep.Swap(asleep) == asleep {
			s.header().sleepers.Add(-1) // this rank was already counted
		}
	} else {
		d.early.Store(asleep)
	}
	d.checkSomePeers()
	switch {
	case d.signaled.Load():
		d.wakeSelf()
		d.fdWaiter.setReadable()
	case d.arrived() || d.busy():
		d.wakeSelf()
		return false
	default:
		d.fdWaiter.arm()
	}
	return true
}

// busy reports whether a Read has something to do for which no peer will wake this rank. It also
// continues transfers.
func (d *domain) busy() bool {
	return d.done.Pending() || d.loop.Waiting() || d.seg != nil && d.advance() || d.done.Pending()
}

// arrived reports whether peers have written something that a Read must handle, or whether a Read
// must first free the lines of messages that the last one returned. If not, it publishes all freed
// lines, because a peer may wait for them while this rank sleeps.
func (d *domain) arrived() bool {
	if d.events != nil && d.events.Load() != d.eventsSeen {
		return true
	}
	for _, p := range d.active {
		r := &p.in
		if r.waiting() || p.ending != nil || r.free != r.pos {
			return true
		}
		if r.free != r.published {
			r.publishFree()
		}
	}
	return false
}

// Wait sleeps in futex(2), for at most timeout; if timeout is negative, without limit.
func (q *completionQueue) Wait(timeout time.Duration) error { return q.d.wait(timeout) }

func (d *domain) wait(timeout time.Duration) error {
	d.waitMu.Lock()
	defer d.waitMu.Unlock()
	var end time.Time
	if timeout > 0 {
		end = time.Now().Add(timeout)
	}
	for !d.down.Load() && !d.signaled.Load() && timeout != 0 {
		limit := d.scanInterval()
		if timeout > 0 {
			limit = min(limit, time.Until(end))
		}
		if limit <= 0 || !d.sleepOnce(limit) {
			break
		}
	}
	d.wakeSelf()
	d.fdWaiter.clearReadable()
	d.signaled.Store(false)
	if d.down.Load() {
		return transport.ErrClosed
	}
	return nil
}

// sleepOnce sleeps for at most t. It returns false if there may be something to read, and
// true if the caller may sleep again.
func (d *domain) sleepOnce(t time.Duration) bool {
	s, word := d.sleepWord()
	defer runtime.KeepAlive(s)
	if word.Load() != asleep {
		return false
	}
	if futexWait(word, asleep, t) || s == nil {
		return word.Load() == asleep
	}
	// The time is over. First look at the words by which peers wake this rank, because a faulty
	// peer may have changed them without a wake. Then look for ends of peers, which wake no rank.
	if word.Load() != asleep || s.header().sleepers.Load() <= 0 {
		return false
	}
	now := time.Since(epoch)
	if now-time.Duration(d.lastScan.Load()) < d.scanInterval() {
		return true // the last check of all peers was not long ago
	}
	d.lastScan.Store(int64(now))
	own, found := s.card(s.self), false
	for i := range s.n {
		if i != s.self && !d.knowsEnd(i) && s.endedOrLeft(i) {
			own.changed[i/64].Or(1 << (i % 64))
			found = true
		}
	}
	if found {
		own.events.Add(eventState) // the next Read checks the peers in changed
	}
	return !found
}

// Signal ends the Wait under way or, if there is none, the next Wait.
func (q *completionQueue) Signal() { q.d.Signal() }

// Signal implements CompletionQueue.Signal.
func (d *domain) Signal() {
	d.signaled.Store(true)
	d.wakeSelf()
	d.fdWaiter.setReadable()
}

// Asleep reports whether any rank of the host may be in Wait.
//
// Hot path: no allocation, no lock, no system call.
func (d *domain) Asleep() bool {
	s := d.attached.Load()
	if s == nil {
		return false
	}
	n := s.header().sleepers.Load()
	runtime.KeepAlive(s)
	return n != 0
}

// Notify ends a peer's Wait if the peer is in one or has called Arm before one.
func (d *domain) Notify(a transport.Addr) {
	s := d.attached.Load()
	if s == nil {
		return
	}
	if i := d.localOf(a); i >= 0 {
		if word := &s.card(i).sleep; word.Load() == asleep {
			wakeRank(s, word)
		}
	}
	runtime.KeepAlive(s)
}

// endSleep ends a Wait under way and the goroutine of fdWaiter. Close calls it.
func (d *domain) endSleep() {
	d.down.Store(true)
	d.wakeSelf()
	d.attached.Store(nil)
	d.fdWaiter.close()
	d.waitMu.Lock()   // until the Wait under way has returned
	d.waitMu.Unlock() //nolint:staticcheck // the critical section is empty on purpose
}

// FD returns an eventfd, for ranks that wait on several transports. A futex has no descriptor, so a
// goroutine sleeps on it, and makes the eventfd readable when the sleep ends.
func (q *completionQueue) FD() (int, bool) {
	d := q.d
	return d.fdWaiter.open(d)
}

// fdWaiter holds the descriptor that FD returns, and controls the goroutine that makes it readable.
type fdWaiter struct {
	mu     sync.Mutex
	fd     int  // the descriptor; -1: FD has not made it, or the domain is closed
	set    bool // the descriptor is readable
	closed bool
	// kick has capacity 1. A value in it makes the goroutine sleep until this rank is woken. kick
	// is nil before FD and after close.
	kick chan struct{}
	done chan struct{} // closed when the goroutine has ended
}

func (w *fdWaiter) open(d *domain) (int, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 || w.closed {
		return w.fd, !w.closed
	}
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return -1, false
	}
	w.fd = fd
	if d.signaled.Load() {
		w.setReadableLocked()
	}
	w.kick, w.done = make(chan struct{}, 1), make(chan struct{})
	go w.run(d, w.kick) // runs until a call of w.close, which waits for it
	w.kick <- struct{}{}
	return fd, true
}

func (w *fdWaiter) run(d *domain, kick <-chan struct{}) {
	defer close(w.done)
	for range kick {
		for !d.down.Load() && d.sleepOnce(d.scanInterval()) {
		}
		w.setReadable()
	}
}

// arm makes the descriptor unreadable and starts the goroutine's sleep. Before FD was called, it
// has no effect.
func (w *fdWaiter) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd < 0 {
		return
	}
	w.clearReadableLocked()
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

func (w *fdWaiter) setReadable() {
	w.mu.Lock()
	w.setReadableLocked()
	w.mu.Unlock()
}

func (w *fdWaiter) setReadableLocked() {
	if w.fd >= 0 && !w.set {
		one := [8]byte{1}
		_, err := unix.Write(w.fd, one[:])
		w.set = err == nil
	}
}

func (w *fdWaiter) clearReadable() {
	w.mu.Lock()
	w.clearReadableLocked()
	w.mu.Unlock()
}

func (w *fdWaiter) clearReadableLocked() {
	if w.set {
		var count [8]byte
		_, _ = unix.Read(w.fd, count[:]) // it is readable, and only this process reads it
		w.set = false
	}
}

func (w *fdWaiter) close() {
	w.mu.Lock()
	w.closed = true
	kick := w.kick
	w.kick = nil
	w.mu.Unlock()
	if kick != nil {
		close(kick)
		<-w.done
	}
	w.mu.Lock()
	if w.fd >= 0 {
		_ = unix.Close(w.fd) // a failed close of an eventfd loses nothing
		w.fd, w.set = -1, false
	}
	w.mu.Unlock()
}
