//go:build !linux || portable

package sys

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Yield offers the processor to other processes.
func Yield() { time.Sleep(time.Microsecond) }

// Nap blocks the calling goroutine for d.
func Nap(d time.Duration) { time.Sleep(d) }

// Pipe makes a pipe that no child inherits.
func Pipe() (r, w int, err error) {
	var p [2]int
	err = withoutFork(p[:], func() error { return unix.Pipe(p[:]) })
	return p[0], p[1], err
}

// Socket makes a socket (socket(2)) that no child inherits. kind is the type of the socket.
func Socket(family, kind int) (int, error) {
	var p [1]int
	err := withoutFork(p[:], func() (err error) {
		p[0], err = unix.Socket(family, kind, 0)
		return err
	})
	return p[0], err
}

// Socketpair makes two connected stream sockets (unix(7)) that no child inherits.
func Socketpair() (pair [2]int, err error) {
	err = withoutFork(pair[:], func() (err error) {
		pair, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		return err
	})
	return pair, err
}

// withoutFork runs open, which fills fds, and marks the descriptors close-on-exec. Meanwhile this
// process starts no other one. If open fails, withoutFork sets the fds to -1.
func withoutFork(fds []int, open func() error) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := open(); err != nil {
		for i := range fds {
			fds[i] = -1
		}
		return err
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	return nil
}

// DupTo makes fd a duplicate of the descriptor from. If fd was open, DupTo closes it first.
// Children inherit fd.
func DupTo(from, fd int) error { return unix.Dup2(from, fd) }

// MemoryFile makes an empty file in memory. Here it fails. Errors wrap [ErrNoMemoryFiles].
func MemoryFile(string) (*os.File, error) {
	return nil, fmt.Errorf("%w: memfd_create: not supported on %s", ErrNoMemoryFiles, runtime.GOOS)
}

// MapPopulated is a flag with which mmap(2) allocates the pages before it returns; 0 if
// the system has no such flag.
const MapPopulated = 0

// Allowed returns the hardware threads that a process may use, or nil if they are unknown, as
// here.
func Allowed(int) []int { return nil }

// Bind binds the calling thread to hardware threads. Here it fails.
func Bind([]int) error {
	return fmt.Errorf("threads cannot be bound to processors on %s", runtime.GOOS)
}

// Seals returns the seals of a memory file. Here it fails.
func Seals(int) (int, error) { return 0, ErrNoMemoryFiles }

// AddSeals adds seals to a memory file. Here it fails.
func AddSeals(int, int) error { return ErrNoMemoryFiles }

// The seals of memory files. Here there are no memory files, and the values are arbitrary.
const (
	SealSeal = 1 << iota
	SealShrink
	SealGrow
	SealWrite
	SealFutureWrite
)

// DieWithParent makes the kernel send a child a signal when the thread that started the child
// ends. On systems without this feature, as here, it does nothing.
func DieWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// StopThread sends SIGSTOP to this process.
func StopThread() { _ = unix.Kill(os.Getpid(), unix.SIGSTOP) }
