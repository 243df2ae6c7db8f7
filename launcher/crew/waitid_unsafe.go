package crew

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	"github.com/weft-hpc/weft/launcher/proto"
	"golang.org/x/sys/unix"
)

// siginfoBytes is the size of siginfo_t on every architecture.
const siginfoBytes = 128

// exitStatus tells how a child ended, and leaves it a zombie, so that its pid
// and the number of its process group stay its own. It does not block; ended
// is false for a child that runs. It implements waitid(2), since the union of
// siginfo_t is closed in x/sys/unix.
func exitStatus(pid int) (st status, ended bool) {
	var info [siginfoBytes]byte
	for {
		_, _, errno := unix.Syscall6(unix.SYS_WAITID, unix.P_PID, uintptr(pid), uintptr(unsafe.Pointer(&info)),
			unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return status{code: proto.ExitFailed}, true // somebody else has reaped it
		}
		break
	}
	// si_signo, si_errno, si_code; then, at a pointer's alignment, si_pid,
	// si_uid, si_status.
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
