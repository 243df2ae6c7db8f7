//go:build libfabric

package fi

// #include "shim.h"
import "C"

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Context identifies one operation in flight, from the call that posts it until the caller reads
// its completion (fi_context, fi_endpoint(3)).
//
//	         posted                       completion read
//	idle ───────────────► in flight ─────────────────────────► idle
//	         buffers pinned               buffers unpinned
//
// While an operation is in flight, its Context pins the buffers, so the caller need not keep them
// alive. A receive posted with FlagMultiRecv stays in flight until a completion has FlagMultiRecv;
// the format of the completion queue must have flags for that. Closing an endpoint ends the
// operations in flight on it.
//
// A Context may be posted again when its completion has been read; that does not allocate. Posting
// a Context in flight returns ErrBusy. Calls on one Context must not run concurrently with each
// other, but may run concurrently with reads of completions.
//
// A nil Context is for operations without a completion: those posted without FlagCompletion on an
// endpoint that is bound with FlagSelectiveCompletion. The caller must keep their buffers pinned
// (runtime.Pinner) until a counter or a later completion shows that they have ended.
type Context struct {
	User any // any value of the caller; libfabric and this package do not use it

	owner atomic.Pointer[Endpoint] // the endpoint that the operation is in flight on; nil: idle; retired: closed
	// slot is the index of the memory whose address identifies the operation to libfabric. It is
	// nil before the first operation of a zero Context.
	slot *slot
	// multi: the operation is a multi-receive, which ends with a completion with FlagMultiRecv.
	multi atomic.Bool
	// claimed is the endpoint that has reserved a message for this Context (FlagPeek with
	// FlagClaim); nil: no message is reserved.
	claimed atomic.Pointer[Endpoint]
	pins    pinSet  // pins of the operation's buffers
	iov     []iovec // iovec array of the last vector operation; some providers read it after the call
	descs   []Desc  // descriptor array of the last vector operation; empty: it had no descriptors
}

// iovec has the layout of C's struct iovec: address and length in bytes. In beginAtomic it stands
// for a struct fi_ioc, and length is a number of elements.
type iovec struct{ base, length uintptr }

// retired is a placeholder: the field owner of every closed Context points to it.
var retired = new(Endpoint)

// NewContext returns a context with this User. The zero Context is valid, too, but its first
// operation allocates.
func NewContext(user any) *Context {
	c := &Context{User: user}
	c.newSlot()
	return c
}

// newSlot gives the context a [slot] without an index; begin assigns the index. When the garbage
// collector frees the context, a cleanup makes the index available again.
func (c *Context) newSlot() {
	c.slot = new(slot)
	runtime.AddCleanup(c, (*slot).free, c.slot)
}

// Close releases the memory that identifies the context's operations to libfabric; calls that post
// a closed context return ErrClosed. The garbage collector releases the memory of a context that is
// not closed. Close returns ErrBusy if the context is in flight.
func (c *Context) Close() error {
	if c == nil || c.owner.Load() == retired {
		return nil
	}
	if !c.owner.CompareAndSwap(nil, retired) {
		return ErrBusy
	}
	if c.slot != nil {
		c.slot.free()
	}
	return nil
}

// InFlight reports whether an operation with the context is in flight.
func (c *Context) InFlight() bool {
	e := c.owner.Load()
	return e != nil && e != retired
}

// Release marks an operation without a reported completion as ended: it unpins the buffers and
// makes the context idle. Call it when a counter or the completion of a later operation shows that
// the operation has ended. On an idle context Release does nothing.
func (c *Context) Release() {
	if c.InFlight() {
		c.end(c.slot.index)
	}
}

