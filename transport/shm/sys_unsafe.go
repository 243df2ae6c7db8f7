//go:build linux && !portable

package shm

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The operations of futex(2), without FUTEX_PRIVATE_FLAG: the words lie in memory that other
// processes map.
const (
	futexOpWait = 0
	futexOpWake = 1
)

// futexWait sleeps while the word is val, for at most the time t. If t is over, it returns false.
// It may return early, with true.
func futexWait(word *atomic.Uint32, val uint32, t time.Duration) bool {
	ts := unix.NsecToTimespec(int64(t))
	_, _, e := syscall.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWait, uintptr(val), uintptr(unsafe.Pointer(&ts)), 0, 0)
	return e != syscall.ETIMEDOUT
}

// futexWake wakes all threads that sleep on the word. It does not block.
func futexWake(word *atomic.Uint32) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWake, 1<<30, 0, 0, 0)
}

// robustList is a thread's list of one robust futex in the kernel's layout:
// struct robust_list_head of linux/futex.h, followed by the list's only element. The kernel
// reads the list when the thread ends.
type robustList struct {
	first   uintptr // address of the element; of the head itself if the list is empty
	offset  int     // bytes from an element to its futex
	pending uintptr // 0: no futex is being added or removed
	next    uintptr // the element: address of the head
}

const robustHeadSize = 3 * unsafe.Sizeof(uintptr(0))

// newRobustList makes a list of one futex, word. The caller must keep the list alive while a
// thread has it. Go does not move it, as it is on the heap.
func newRobustList(word *atomic.Uint32) *robustList {
	l := new(robustList)
	l.first = uintptr(unsafe.Pointer(&l.next))
	l.offset = int(uintptr(unsafe.Pointer(word)) - l.first)
	l.next = l.head()
	return l
}

// head returns the address of the list that the kernel takes.
func (l *robustList) head() uintptr { return uintptr(unsafe.Pointer(l)) }

// getRobustList calls get_robust_list(2) for the calling thread.
func getRobustList() (head uintptr, err error) {
	var size uintptr
	_, _, e := syscall.RawSyscall(unix.SYS_GET_ROBUST_LIST, 0, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&size)))
	if e != 0 {
		return 0, fmt.Errorf("get_robust_list: %w", e)
	}
	return head, nil
}

// setRobustList calls set_robust_list(2) for the calling thread.
func setRobustList(head uintptr) error {
	_, _, e := syscall.RawSyscall(unix.SYS_SET_ROBUST_LIST, head, robustHeadSize, 0)
	if e != 0 {
		return fmt.Errorf("set_robust_list: %w", e)
	}
	return nil
}
