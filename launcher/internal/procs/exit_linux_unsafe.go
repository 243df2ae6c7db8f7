//go:build linux && !portable

package procs

import (
	"encoding/binary"
	"syscall"
	"time"
	"unsafe"

	"github.com/weft-hpc/weft/launcher/internal/proto"
	"golang.org/x/sys/unix"
)

// siginfoBytes is the size of siginfo_t on every architecture.
const siginfoBytes = 128

// waitid calls waitid(2) for a child that may have ended, and leaves it a zombie. It does not
// block. It exists because x/sys/unix does not export the union of siginfo_t. usage may be nil; it
// includes the children that the child has waited for.
func waitid(pid int, info *[siginfoBytes]byte, usage *unix.Rusage) unix.Errno {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_PID, uintptr(pid), uintptr(unsafe.Pointer(info)),
			unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, uintptr(unsafe.Pointer(usage)), 0)
		if errno != unix.EINTR {
			return errno
		}
	}
}

// usageOf returns the resource usage of a child that has ended and was not reaped. It
// returns nil if the usage is not known.
func usageOf(pid int) *proto.Usage {
	var info [siginfoBytes]byte
	var u unix.Rusage
	if waitid(pid, &info, &u) != 0 || u == (unix.Rusage{}) {
		return nil
	}
	return &proto.Usage{User: time.Duration(u.Utime.Nano()), System: time.Duration(u.Stime.Nano()), MaxRSS: u.Maxrss << 10}
}

// exitStatus returns how a child ended, and leaves it a zombie, so that no other process
// gets its pid or the number of its process group. It does not block; ended is false if
// the child runs.
func exitStatus(pid int) (st status, ended bool) {
	var info [siginfoBytes]byte
	if waitid(pid, &info, nil) != 0 {
		return status{code: proto.ExitFailed}, true // another part of the program has reaped it
	}
	// siginfo_t begins with the 4-byte fields si_signo, si_errno and si_code. At the next multiple
	// of a pointer's size follow the 4-byte fields si_pid, si_uid and si_status.
	const union = (12 + unsafe.Sizeof(uintptr(0)) - 1) &^ (unsafe.Sizeof(uintptr(0)) - 1)
	field := func(at uintptr) int32 { return int32(binary.NativeEndian.Uint32(info[at:])) }
	if field(union) == 0 {
		return status{}, false
	}
	const cldExited = 1
	if field(8) == cldExited {
		return status{code: int(field(union + 8))}, true
	}
	return status{signal: syscall.Signal(field(union + 8))}, true
}
