//go:build libfabric

package fi

// #include "shim.h"
import "C"

import (
	"sync"
	"unsafe"
)

// objects guards the references between objects. They change only when
// something is opened, bound or closed.
var objects sync.Mutex

// object is the common part of everything with a struct fid.
//
// refs counts the open objects that need this one: those that were opened from it, and those that
// were bound to it. Providers count some of these themselves, but not all, and not all providers the
// same ones.
type object struct {
	fid    *C.struct_fid // nil: closed
	needs  []*object     // objects whose refs count this one
	refs   int           // guarded by objects
	closed []func()      // functions that Close runs once, to unpin and free memory
}

// open initialises o as an open object that needs others.
func (o *object) open(fid *C.struct_fid, needs ...*object) {
	objects.Lock()
	defer objects.Unlock()
	o.fid = fid
	for _, n := range needs {
		n.refs++
	}
	o.needs = append(o.needs, needs...)
}

// bind records that o, which is open, needs another object from now on.
func (o *object) bind(other *object) {
	objects.Lock()
	defer objects.Unlock()
	other.refs++
	o.needs = append(o.needs, other)
}

// Close closes the object (fi_close). If another open object needs it, as endpoints need their
// domain, Close returns ErrBusy and changes nothing. Closing a closed object does nothing.
func (o *object) Close() error {
	if o == nil {
		return nil
	}
	objects.Lock()
	defer objects.Unlock()
	if o.fid == nil {
		return nil
	}
	if o.refs > 0 {
		return &Error{"fi_close", ErrBusy}
	}
	if err := check("fi_close", C.fi_close(o.fid)); err != nil {
		return err
	}
	o.fid = nil
	for _, n := range o.needs {
		n.refs--
	}
	o.needs = nil
	for _, f := range o.closed {
		f()
	}
	o.closed = nil
	return nil
}

// isOpen reports whether calls on the object may go to the library.
func (o *object) isOpen() bool { return o != nil && o.fid != nil }

// pointer returns the C object: every struct fid_xxx begins with its struct fid.
func (o *object) pointer() unsafe.Pointer { return unsafe.Pointer(o.fid) }
