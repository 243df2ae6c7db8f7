package sys

import "golang.org/x/sys/unix"

// Names and numbers that differ between systems.
const (
	KeepIdle   = unix.TCP_KEEPALIVE // option of TCP: seconds of silence before the first probe
	NoSignal   = 0                  // flag of send(2): no SIGPIPE, which the Go runtime ignores here
	getTermios = unix.TIOCGETA
	fionread   = 0x4004667f // sys/filio.h
)

// Memory returns how many bytes of memory this host has; 0: it is not known.
func Memory() uint64 {
	n, _ := unix.SysctlUint64("hw.memsize")
	return n
}
