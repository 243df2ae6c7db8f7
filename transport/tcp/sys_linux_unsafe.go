//go:build linux && !portable

package tcp

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls of Read and Send are raw (syscall.RawSyscall): the Go scheduler does not know of
// them. They never block, and the scheduler's bookkeeping costs more than a recv without input.
// recvv and sendv use calls that the scheduler knows of (syscall.Syscall) if the kernel may copy
// more than longCopy bytes, because during a raw call the scheduler cannot run other goroutines on
// the P of the calling thread.

// longCopy is the largest number of bytes that a raw system call of recvv or sendv may copy.
// recvInto also uses it.
const longCopy = 64 << 10

// result converts the results of a system call. For EAGAIN it returns errAgain.
func result(n uintptr, e syscall.Errno) (int, error) {
	switch e {
	case 0:
		return int(n), nil
	case syscall.EAGAIN:
		return 0, errAgain
	}
	return 0, e
}

// errAgain is EAGAIN as an error. It is made once, because the conversion to error may allocate.
var errAgain error = syscall.EAGAIN

// recv reads the bytes that have arrived into b, which must not be empty. It does not block.
func recv(fd int, b []byte) (int, error) {
	for {
		n, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
			syscall.MSG_DONTWAIT, 0, 0)
		if e != syscall.EINTR {
			return result(n, e)
		}
	}
}

// bytesOf returns the bytes that v points to.
func bytesOf(v *unix.Iovec) []byte { return unsafe.Slice(v.Base, v.Len) }

// recvv reads the bytes that have arrived into the buffers of iov, which have n bytes in all. It
// does not block, because the socket is non-blocking.
func recvv(fd int, iov []unix.Iovec, n int) (int, error) {
	call := syscall.RawSyscall
	if n > longCopy {
		call = syscall.Syscall
	}
	for {
		r, _, e := call(syscall.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
		if e != syscall.EINTR {
			return result(r, e)
		}
	}
}

// send writes as much of b as the socket takes. b must not be empty. send does not block.
func send(fd int, b []byte) (int, error) {
	for {
		n, _, e := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
			syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
		if e != syscall.EINTR {
			return result(n, e)
		}
	}
}

// sendv writes as much of the buffers of iov, which have n bytes in all, as the socket takes. It
// does not block. It puts the arguments of sendmsg in hdr, to save an allocation.
func sendv(fd int, hdr *unix.Msghdr, iov []unix.Iovec, n int) (int, error) {
	hdr.Iov = &iov[0]
	hdr.SetIovlen(len(iov))
	for {
		var r uintptr
		var e syscall.Errno
		if n > longCopy {
			r, _, e = syscall.Syscall(syscall.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(hdr)),
				syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL)
		} else {
			r, _, e = syscall.RawSyscall(syscall.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(hdr)),
				syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL)
		}
		if e != syscall.EINTR {
			return result(r, e)
		}
	}
}
