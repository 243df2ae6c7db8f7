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
	fds    []unix.PollFd // their descriptors, -1: it has none; nil: there is one queue; guarded by Engine.mu
	naps   bool          // a queue has no descriptor
}

// mixedNap bounds a sleep on several queues of which not all can end it.
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
		s.fds = slices.Clone(s.fds) // a wait may have the old ones
		s.fds[queue].Fd = -1
	}
}

// wait blocks until one of the queues has something, signal is called or timeout has
// passed; negative: no limit. fds are the waitset's. The next Read of a queue returns
// its errors.
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

// signal ends a wait or, if there is none, the next one. It takes no lock.
func (e *Engine) signal() {
	for _, q := range e.waitset.queues { // one of them may be closed
		q.Signal()
	}
}
