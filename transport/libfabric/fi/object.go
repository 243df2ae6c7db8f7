//go:build libfabric

package fi

// #include "shim.h"
import "C"

import (
	"sync"
	"unsafe"
)

// objects is the lock of the process that guards, in every [object], the fields that record which
// objects need it and which it needs. These fields change only when an object is opened, bound or
// closed.
var objects sync.Mutex

// object is embedded in each type that stands for an open object of libfabric, which in C begins
// with a struct fid.
//
// refs counts the open objects that need this one: those that were opened from it, and those that
// were bound to it. Close relies on refs, because each provider counts only some of these
// references itself.
type object struct {
	fid    *C.struct_fid // the object in C; nil: closed
	needs  []*object     // the objects that this one needs: the refs of each counts this one
	refs   int           // number of open objects that need this one; guarded by the lock objects
	closed []func()      // functions that Close runs after closing the object, for example to unpin memory
}

// open initialises o for the open libfabric object fid, and records that o needs the objects in
// needs.
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

// isOpen reports whether the object is open. No call on a closed object may reach the library.
func (o *object) isOpen() bool { return o != nil && o.fid != nil }

// pointer returns the C object: every struct fid_xxx begins with its struct fid.
func (o *object) pointer() unsafe.Pointer { return unsafe.Pointer(o.fid) }
