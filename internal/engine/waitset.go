package engine

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// waitset sleeps on the completion queues of all rails. It waits for a single queue by
// the queue's Wait, and for several by their descriptors in one poll(2). If one of
// several has no descriptor, a wait ends after mixedNap at the latest.
type waitset struct {
	queues []transport.CompletionQueue
	fds    []unix.PollFd // the queues' descriptors, -1: the queue has none; nil if there is one queue; guarded by Engine.mu
	naps   bool          // a queue has no descriptor
}

// mixedNap is the limit of a sleep on several queues if one of them cannot end the sleep.
const mixedNap = time.Millisecond

func (s *waitset) init(rails []rail) {
	for i := range rails {
		s.queues = append(s.queues, rails[i].CQ)
	}
	if len(s.queues) < 2 {
		return
	}
	for _, q := range s.queues {
		fd, ok := q.FD()
		if !ok {
			fd, s.naps = -1, true
		}
		s.fds = append(s.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
}

// drop excludes a queue from the waits that begin later.
func (s *waitset) drop(queue int) {
	if s.fds != nil {
		s.fds = slices.Clone(s.fds) // a wait under way may use the old slice
		s.fds[queue].Fd = -1
	}
}

// wait blocks until one of the queues has something to read, signal is called, or timeout has
// passed; negative: no timeout. It may return earlier: after mixedNap, if one of several queues has
// no descriptor. fds is waitset.fds, which the caller has read under the lock. If
// a queue has an error, its next Read returns the error.
func (s *waitset) wait(fds []unix.PollFd, timeout time.Duration) {
	if len(s.queues) == 1 {
		_ = s.queues[0].Wait(timeout)
		return
	}
	if s.naps && (timeout < 0 || timeout > mixedNap) {
		timeout = mixedNap
	}
	ms := -1
	if timeout >= 0 {
		ms = int((timeout + time.Millisecond - 1) / time.Millisecond)
	}
	for {
		if _, err := unix.Poll(fds, ms); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	for _, q := range s.queues {
		_ = q.Wait(0) // clears a Signal from its descriptor
	}
}

// signal ends the current wait or, if there is none, the next one. It takes no lock.
func (e *Engine) signal() {
	for _, q := range e.waitset.queues { // one of them may be closed
		q.Signal()
	}
}
