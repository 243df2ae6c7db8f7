//go:build linux && !portable

package sys

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Yield offers the processor to other processes (sched_yield(2)). It does not report the call to
// the Go scheduler.
func Yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Nap blocks the calling thread for d. It does not report the call to the Go scheduler, so no other
// goroutine takes the caller's place meanwhile. A signal ends the sleep early, for example the
// signal by which the Go runtime preempts a goroutine.
func Nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// Pipe makes a pipe that no child inherits.
func Pipe() (r, w int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, err
	}
	return p[0], p[1], nil
}

// Socket makes a socket (socket(2)) that no child inherits. kind is the type of the socket.
func Socket(family, kind int) (int, error) {
	return unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
}

// Socketpair makes two connected stream sockets (unix(7)) that no child inherits.
func Socketpair() (pair [2]int, err error) {
	return unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
}

// DupTo makes fd a duplicate of the descriptor from. If fd was open, DupTo closes it first.
// Children inherit fd.
func DupTo(from, fd int) error { return unix.Dup3(from, fd, 0) }

// MemoryFile makes an empty file in memory. The file has no name in any file system, can be
// sealed (fcntl(2)), and no child inherits it. If the system refuses memory files, as some
// containers do, the error wraps [ErrNoMemoryFiles].
func MemoryFile(name string) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, flags)
	}
	switch err {
	case nil:
	case unix.ENOSYS, unix.EPERM, unix.EACCES, unix.EINVAL:
		return nil, fmt.Errorf("%w: memfd_create: %w", ErrNoMemoryFiles, err)
	default:
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// MapPopulated is a flag with which mmap(2) allocates the pages before it returns; 0 if
// the system has no such flag.
const MapPopulated = unix.MAP_POPULATE

// Allowed returns the hardware threads that a process may use, in ascending order. pid 0 stands
// for the calling thread. The result is nil if they are unknown.
func Allowed(pid int) (cpus []int) {
	set := unix.NewCPUSet(MaxCPUs)
	if unix.SchedGetaffinityDynamic(pid, set) != nil {
		return nil
	}
	for c := range MaxCPUs {
		if set.IsSet(c) {
			cpus = append(cpus, c)
		}
	}
	return cpus
}

// Bind binds the calling thread to hardware threads. cpus is not empty.
func Bind(cpus []int) error {
	set := unix.NewCPUSet(slices.Max(cpus) + 1)
	for _, c := range cpus {
		set.Set(c)
	}
	return unix.SchedSetaffinityDynamic(0, set)
}

// Seals returns the seals of a memory file (fcntl(2)), or an error for another file.
func Seals(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0) }

// AddSeals adds seals to a memory file.
func AddSeals(fd, seals int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return err
}

// The seals of memory files (fcntl(2)). In this order they forbid to add seals, to shrink the file,
// to grow it, to write to it, and to write to it except by mappings that exist already.
const (
	SealSeal        = unix.F_SEAL_SEAL
	SealShrink      = unix.F_SEAL_SHRINK
	SealGrow        = unix.F_SEAL_GROW
	SealWrite       = unix.F_SEAL_WRITE
	SealFutureWrite = unix.F_SEAL_FUTURE_WRITE
)

// DieWithParent makes the kernel send a child the signal s when the thread that started the child
// ends. On systems without this feature it does nothing.
func DieWithParent(attr *syscall.SysProcAttr, s syscall.Signal) { attr.Pdeathsig = s }

// StopThread sends SIGSTOP to the calling thread, which stops the whole process. If the signal went
// to the process, another thread could take it, and the calling thread could run on for a moment.
// Sent to the thread, it makes sure that StopThread returns only after the process gets SIGCONT.
func StopThread() { _ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP) }
