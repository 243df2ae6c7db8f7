package sys

import "golang.org/x/sys/unix"

// Names and numbers that differ between systems.
const (
	KeepIdle = unix.TCP_KEEPALIVE // TCP option: seconds of silence before the first probe
	// send(2) has no flag against SIGPIPE here. The Go runtime ignores SIGPIPE on descriptors other
	// than 1 and 2.
	NoSignal   = 0
	getTermios = unix.TIOCGETA
	fionread   = 0x4004667f // sys/filio.h
)

// Memory returns the size of this host's memory in bytes; 0 if it is unknown.
func Memory() uint64 {
	n, _ := unix.SysctlUint64("hw.memsize")
	return n
}
