package engine

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// currentCore is the core that this thread runs on; -1: unknown.
func currentCore() int {
	var cpu uint32
	if _, _, e := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); e != 0 {
		return -1
	}
	return int(cpu)
}
