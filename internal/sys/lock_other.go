//go:build !linux || portable

package sys

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Lock locks n bytes of a file from the offset off on, and blocks until it has the lock. The lock
// belongs to the open file description, not to the process. A shared lock excludes only exclusive
// ones. The lock is advisory: it excludes only other locks. Here it locks the whole file (flock(2)),
// because locks of ranges belong to a process.
func Lock(fd int, _, _ int64, exclusive bool) error {
	if exclusive {
		return flock(fd, unix.LOCK_EX)
	}
	return flock(fd, unix.LOCK_SH)
}

// Unlock ends a lock. Its arguments are those of Lock.
func Unlock(fd int, _, _ int64) error { return flock(fd, unix.LOCK_UN) }

func flock(fd, how int) error {
	for {
		if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Allocate makes the file system allocate memory for the first n bytes of a file, which grows to n
// bytes if it is shorter. If the system or the file system cannot do that, the error wraps
// errors.ErrUnsupported.
func Allocate(int, int64) error { return errors.ErrUnsupported }
