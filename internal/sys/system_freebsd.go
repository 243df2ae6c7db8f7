package sys

import "golang.org/x/sys/unix"

// Names and numbers that differ between systems.
const (
	KeepIdle   = unix.TCP_KEEPIDLE // TCP option: seconds of silence before the first probe
	NoSignal   = unix.MSG_NOSIGNAL // send(2) flag: no SIGPIPE
	getTermios = unix.TIOCGETA
	fionread   = 0x4004667f // sys/filio.h
)

// Memory returns the size of this host's memory in bytes; 0 if it is unknown.
func Memory() uint64 {
	n, _ := unix.SysctlUint64("hw.physmem")
	return n
}
