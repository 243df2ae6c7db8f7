//go:build libfabric

package libfabric

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// If the provider's completion queue has no file descriptor, Wait cannot sleep until a completion
// comes. Then the first Wait after a Read that has found something sleeps for minNap, and each
// further Wait sleeps twice as long as the one before, up to maxNap. So an idle rank uses little
// CPU time, and an active one has low latency.
const (
	minNap = 20 * time.Microsecond
	maxNap = time.Millisecond
)

// openPoll opens the epoll descriptor that Wait sleeps on, the eventfd that Signal writes to, and
// the timer of messages that are to be sent again.
func (d *domain) openPoll() error {
	var err error
	if d.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	if d.evfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	if err = d.watch(d.evfd); err != nil {
		return err
	}
	if d.timerfd, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return fmt.Errorf("timerfd_create: %w", err)
	}
	return d.watch(d.timerfd)
}

// watch adds fd to the descriptors that wake Wait when they are readable.
func (d *domain) watch(fd int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := unix.EpollCtl(d.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

func (d *domain) closePoll() {
	if d.epfd >= 0 {
		_ = unix.Close(d.epfd)
	}
	if d.evfd >= 0 {
		_ = unix.Close(d.evfd)
	}
	if d.timerfd >= 0 {
		_ = unix.Close(d.timerfd)
	}
	d.epfd, d.evfd, d.timerfd = -1, -1, -1
}

// Arm reports whether the caller may call Wait (fi_trywait). If it returns false, the caller must
// call Read first.
func (q *completionQueue) Arm() bool {
	return !q.d.done.Pending() && q.d.arm()
}

// arm is Arm, except that it does not look at the completions that are already queued for the next
// Read.
func (d *domain) arm() bool {
	switch {
	case d.closed, d.broken != nil, d.loop.Waiting(), len(d.pendingAcks) > 0:
		return false
	case d.arena != nil && (len(d.arena.toPost) > 0 || d.raw.Pending() > 0):
		return false // the next Read has receive buffers to post
	}
	for _, l := range d.lanes {
		if d.canSleep && l.raw.TryWait() != 0 {
			return false
		}
	}
	return true
}

// Wait sleeps until the queue's file descriptor is readable, Signal is called or the domain is
// closed, at most for timeout; a negative timeout is infinite. If the queue has no descriptor, Wait
// sleeps at most for the time that nextNap returns. Wait may return early. If the domain is closed,
// it returns ErrClosed.
func (q *completionQueue) Wait(timeout time.Duration) error { return q.d.wait(timeout) }

func (d *domain) wait(timeout time.Duration) error {
	d.sleepMu.Lock()
	defer d.sleepMu.Unlock()
	if d.closing.Load() {
		return transport.ErrClosed
	}
	if !d.canSleep {
		timeout = d.nextNap(timeout)
	}
	fds := [1]unix.PollFd{{Fd: int32(d.epfd), Events: unix.POLLIN}}
	var limit *unix.Timespec
	if timeout >= 0 {
		t := unix.NsecToTimespec(timeout.Nanoseconds())
		limit = &t
	}
	n, err := unix.Ppoll(fds[:], limit, nil)
	if err == unix.EINTR || err == nil && n == 0 {
		return nil // the caller must expect that Wait returns early
	}
	if err != nil {
		return fmt.Errorf("libfabric: ppoll: %w", err)
	}
	var ev [2 + maxLanes]unix.EpollEvent
	n, err = unix.EpollWait(d.epfd, ev[:], 0)
	if err != nil && err != unix.EINTR {
		return fmt.Errorf("libfabric: epoll_wait: %w", err)
	}
	for _, e := range ev[:max(n, 0)] {
		var b [8]byte
		switch int(e.Fd) {
		case d.evfd:
			// Read evfd first, then clear signaled. In the other order, a Signal between the
			// two steps would set signaled and write to evfd; the read would consume that
			// write, and no later Signal would write again.
			_, _ = unix.Read(d.evfd, b[:]) // does not block; the result does not matter
			d.signaled.Swap(false)
		case d.timerfd:
			_, _ = unix.Read(d.timerfd, b[:]) // does not block; the next Read sends messages again
		}
	}
	if d.closing.Load() {
		return transport.ErrClosed
	}
	return nil
}

// nextNap returns how long to sleep if the queue has no descriptor. The result is at most timeout,
// unless that is negative.
func (d *domain) nextNap(timeout time.Duration) time.Duration {
	if d.found.Swap(false) || d.nap == 0 {
		d.nap = int64(minNap)
	}
	nap := time.Duration(d.nap)
	d.nap = min(d.nap*2, int64(maxNap))
	if timeout >= 0 {
		nap = min(nap, timeout)
	}
	return nap
}

// Signal makes the current Wait return or, if there is none, the next one. Several Signals before
// that Wait returns have the effect of one.
func (q *completionQueue) Signal() { q.d.Signal() }

// Signal implements CompletionQueue.Signal.
func (d *domain) Signal() {
	if !d.signaled.Swap(true) {
		d.wake()
	}
}

func (d *domain) wake() {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], 1)
	d.sigMu.Lock()
	defer d.sigMu.Unlock()
	if d.evfd >= 0 {
		_, _ = unix.Write(d.evfd, b[:]) // an error can only be EAGAIN: then evfd is readable already
	}
}

// FD returns the epoll descriptor that becomes readable when the queue's descriptor or the eventfd
// of Signal is readable. The second result is false if the queue has no descriptor or the domain is
// closed; then the first must not be used.
func (q *completionQueue) FD() (int, bool) { return q.d.epfd, q.d.canSleep && !q.d.closed }
