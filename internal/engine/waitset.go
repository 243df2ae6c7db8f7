package engine

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// waitset holds the completion queues of all rails, for a goroutine that sleeps until one of them
// has an event. For a single queue it calls the queue's Wait, and for several it calls poll(2) with
// their descriptors. If one of several queues has no descriptor, its events cannot end the sleep,
// so a sleep then takes at most mixedNap.
type waitset struct {
	queues []transport.CompletionQueue // by index of the rail; set by init
	// By index of the rail: descriptor of the queue; -1: it has none, or drop has excluded it; nil
	// slice if there is one queue; guarded by Engine.mu.
	fds  []unix.PollFd
	naps bool // a queue has no descriptor, although there are several queues
}

// mixedNap is the time limit of a sleep on several queues if one of them has no descriptor.
const mixedNap = time.Millisecond

// init adds the queues of all rails. New calls it once.
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

// drop excludes the queue with this index from sleeps that begin later, because its transport is
// broken.
func (s *waitset) drop(queue int) {
	if s.fds != nil {
		s.fds = slices.Clone(s.fds) // a wait under way may use the old slice
		s.fds[queue].Fd = -1
	}
}

// wait blocks until one of the queues has something to read, signal is called, or timeout has
// passed. A negative timeout means none. wait may return earlier, for example after mixedNap if one
// of several queues has no descriptor. For several queues it rounds timeout up to milliseconds. fds
// is the field of the same name, which the caller has read under the lock, because wait runs
// without the lock. An error of a queue ends the wait, and the queue's next Read returns the error.
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
		_ = q.Wait(0) // makes the descriptor not readable any more, if a Signal has made it readable
	}
}

// signal ends the current sleep on the transports or, if there is none, the next one. It takes no
// lock, and may be called at any time.
func (e *Engine) signal() {
	for _, q := range e.waitset.queues { // a queue may belong to a transport that endAll has closed
		q.Signal()
	}
}
