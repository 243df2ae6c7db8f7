package sys

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Names and numbers that differ between systems.
const (
	KeepIdle = unix.TCP_KEEPIDLE // TCP option: seconds of silence before the first probe
	// Flag of send(2): no SIGPIPE. The Go runtime ignores SIGPIPE on descriptors other than 1 and 2
	// anyway.
	NoSignal   = unix.MSG_NOSIGNAL
	getTermios = unix.TCGETS
	fionread   = unix.TIOCINQ
)

// Memory returns the size of this host's memory and swap in bytes; 0 if it is unknown.
func Memory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return (info.Totalram + info.Totalswap) * uint64(info.Unit)
}

// InspectSignal makes gorun report what the ranks do.
const InspectSignal = unix.SIGPWR

// PeerUser returns the effective user id of the process that made the other side of a Unix
// socket (SO_PEERCRED in unix(7)).
func PeerUser(fd int) (int, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return -1, err
	}
	return int(cred.Uid), nil
}

// AwaitExit blocks until a child has ended, and does not reap it. Until the caller reaps
// the child, no other process gets the child's id.
func AwaitExit(pid int) error {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