// begin marks the context as in flight on e's root. multi says that the operation is a
// multi-receive. Callers call begin before they pin the operation's buffers and call libfabric. On
// a nil context begin does nothing.
func (c *Context) begin(e *Endpoint, multi bool) error {
	if c == nil {
		return nil
	}
	if !c.owner.CompareAndSwap(nil, e.root) {
		if c.owner.Load() == retired {
			return ErrClosed
		}
		return ErrBusy
	}
	if c.slot == nil {
		c.newSlot()
	}
	if !c.slot.take() {
		c.owner.Store(nil)
		return ErrNoMemory
	}
	if c.multi.Load() != multi {
		c.multi.Store(multi)
	}
	if c.claimed.Load() != nil {
		c.claimed.Store(nil)
	}
	entryOf(c.slot.index).Store(c)
	return nil
}

// end unpins the operation's buffers and makes the context idle, if the context is still in flight
// with the slot at index. If the reader of the completion and the endpoint's Close both call it,
// only the first call has an effect.
func (c *Context) end(index uint32) {
	if entryOf(index).CompareAndSwap(c, nil) {
		c.pins.Unpin()
		c.owner.Store(nil)
	}
}

// posted returns the error of a posting call of libfabric that returned rc. After an error the
// context is idle again; after success it stays in flight until its completion.
func (c *Context) posted(rc C.ssize_t) error {
	if rc >= 0 {
		return nil
	}
	if c != nil {
		c.end(c.slot.index)
	}
	return errno(rc)
}

// address returns the address that identifies the operation to libfabric, 0 for a nil context.
func (c *Context) address() C.uintptr_t {
	if c == nil {
		return 0
	}
	return C.uintptr_t(c.slot.address())
}

// pin pins buf until the operation ends, and returns the address of buf. A nil context pins
// nothing.
func (c *Context) pin(buf []byte) C.uintptr_t {
	p := unsafe.Pointer(unsafe.SliceData(buf))
	if c != nil && p != nil {
		c.pins.Pin(p)
	}
	return escape(p)
}

// vector pins bufs. It returns the address iov of a struct iovec array for them, and the address
// desc of an array of their descriptors; desc is 0 if there are no descriptors. Both arrays belong
// to v, which is c or, if c is nil, a temporary Context. The caller must keep v alive during the
// call of libfabric.
func (c *Context) vector(bufs [][]byte, descs []Desc) (v *Context, iov, desc C.uintptr_t) {
	v = c
	if v == nil {
		v = new(Context) // a temporary Context, which holds only the arrays
	}
	v.iov, v.descs = v.iov[:0], append(v.descs[:0], descs...)
	if len(bufs) == 0 {
		v.iov = append(v.iov, iovec{}) // sockets and rxd read the first element even if the count is 0
	}
	for _, b := range bufs {
		v.iov = append(v.iov, iovec{uintptr(c.pin(b)), uintptr(len(b))})
	}
	for len(v.descs) != 0 && len(v.descs) < len(bufs) {
		var none Desc
		v.descs = append(v.descs, none)
	}
	iov = c.pinArray(unsafe.Pointer(unsafe.SliceData(v.iov)), len(v.iov))
	desc = c.pinArray(unsafe.Pointer(unsafe.SliceData(v.descs)), len(v.descs))
	return v, iov, desc
}

// pinArray pins the array of n elements at p until the operation ends, because a provider with
// ModeAsyncIov reads the array after the posting call has returned. It returns the address of the
// array, or 0 if n is 0. If c is nil, it pins nothing.
func (c *Context) pinArray(p unsafe.Pointer, n int) C.uintptr_t {
	if n == 0 {
		return 0
	}
	if c != nil {
		c.pins.Pin(p)
	}
	return escape(p)
}

// never is always false. The compiler does not know that, so the function escape makes its argument
// escape to the heap.
var (
	never bool
	sink  unsafe.Pointer
)

// escape returns p as an integer and makes the compiler allocate the object at p on the heap: Go
// may move a stack at any time, and then the integer would no longer be the object's address. The
// caller must keep the object alive during the call of libfabric.
func escape(p unsafe.Pointer) C.uintptr_t {
	if never {
		sink = p
	}
	return C.uintptr_t(uintptr(p))
}
