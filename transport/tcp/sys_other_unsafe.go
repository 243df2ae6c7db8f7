//go:build !linux || portable

package tcp

import (
	"syscall"
	"unsafe"

	"github.com/weft-hpc/weft/internal/sys"
	"golang.org/x/sys/unix"
)

// The system calls of Read and Send, in forms that every Unix has. The sockets are non-blocking, so
// no call blocks.

// longCopy is a number of bytes: one call of recvInto asks for at least longCopy bytes of a read or
// write, if so many are missing.
const longCopy = 64 << 10

func result(n int, err error) (int, error) {
	if err == syscall.EAGAIN { //nolint:errorlint // never wrapped
		return 0, errAgain
	}
	return max(n, 0), err
}

// errAgain is EAGAIN as an error. It is made once, because the conversion to error may allocate.
var errAgain error = syscall.EAGAIN

// recv reads the bytes that have arrived into b, which must not be empty.
func recv(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Read(fd, b)
		if err != syscall.EINTR { //nolint:errorlint // never wrapped
			return result(n, err)
		}
	}
}

// recvv reads the bytes that have arrived into the buffers of iov, one after the other.
func recvv(fd int, iov []unix.Iovec, _ int) (int, error) {
	done := 0
	for i := range iov {
		part := bytesOf(&iov[i])
		n, err := recv(fd, part)
		done += n
		switch {
		case done > 0 && (err != nil || n < len(part)):
			// The next call meets the error or the end of the bytes again, and returns it.
			return done, nil
		case err != nil || n < len(part):
			return done, err
		}
	}
	return done, nil
}

// send writes as much of b as the socket takes. b must not be empty.
func send(fd int, b []byte) (int, error) {
	for {
		n, err := unix.Write(fd, b)
		if err != syscall.EINTR { //nolint:errorlint // never wrapped
			return result(n, err)
		}
	}
}

// sendv writes as much of the buffers of iov as the socket takes. It puts the arguments of sendmsg
// in hdr, to save an allocation.
func sendv(fd int, hdr *unix.Msghdr, iov []unix.Iovec, _ int) (int, error) {
	hdr.Iov = &iov[0]
	hdr.SetIovlen(len(iov))
	for {
		n, _, e := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(hdr)), sys.NoSignal)
		switch e {
		case 0:
			return int(n), nil
		case syscall.EINTR:
		default:
			return result(0, e)
		}
	}
}

func bytesOf(v *unix.Iovec) []byte { return unsafe.Slice(v.Base, int(v.Len)) }
