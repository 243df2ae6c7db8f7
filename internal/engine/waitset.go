package engine

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// waitset sleeps on the completion queues of all rails. A single queue is
// waited for by its own means, several by their descriptors in one epoll. Where
// one of several has none, all of them are looked at every mixedNap.
type waitset struct {
	queues []transport.CompletionQueue
	waker  int  // index of the queue whose Signal ends a wait
	epoll  int  // of their descriptors; used where there are several
	naps   bool // a queue has no descriptor
}

// mixedNap is how long several queues are slept on where not all of them can
// end the sleep.
const mixedNap = time.Millisecond

func (s *waitset) open(rails []rail) error {
	s.epoll = -1
	for i := range rails {
		s.queues = append(s.queues, rails[i].CQ)
	}
	if len(s.queues) < 2 {
		return nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("epoll_create: %w", err)
	}
	s.epoll = fd
	for i, q := range s.queues {
		qfd, ok := q.FD()
		if !ok {
			s.naps = true
			continue
		}
		s.waker = i
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(qfd)}
		if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, qfd, &ev); err != nil {
			s.close()
			return fmt.Errorf("epoll_ctl: %w", err)
		}
	}
	return nil
}

func (s *waitset) close() {
	if s.epoll >= 0 {
		_ = unix.Close(s.epoll)
		s.epoll = -1
	}
}

// wait blocks until one of the queues has something, signal is called or the
// time is over; negative: no limit. Errors show at the next Read of a queue.
func (s *waitset) wait(timeout time.Duration) {
	switch {
	case len(s.queues) == 1:
		_ = s.queues[0].Wait(timeout)
	case s.epoll >= 0:
		if s.naps && (timeout < 0 || timeout > mixedNap) {
			timeout = mixedNap
		}
		ms := -1
		if timeout >= 0 {
			ms = int((timeout + time.Millisecond - 1) / time.Millisecond)
		}
		var ev [1]unix.EpollEvent
		for {
			if _, err := unix.EpollWait(s.epoll, ev[:], ms); !errors.Is(err, unix.EINTR) {
				break
			}
		}
		for _, q := range s.queues {
			_ = q.Wait(0) // takes a Signal off its descriptor
		}
	}
}

// signal ends a wait, also one that has not begun. It takes no lock.
func (e *Engine) signal() {
	if s := &e.waitset; len(s.queues) > 0 {
		s.queues[s.waker].Signal()
	}
}
