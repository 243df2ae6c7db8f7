//go:build libfabric

package fi

// #include "shim.h"
import "C"

import (
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Context names one operation on its way, from the call that posts it to the
// read of its completion (fi_context, fi_endpoint(3)).
//
//	         posted                       completion read
//	idle ───────────────► in flight ─────────────────────────► idle
//	         buffers pinned               buffers unpinned
//
// While it is in flight the buffers of the operation are pinned, so nobody else
// has to keep them. A receive posted with FlagMultiRecv stays in flight until a
// completion says FlagMultiRecv; that takes a completion queue whose format has
// flags. Closing an endpoint ends what is in flight on it.
//
// A Context may be posted again as soon as its completion has been read, and
// costs no allocation then. Posting it while it is in flight is ErrBusy. It is
// used by one goroutine at a time, other than the one that reads completions.
//
// A nil Context is for operations that report nothing: those of an endpoint
// bound with FlagSelectiveCompletion and posted without FlagCompletion. Their
// buffers the caller keeps pinned (runtime.Pinner) until a counter or a later
// completion says that they are free.
type Context struct {
	User any // whatever the owner wants to find by a completion

	owner atomic.Pointer[Endpoint] // where it is in flight; nil: idle
	slot  *slot                    // the memory that libfabric calls the operation by
	multi atomic.Bool              // in flight until FlagMultiRecv
	aside atomic.Pointer[Endpoint] // keeps a message for it, which was peeked at
	pins  pinSet                   // the operation's buffers
	iov   []iovec                  // what the last vector operation read from, which some providers do late
	descs []Desc
}

// iovec is struct iovec.
type iovec struct{ base, length uintptr }

// retired is the owner of contexts that are closed.
var retired = new(Endpoint)

// NewContext makes a context that holds user for its owner. The zero Context is
// one as well, whose first operation allocates.
func NewContext(user any) *Context {
	c := &Context{User: user}
	c.settle()
	return c
}

// settle gives the context a slot, which has no memory yet.
func (c *Context) settle() {
	c.slot = new(slot)
	runtime.AddCleanup(c, (*slot).free, c.slot)
}

// Close gives the context's memory back, which the garbage collector does as
// well. A context in flight answers ErrBusy.
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

// InFlight says whether an operation has the context.
func (c *Context) InFlight() bool {
	e := c.owner.Load()
	return e != nil && e != retired
}

// Release ends an operation whose completion is not reported, after a counter
// or the completion of a later operation has said that it is over: its buffers
// are unpinned and the context is idle. Nothing happens to an idle one.
func (c *Context) Release() {
	if c.InFlight() {
		c.end(c.slot.index)
	}
}

// begin puts the context in flight on e, before the operation's buffers are
// pinned and before libfabric is called.
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
		c.settle()
	}
	if !c.slot.take() {
		c.owner.Store(nil)
		return ErrNoMemory
	}
	if c.multi.Load() != multi {
		c.multi.Store(multi)
	}
	if c.aside.Load() != nil {
		c.aside.Store(nil)
	}
	entryOf(c.slot.index).Store(c)
	return nil
}

// end makes the context idle that is in flight with the slot, for whoever comes
// first: the reader of the completion, or the endpoint's Close.
func (c *Context) end(index uint32) {
	if entryOf(index).CompareAndSwap(c, nil) {
		c.pins.Unpin()
		c.owner.Store(nil)
	}
}

// posted is the error of a posting call that returned rc. Unless it succeeded
// the context is idle again; after success it belongs to the completion.
func (c *Context) posted(rc C.ssize_t) error {
	if rc >= 0 {
		return nil
	}
	if c != nil {
		c.end(c.slot.index)
	}
	return errno(rc)
}

// address is what libfabric calls the operation by: 0 without a context.
func (c *Context) address() C.uintptr_t {
	if c == nil {
		return 0
	}
	return C.uintptr_t(c.slot.address())
}

// pin keeps buf where it is until the operation ends, and returns its address.
func (c *Context) pin(buf []byte) C.uintptr_t {
	p := unsafe.Pointer(unsafe.SliceData(buf))
	if c != nil && p != nil {
		c.pins.Pin(p)
	}
	return escape(p)
}

// vector pins buffers, and returns the addresses of an array of struct iovec
// that names them and of an array of their descriptors, 0 if there are none.
// The arrays are Go memory that lives as long as v does, which the caller keeps
// alive over its call.
func (c *Context) vector(bufs [][]byte, descs []Desc) (v *Context, iov, desc C.uintptr_t) {
	v = c
	if v == nil {
		v = new(Context) // a place for the arrays alone
	}
	v.iov, v.descs = v.iov[:0], append(v.descs[:0], descs...)
	if len(bufs) == 0 {
		v.iov = append(v.iov, iovec{}) // sockets and rxd look at the first even so
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

// pinArray pins an array of n elements, for providers that read it after the
// call (ModeAsyncIov), and returns its address.
func (c *Context) pinArray(p unsafe.Pointer, n int) C.uintptr_t {
	if n == 0 {
		return 0
	}
	if c != nil {
		c.pins.Pin(p)
	}
	return escape(p)
}

// never is false, which the compiler does not know.
var (
	never bool
	sink  unsafe.Pointer
)

// escape is the address of p, which lies on the heap from now on: stacks move,
// also between two instructions, so an address on one must not become an
// integer. The caller keeps p alive over its call.
func escape(p unsafe.Pointer) C.uintptr_t {
	if never {
		sink = p
	}
	return C.uintptr_t(uintptr(p))
}
