//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"runtime"
	"time"
	"unsafe"
)

// SRead is Read that waits until there is something to read (fi_cq_sread), for
// as long as timeout, or without end if it is negative. It blocks a thread of
// the system, but for WaitYield. ErrAgain says that the time is over, or that
// Signal was called.
func (q *CQ) SRead(entries []CQEntry, timeout time.Duration) (int, error) {
	return q.sread(entries, nil, 0, timeout)
}

// SReadFrom is SRead that also says who sent what was received (fi_cq_sreadfrom).
func (q *CQ) SReadFrom(entries []CQEntry, from []Addr, timeout time.Duration) (int, error) {
	return q.sread(entries, from, 0, timeout)
}

// SReadThreshold is SRead that need not wake before a number of completions are
// there, for queues opened with Threshold. It is a hint: fewer may be returned.
func (q *CQ) SReadThreshold(entries []CQEntry, threshold int, timeout time.Duration) (int, error) {
	return q.sread(entries, nil, threshold, timeout)
}

func (q *CQ) sread(entries []CQEntry, from []Addr, threshold int, timeout time.Duration) (int, error) {
	if !q.isOpen() {
		return 0, ErrClosed
	}
	if len(entries) == 0 || from != nil && len(from) < len(entries) || q.wait == WaitNone {
		return 0, ErrInvalid
	}
	if q.wait == WaitYield {
		return q.yieldRead(entries, from, timeout)
	}
	var n C.ssize_t
	_ = waitFor(timeout, func(ms C.int) Errno {
		n = C.weft_cq_sread(C.uintptr_t(uintptr(unsafe.Pointer(q.fid))), C.enum_fi_cq_format(q.format),
			escape(unsafe.Pointer(unsafe.SliceData(entries))), C.size_t(len(entries)),
			escape(unsafe.Pointer(unsafe.SliceData(from))), C.size_t(threshold), ms)
		return Errno(-min(n, 0))
	})
	runtime.KeepAlive(from)
	if n == -C.FI_ECANCELED || n == -C.FI_ETIMEDOUT { // sockets of a signal, rxd of the time
		n = -C.FI_EAGAIN
	}
	return q.completed(entries, n)
}

// yieldRead is SRead for WaitYield: to look again and again, and to let others
// run in between. shm has nothing else, and does not look at the time.
func (q *CQ) yieldRead(entries []CQEntry, from []Addr, timeout time.Duration) (int, error) {
	for start := time.Now(); ; runtime.Gosched() {
		n, err := q.ReadFrom(entries, from)
		if err == nil || err != Errno(C.FI_EAGAIN) { //nolint:errorlint // a bare Errno
			return n, err
		}
		if q.woken.CompareAndSwap(true, false) || timeout >= 0 && time.Since(start) >= timeout {
			return 0, err
		}
	}
}

// waitFor calls wait with the time in milliseconds that is left, until it is
// not interrupted by a signal that the Go runtime sends to its threads.
func waitFor(timeout time.Duration, wait func(ms C.int) Errno) Errno {
	const forever = 1 << 30 // milliseconds: 12 days
	start := time.Now()
	for {
		ms := C.int(-1)
		if left := timeout - time.Since(start); timeout >= 0 {
			ms = C.int(min(max(left+time.Millisecond-1, 0)/time.Millisecond, forever))
		}
		if e := wait(ms); e != ErrInterrupted {
			return e
		}
	}
}

// Signal ends the SRead that waits, or the next one (fi_cq_signal).
func (q *CQ) Signal() error {
	const function = "fi_cq_signal"
	if !q.isOpen() {
		return closedError(function)
	}
	if q.wait == WaitNone {
		return &Error{function, ErrInvalid}
	}
	if q.wait == WaitYield {
		q.woken.Store(true)
		return nil
	}
	return check(function, C.fi_cq_signal(q.c()))
}

// FD is the descriptor that is readable when there may be completions, of a
// queue opened with WaitFD (fi_control with FI_GETWAIT). Fabric.TryWait says
// when it may be slept on. It belongs to the queue.
func (q *CQ) FD() (int, error) {
	const function = "fi_control"
	if !q.isOpen() {
		return -1, closedError(function)
	}
	if q.wait != WaitFD {
		return -1, &Error{function, ErrNotSupp} // the library would write something else
	}
	fd := C.int(-1)
	err := check(function, C.fi_control(q.fid, C.FI_GETWAIT, unsafe.Pointer(&fd)))
	return int(fd), err
}

// PollFD is a descriptor to sleep on and the events to sleep for (struct pollfd).
type PollFD struct {
	FD     int
	Events int16
}

// PollFDs are the descriptors of a queue opened with WaitPollFD, one of which is
// ready when there may be completions. They may change whenever the queue is
// used, and changes then does as well.
func (q *CQ) PollFDs() (fds []PollFD, changes uint64, err error) {
	const function = "fi_control"
	if !q.isOpen() {
		return nil, 0, closedError(function)
	}
	if q.wait != WaitPollFD {
		return nil, 0, &Error{function, ErrNotSupp}
	}
	for size := C.size_t(8); ; {
		list := (*C.struct_pollfd)(C.calloc(size, C.sizeof_struct_pollfd))
		if list == nil {
			return nil, 0, &Error{function, ErrNoMemory}
		}
		room := size
		rc := C.weft_cq_pollfds(q.c(), list, &size, (*C.uint64_t)(&changes))
		if rc == 0 {
			for _, p := range unsafe.Slice(list, size) {
				fds = append(fds, PollFD{int(p.fd), int16(p.events)})
			}
		}
		C.free(unsafe.Pointer(list))
		if rc != -C.FI_ETOOSMALL || size <= room {
			return fds, changes, check(function, rc)
		}
	}
}
