package sys

import "golang.org/x/sys/unix"

// Names and numbers that differ between systems.
const (
	KeepIdle   = unix.TCP_KEEPIDLE // option of TCP: seconds of silence before the first probe
	NoSignal   = unix.MSG_NOSIGNAL // flag of send(2): no SIGPIPE
	getTermios = unix.TIOCGETA
	fionread   = 0x4004667f // sys/filio.h
)

// Memory returns how many bytes of memory this host has; 0: it is not known.
func Memory() uint64 {
	n, _ := unix.SysctlUint64("hw.physmem")
	return n
}
