//go:build libfabric

package libfabric

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// Where the provider's queue has no descriptor, Wait naps: ever longer while
// nothing happens, so that an idle rank costs little and a message that comes
// soon is found soon.
const (
	firstNap = 20 * time.Microsecond
	lastNap  = time.Millisecond
)

// openPoll makes the descriptors that Wait sleeps on.
func (d *domain) openPoll() error {
	var err error
	if d.epfd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll_create1: %w", err)
	}
	if d.evfd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	return d.watch(d.evfd)
}

// watch has Wait end when fd is readable.
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
	d.epfd, d.evfd = -1, -1
}

// Arm answers false where a Read has something to do (fi_trywait).
func (q *completionQueue) Arm() bool {
	return !q.d.done.Pending() && q.d.arm()
}

// arm is Arm but for completions that are already there.
func (d *domain) arm() bool {
	switch {
	case d.closed, d.broken != nil, d.loop.Waiting(), len(d.owed) > 0:
		return false
	case d.arena != nil && (len(d.arena.spent) > 0 || d.raw.Pending() > 0):
		return false // buffers to be posted
	}
	return !d.hasFD || d.raw.TryWait() == 0
}

// Wait sleeps until the queue's descriptor is readable, or for a nap.
func (q *completionQueue) Wait(timeout time.Duration) error { return q.d.wait(timeout) }

func (d *domain) wait(timeout time.Duration) error {
	d.sleepMu.Lock()
	defer d.sleepMu.Unlock()
	if d.down.Load() {
		return transport.ErrClosed
	}
	if !d.hasFD {
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
		return nil // early is allowed
	}
	if err != nil {
		return fmt.Errorf("libfabric: ppoll: %w", err)
	}
	var ev [4]unix.EpollEvent
	n, err = unix.EpollWait(d.epfd, ev[:], 0)
	if err != nil && err != unix.EINTR {
		return fmt.Errorf("libfabric: epoll_wait: %w", err)
	}
	for _, e := range ev[:max(n, 0)] {
		if int(e.Fd) == d.evfd {
			// In this order: a Signal in between ends this Wait. In the other,
			// its write would be read away and every later Signal with it.
			var b [8]byte
			_, _ = unix.Read(d.evfd, b[:]) // non-blocking; it was readable
			d.signaled.Swap(false)
		}
	}
	if d.down.Load() {
		return transport.ErrClosed
	}
	return nil
}

// nextNap is how long to sleep without a descriptor, timeout at most.
func (d *domain) nextNap(timeout time.Duration) time.Duration {
	if d.found.Swap(false) || d.nap == 0 {
		d.nap = int64(firstNap)
	}
	nap := time.Duration(d.nap)
	d.nap = min(d.nap*2, int64(lastNap))
	if timeout >= 0 {
		nap = min(nap, timeout)
	}
	return nap
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
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], 1)
	d.sigMu.Lock()
	defer d.sigMu.Unlock()
	if d.evfd >= 0 {
		_, _ = unix.Write(d.evfd, b[:]) // full means readable already
	}
}

// FD is a descriptor of epoll over the queue's and that of Signal.
func (q *completionQueue) FD() (int, bool) { return q.d.epfd, q.d.hasFD && !q.d.closed }
