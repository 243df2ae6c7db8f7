//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"runtime"
	"time"
	"unsafe"
)

// SRead is Read, but waits up to timeout for a completion (fi_cq_sread); a negative timeout is
// infinite. It returns ErrAgain after the timeout, and when Signal was called. With WaitNone it
// returns ErrInvalid. While SRead waits, it blocks an operating system thread, except with
// WaitYield.
func (q *CQ) SRead(entries []CQEntry, timeout time.Duration) (int, error) {
	return q.sread(entries, nil, 0, timeout)
}

// SReadFrom is SRead, but also stores the sender of each received message in from
// (fi_cq_sreadfrom).
func (q *CQ) SReadFrom(entries []CQEntry, from []Addr, timeout time.Duration) (int, error) {
	return q.sread(entries, from, 0, timeout)
}

// SReadThreshold is SRead, but may wait until there are threshold completions. The queue must have
// been opened with CQAttr.Threshold. The threshold is a hint: SReadThreshold may return fewer.
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
	// sockets returns ECANCELED after Signal, and rxd returns ETIMEDOUT after the timeout.
	if n == -C.FI_ECANCELED || n == -C.FI_ETIMEDOUT {
		n = -C.FI_EAGAIN
	}
	return q.completed(entries, n)
}

// yieldRead is SRead for WaitYield: it polls and lets other goroutines run in between. shm supports
// no other wait object, and its fi_cq_sread ignores the timeout.
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

// waitFor calls wait with the milliseconds that are left of timeout, -1 for an infinite timeout. If
// a signal has interrupted wait, waitFor calls it again, because the Go runtime sends signals to
// its threads.
func waitFor(timeout time.Duration, wait func(ms C.int) Errno) Errno {
	const forever = 1 << 30 // the largest argument of wait, in milliseconds: 12 days
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

// Signal makes a waiting SRead return, or, if none is waiting, the next one (fi_cq_signal).
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

// FD returns the file descriptor of a queue opened with WaitFD (fi_control with FI_GETWAIT). It is
// readable when there may be completions. Call [Fabric.TryWait] before sleeping on it. The queue
// owns the descriptor.
func (q *CQ) FD() (int, error) {
	const function = "fi_control"
	if !q.isOpen() {
		return -1, closedError(function)
	}
	if q.wait != WaitFD {
		// For another wait object the library would write a value of another type to fd.
		return -1, &Error{function, ErrNotSupp}
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

// PollFDs returns the descriptors of a queue opened with WaitPollFD (fi_control with FI_GETWAIT).
// When there may be completions, at least one descriptor is ready. Any call on the queue may change
// the set of descriptors; changes then differs from the value that the last PollFDs returned.
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
