//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"runtime"
	"time"
)

// CntrAttr has the attributes for opening a counter (struct fi_cntr_attr).
type CntrAttr struct {
	Bytes bool // count bytes instead of completions (FI_CNTR_EVENTS_BYTES); only 2.x
	// Wait says how [Counter.Wait] waits. It is usually WaitUnspec, and must not be WaitSet. With
	// WaitNone, Counter.Wait fails.
	Wait  WaitObj
	Flags Flags
}

// Counter counts completed operations of the endpoints that are bound to it
// (fi_cntr(3)). It has two values: successes and failures.
type Counter struct {
	object
	wait WaitObj
}

// OpenCounter opens a counter (fi_cntr_open).
func (d *Domain) OpenCounter(attr CntrAttr) (*Counter, error) {
	const function = "fi_cntr_open"
	if !d.isOpen() {
		return nil, closedError(function)
	}
	if attr.Wait == WaitSet { // sockets would dereference the set, which is NULL
		return nil, &Error{function, ErrInvalid}
	}
	c := C.struct_fi_cntr_attr{
		events:   C.FI_CNTR_EVENTS_COMP,
		wait_obj: C.enum_fi_wait_obj(attr.Wait),
		flags:    C.uint64_t(attr.Flags),
	}
	if attr.Bytes {
		if LibraryVersion() < MakeVersion(2, 0) {
			return nil, unsupported(function) // an older library would count completions instead of bytes
		}
		c.events = C.WEFT_CNTR_EVENTS_BYTES
	}
	var fid *C.struct_fid_cntr
	if err := check(function, C.fi_cntr_open(d.c(), &c, &fid, nil)); err != nil {
		return nil, err
	}
	n := &Counter{wait: attr.Wait}
	if c.wait_obj == C.FI_WAIT_YIELD {
		n.wait = WaitYield // shm chooses this for WaitUnspec
	}
	n.open(&fid.fid, &d.object)
	return n, nil
}

func (n *Counter) c() *C.struct_fid_cntr { return (*C.struct_fid_cntr)(n.pointer()) }

func (n *Counter) waitable() *object { return &n.object }

// Read returns the number of successes, 0 for a closed counter (fi_cntr_read). With manual progress
// Read drives the progress of the endpoints that are bound to the counter.
func (n *Counter) Read() uint64 {
	if !n.isOpen() {
		return 0
	}
	return uint64(C.fi_cntr_read(n.c()))
}

// ReadErr returns the number of failures, 0 for a closed counter (fi_cntr_readerr).
func (n *Counter) ReadErr() uint64 {
	if !n.isOpen() {
		return 0
	}
	return uint64(C.fi_cntr_readerr(n.c()))
}

// Add adds to the number of successes (fi_cntr_add).
func (n *Counter) Add(value uint64) error {
	return n.change("fi_cntr_add", func(c *C.struct_fid_cntr) C.int { return C.fi_cntr_add(c, C.uint64_t(value)) })
}

// AddErr adds to the number of failures (fi_cntr_adderr).
func (n *Counter) AddErr(value uint64) error {
	return n.change("fi_cntr_adderr", func(c *C.struct_fid_cntr) C.int { return C.fi_cntr_adderr(c, C.uint64_t(value)) })
}

// Set sets the number of successes (fi_cntr_set).
func (n *Counter) Set(value uint64) error {
	return n.change("fi_cntr_set", func(c *C.struct_fid_cntr) C.int { return C.fi_cntr_set(c, C.uint64_t(value)) })
}

// SetErr sets the number of failures (fi_cntr_seterr).
func (n *Counter) SetErr(value uint64) error {
	return n.change("fi_cntr_seterr", func(c *C.struct_fid_cntr) C.int { return C.fi_cntr_seterr(c, C.uint64_t(value)) })
}

func (n *Counter) change(function string, call func(*C.struct_fid_cntr) C.int) error {
	if !n.isOpen() {
		return closedError(function)
	}
	return check(function, call(n.c()))
}

// Wait blocks until the number of successes is at least threshold (fi_cntr_wait). It returns
// ErrAvail if the number of failures changes meanwhile, and ErrTimedOut after timeout; a negative
// timeout is infinite. Wait blocks an operating system thread, except with WaitYield, and drives
// progress as Read does.
func (n *Counter) Wait(threshold uint64, timeout time.Duration) error {
	const function = "fi_cntr_wait"
	if !n.isOpen() {
		return closedError(function)
	}
	if n.wait == WaitNone {
		return &Error{function, ErrInvalid} // providers do not check this
	}
	if n.wait == WaitYield {
		return check(function, C.int(-n.yieldWait(threshold, timeout)))
	}
	start := time.Now()
	e := waitFor(timeout, func(ms C.int) Errno {
		rc := C.fi_cntr_wait(n.c(), C.uint64_t(threshold), ms)
		return Errno(max(rc, -rc)) // sockets returns the errno of a timeout as a positive number
	})
	if left := timeout - time.Since(start); e == ErrTimedOut && left > 0 {
		// sockets returns ErrTimedOut too early, so wait for the rest of the timeout.
		e = n.yieldWait(threshold, left)
	}
	return check(function, C.int(-e))
}

// yieldWait is Wait for WaitYield: it polls and lets other goroutines run in between. shm supports
// no other wait object, and its fi_cntr_wait ignores the timeout.
func (n *Counter) yieldWait(threshold uint64, timeout time.Duration) Errno {
	start, failed := time.Now(), n.ReadErr()
	for n.Read() < threshold {
		switch {
		case n.ReadErr() != failed:
			return ErrAvail
		case timeout >= 0 && time.Since(start) >= timeout:
			return ErrTimedOut
		}
		runtime.Gosched()
	}
	return 0
}
