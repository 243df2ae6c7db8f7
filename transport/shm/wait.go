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
//	sleep ◄ asleep                            stores its word (a full barrier)
//	looks at everything once more             looks at sleep
//	futex_wait while sleep is asleep          if it is asleep: ◄ awake, futex_wake
//
// Each stores before it looks, so at least one sees the other. Whoever changes
// sleep from asleep to awake counts the rank out of fileHeader.sleepers.
//
// A rank sleeps for at most a slice at a time, since a peer's death wakes no rank, and
// then looks at all peers. What that costs grows with the square of their number, so
// that slices are longer where there are many.
const (
	awake  = 0
	asleep = 1

	minScanInterval = 250 * time.Millisecond
	scanPeers       = 64 // that it is for
)

// epoch is what times of the monotonic clock count from.
var epoch = time.Now()

// slice is that of the ranks that this one has met; it may be alone as yet.
func (d *domain) scanInterval() time.Duration {
	if s := d.attached.Load(); s != nil {
		return minScanInterval * time.Duration(1+s.n/scanPeers)
	}
	return minScanInterval
}

// wakePeer ends a peer's sleep.
func (d *domain) wakePeer(p *peer) { wakeRank(d.seg, p.sleep) }

// wakeRank ends the sleep of the rank whose word it is.
func wakeRank(s *segment, word *atomic.Uint32) {
	if word.CompareAndSwap(asleep, awake) {
		s.header().sleepers.Add(-1)
		futexWake(word)
	}
}

// sleepWord returns the word that this rank sleeps on. While it is used the segment must be
// kept alive.
func (d *domain) sleepWord() (*segment, *atomic.Uint32) {
	if s := d.attached.Load(); s != nil {
		return s, &s.card(s.self).sleep
	}
	return nil, &d.early
}

// wakeSelf is for the rank itself what wakeRank is for others.
func (d *domain) wakeSelf() {
	s, word := d.sleepWord()
	if s != nil {
		wakeRank(s, word)
	} else if word.CompareAndSwap(asleep, awake) {
		futexWake(word)
	}
	runtime.KeepAlive(s)
}

// wakeWaiter ends a Wait of this rank, since another of its goroutines has found what
// no peer will wake it for. While it is awake that is a load.
func (d *domain) wakeWaiter() {
	if _, word := d.sleepWord(); word.Load() == asleep {
		d.wakeSelf()
	}
}

// Arm answers false where a Read has something to do.
func (q *completionQueue) Arm() bool {
	d := q.d
	if d.closed || d.busy() {
		return false
	}
	if s := d.seg; s != nil {
		s.header().sleepers.Add(1)
		if s.card(d.self).sleep.Swap(asleep) == asleep {
			s.header().sleepers.Add(-1) // it was counted
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

// busy says whether there is something to do that no peer will wake us for.
func (d *domain) busy() bool {
	return d.done.Pending() || d.loop.Waiting() || d.seg != nil && d.advance() || d.done.Pending()
}

// arrived looks at all that peers write, and makes sure that they know what room
// they have.
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

// Wait sleeps in futex(2).
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

// sleepOnce sleeps for a while, or until there may be something to read: false.
func (d *domain) sleepOnce(t time.Duration) bool {
	s, word := d.sleepWord()
	defer runtime.KeepAlive(s)
	if word.Load() != asleep {
		return false
	}
	if futexWait(word, asleep, t) || s == nil {
		return word.Load() == asleep
	}
	// The time is over. What has no effect on sleep is looked at, and whether
	// the words that others wake us by are still as we left them.
	if word.Load() != asleep || s.header().sleepers.Load() <= 0 {
		return false
	}
	now := time.Since(epoch)
	if now-time.Duration(d.lastScan.Load()) < d.scanInterval() {
		return true // it was a short one
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
		own.events.Add(eventState) // so that the next Read looks at them
	}
	return !found
}

// Signal ends the Wait that is or, if there is none, the next.
func (q *completionQueue) Signal() { q.d.Signal() }

// Signal is CompletionQueue's.
func (d *domain) Signal() {
	d.signaled.Store(true)
	d.wakeSelf()
	d.fdWaiter.setReadable()
}

// Asleep says whether any rank of the host may be in Wait.
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

// Notify ends a peer's Wait.
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

// endSleep ends all that sleeps, at the domain's end.
func (d *domain) endSleep() {
	d.down.Store(true)
	d.wakeSelf()
	d.attached.Store(nil)
	d.fdWaiter.close()
	d.waitMu.Lock()   // the Wait that was
	d.waitMu.Unlock() //nolint:staticcheck // there is nothing to do but to have waited
}

// FD is an eventfd that a goroutine makes readable when it is woken, as nothing
// but a thread can sleep on a futex. It is for ranks with several transports.
func (q *completionQueue) FD() (int, bool) {
	d := q.d
	return d.fdWaiter.open(d)
}

// fdWaiter is the descriptor and its goroutine.
type fdWaiter struct {
	mu     sync.Mutex
	fd     int // -1: nobody has asked for it
	set    bool
	closed bool
	kick   chan struct{} // of one: look at the sleep word again
	done   chan struct{}
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
	go w.run(d, w.kick) // until close, which waits for it
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

// arm takes the descriptor's readiness away and has the goroutine look.
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
		_, _ = unix.Read(w.fd, count[:]) // it is readable, and only we read it
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
		_ = unix.Close(w.fd) // nothing is lost by an eventfd
		w.fd, w.set = -1, false
	}
	w.mu.Unlock()
}
