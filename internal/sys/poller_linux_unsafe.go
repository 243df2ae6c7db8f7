//go:build linux && !portable

package sys

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Poller waits for several descriptors at once, by epoll(7). Its methods may be
// called at any time, also during a Wait, except Close, which is the last call.
type Poller struct{ fd int }

// Event is what Wait reports about one descriptor that is ready.
type Event struct{ e unix.EpollEvent }

// ID returns the number that the descriptor has from Add or Modify.
func (e *Event) ID() int { return int(e.e.Fd) }

// NewPoller makes a Poller without descriptors.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	return &Poller{fd}, nil
}

// Add adds the descriptor fd. Wait reports it with the number id when it is ready for want, or has
// an error or the end of its stream. If fd was added before, Add returns an error.
func (p *Poller) Add(fd, id int, want Interest) error {
	return p.control(unix.EPOLL_CTL_ADD, fd, id, want)
}

// Modify changes the arguments id and want of a descriptor that was added. If fd was not added,
// Modify returns an error.
func (p *Poller) Modify(fd, id int, want Interest) error {
	return p.control(unix.EPOLL_CTL_MOD, fd, id, want)
}

// Remove undoes Add. The caller closes the descriptor after it. A descriptor that was
// not added is ignored.
func (p *Poller) Remove(fd int) { _ = unix.EpollCtl(p.fd, unix.EPOLL_CTL_DEL, fd, nil) }

func (p *Poller) control(op, fd, id int, want Interest) error {
	ev := unix.EpollEvent{Events: uint32(want), Fd: int32(id)}
	if err := unix.EpollCtl(p.fd, op, fd, &ev); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// Wait blocks until a descriptor is ready or ms milliseconds have passed; -1: no limit. It fills
// events, which is not empty, with ready descriptors, and returns their number. A signal ends it
// with unix.EINTR.
func (p *Poller) Wait(events []Event, ms int) (int, error) {
	n, _, e := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), uintptr(ms), 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// Now does what Wait does, but does not block. It does not report the call to the Go
// scheduler, which would take longer than the call.
//
// Hot path: no allocation.
func (p *Poller) Now(events []Event) (int, error) {
	for {
		n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, e
		}
	}
}

// FD returns a descriptor that is readable when Wait would not block. ok is false if there is
// none.
func (p *Poller) FD() (fd int, ok bool) { return p.fd, true }

// Close frees the Poller, and none of the descriptors in it.
func (p *Poller) Close() { _ = unix.Close(p.fd) }
