//go:build !portable

package sys

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Lock locks n bytes of a file from the offset off on, and blocks until it has the lock. The lock
// belongs to the open file description, not to the process (F_OFD_SETLKW in fcntl(2)). A shared
// lock excludes only exclusive ones. The lock is advisory: it excludes only other locks. Where the
// system has no locks of ranges, Lock locks the whole file.
func Lock(fd int, off, n int64, exclusive bool) error {
	kind := int16(unix.F_RDLCK)
	if exclusive {
		kind = unix.F_WRLCK
	}
	return lock(fd, off, n, kind)
}

// Unlock ends a lock. Its arguments are those of Lock.
func Unlock(fd int, off, n int64) error { return lock(fd, off, n, unix.F_UNLCK) }

func lock(fd int, off, n int64, kind int16) error {
	for {
		err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLKW, &unix.Flock_t{Type: kind, Start: off, Len: n})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Allocate makes the file system allocate memory for the first n bytes of a file, which grows to n
// bytes if it is shorter (fallocate(2)). If the system or the file system cannot do that, the error
// wraps errors.ErrUnsupported.
func Allocate(fd int, n int64) error {
	for {
		err := unix.Fallocate(fd, 0, 0, n)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
