//go:build darwin || freebsd

package sys

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// InspectSignal makes gorun report what the ranks do. A terminal sends it at Ctrl-T.
const InspectSignal = unix.SIGINFO

// PeerUser returns the effective user id of the process that made the other side of a Unix
// socket (LOCAL_PEERCRED in unix(4)).
func PeerUser(fd int) (int, error) {
	cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return -1, err
	}
	return int(cred.Uid), nil
}

// AwaitExit blocks until a child has ended, and does not reap it (EVFILT_PROC in kqueue(2)).
// Until the caller reaps the child, no other process gets the child's id.
func AwaitExit(pid int) error {
	var q [1]int
	err := withoutFork(q[:], func() (err error) {
		q[0], err = unix.Kqueue()
		return err
	})
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(q[0]) }()
	change, event := make([]unix.Kevent_t, 1), make([]unix.Kevent_t, 1)
	unix.SetKevent(&change[0], pid, unix.EVFILT_PROC, unix.EV_ADD|unix.EV_ONESHOT)
	change[0].Fflags = unix.NOTE_EXIT
	for {
		n, err := unix.Kevent(q[0], change, event, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && n == 1 && event[0].Flags&unix.EV_ERROR != 0:
			err = syscall.Errno(event[0].Data)
		}
		if errors.Is(err, unix.ESRCH) {
			return nil // the child has ended
		}
		return err
	}
}
