//go:build linux && !portable

package shm

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawMax is the length in bytes of the longest copy that [cross] makes by a raw system call.
// Other system calls inform the Go scheduler, which costs as much as a copy of a few KiB.
const rawMax = pieceMax

// fetch copies into dst, which is not empty, from an address of a process (process_vm_readv(2)). It
// may copy fewer bytes than dst has; it returns the number of copied bytes.
func fetch(pid int, dst []byte, addr uint64) (int, syscall.Errno) {
	return cross(unix.SYS_PROCESS_VM_READV, pid, dst, addr)
}

// store copies src, which is not empty, to an address of a process (process_vm_writev(2)). It may
// copy fewer bytes than src has; it returns the number of copied bytes.
func store(pid int, src []byte, addr uint64) (int, syscall.Errno) {
	return cross(unix.SYS_PROCESS_VM_WRITEV, pid, src, addr)
}

func cross(call uintptr, pid int, local []byte, addr uint64) (int, syscall.Errno) {
	here := unix.Iovec{Base: unsafe.SliceData(local)}
	here.SetLen(len(local))
	there := unix.RemoteIovec{Base: uintptr(addr), Len: len(local)}
	var n uintptr
	var e syscall.Errno
	if len(local) <= rawMax {
		n, _, e = syscall.RawSyscall6(call, uintptr(pid), uintptr(unsafe.Pointer(&here)), 1, uintptr(unsafe.Pointer(&there)), 1, 0)
	} else {
		n, _, e = syscall.Syscall6(call, uintptr(pid), uintptr(unsafe.Pointer(&here)), 1, uintptr(unsafe.Pointer(&there)), 1, 0)
	}
	if e == 0 && n == 0 {
		e = syscall.EFAULT // a correct kernel does not copy 0 bytes without an error
	}
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}

// addressOf returns the address of b in this process, for peers that copy from or to b. The
// address is valid as long as b is referenced: Go moves only stacks, and memory that an
// operation or a region refers to is not on a stack.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
