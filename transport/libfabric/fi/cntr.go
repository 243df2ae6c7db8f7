//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"runtime"
	"time"
)

// CntrAttr says what a counter is to be (struct fi_cntr_attr).
type CntrAttr struct {
	Bytes bool    // count bytes, not completions (FI_CNTR_EVENTS_BYTES, 2.x)
	Wait  WaitObj // any but WaitSet; WaitNone: Wait fails; WaitUnspec is the usual one
	Flags Flags
}

// Counter counts operations that have completed (fi_cntr(3)), those that its
// endpoints are bound for. It keeps two values: successes, and failures.
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
	if attr.Wait == WaitSet { // sockets would follow the null pointer to the set
		return nil, &Error{function, ErrInvalid}
	}
	c := C.struct_fi_cntr_attr{
		events:   C.FI_CNTR_EVENTS_COMP,
		wait_obj: C.enum_fi_wait_obj(attr.Wait),
		flags:    C.uint64_t(attr.Flags),
	}
	if attr.Bytes {
		if LibraryVersion() < MakeVersion(2, 0) {
			return nil, lacks(function) // it would count completions
		}
		c.events = C.WEFT_CNTR_EVENTS_BYTES
	}
	var fid *C.struct_fid_cntr
	if err := check(function, C.fi_cntr_open(d.c(), &c, &fid, nil)); err != nil {
		return nil, err
	}
	n := &Counter{wait: attr.Wait}
	if c.wait_obj == C.FI_WAIT_YIELD {
		n.wait = WaitYield // all that shm has for WaitUnspec
	}
	n.open(&fid.fid, &d.object)
	return n, nil
}

func (n *Counter) c() *C.struct_fid_cntr { return (*C.struct_fid_cntr)(n.pointer()) }

func (n *Counter) waitable() *object { return &n.object }

// Read is how many operations have succeeded (fi_cntr_read), zero for a closed
// counter. It moves the endpoints' data on where progress is manual.
func (n *Counter) Read() uint64 {
	if !n.isOpen() {
		return 0
	}
	return uint64(C.fi_cntr_read(n.c()))
}

// ReadErr is how many operations have failed (fi_cntr_readerr).
func (n *Counter) ReadErr() uint64 {
	if !n.isOpen() {
		return 0
	}
	return uint64(C.fi_cntr_readerr(n.c()))
}

// Add adds to the successes (fi_cntr_add).
func (n *Counter) Add(value uint64) error {
	return n.change("fi_cntr_add", func(c *C.struct_fid_cntr) C.int { return C.fi_cntr_add(c, C.uint64_t(value)) })
}

// AddErr adds to the failures (fi_cntr_adderr).
func (n *Counter) AddErr(value uint64) error {
	return n.change("fi_cntr_adderr", func(c *C.struct_fid_cntr) C.int { return C.fi_cntr_adderr(c, C.uint64_t(value)) })
}

// Set sets the successes (fi_cntr_set).
func (n *Counter) Set(value uint64) error {
	return n.change("fi_cntr_set", func(c *C.struct_fid_cntr) C.int { return C.fi_cntr_set(c, C.uint64_t(value)) })
}

// SetErr sets the failures (fi_cntr_seterr).
func (n *Counter) SetErr(value uint64) error {
	return n.change("fi_cntr_seterr", func(c *C.struct_fid_cntr) C.int { return C.fi_cntr_seterr(c, C.uint64_t(value)) })
}

func (n *Counter) change(function string, call func(*C.struct_fid_cntr) C.int) error {
	if !n.isOpen() {
		return closedError(function)
	}
	return check(function, call(n.c()))
}

// Wait returns when the successes have reached threshold (fi_cntr_wait), or with
// ErrAvail when another operation has failed, or with ErrTimedOut when timeout
// is over; a negative one never is. It blocks a thread of the system, but for
// WaitYield, and moves data on as Read does.
func (n *Counter) Wait(threshold uint64, timeout time.Duration) error {
	const function = "fi_cntr_wait"
	if !n.isOpen() {
		return closedError(function)
	}
	if n.wait == WaitNone {
		return &Error{function, ErrInvalid} // providers do not look
	}
	if n.wait == WaitYield {
		return check(function, C.int(-n.yieldWait(threshold, timeout)))
	}
	start := time.Now()
	e := waitFor(timeout, func(ms C.int) Errno {
		rc := C.fi_cntr_wait(n.c(), C.uint64_t(threshold), ms)
		return Errno(max(rc, -rc)) // sockets has the number of the timeout positive
	})
	if left := timeout - time.Since(start); e == ErrTimedOut && left > 0 {
		e = n.yieldWait(threshold, left) // sockets gives up at once
	}
	return check(function, C.int(-e))
}

// yieldWait is Wait for WaitYield: to look again and again, and to let others
// run in between. shm has nothing else, and does not look at the time.
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
