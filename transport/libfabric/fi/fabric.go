//go:build libfabric

package fi

// #include "shim.h"
import "C"

// Fabric is a network as one provider sees it (fi_fabric(3)).
type Fabric struct {
	object
	provider string
}

// OpenFabric opens the fabric that info describes (fi_fabric).
func OpenFabric(info *Info) (*Fabric, error) {
	loaded.Store(true)
	var (
		c  *C.struct_fid_fabric
		rc C.int
	)
	if err := info.withC(func(i *C.struct_fi_info) { rc = C.fi_fabric(i.fabric_attr, &c, nil) }); err != nil {
		return nil, err
	}
	if err := check("fi_fabric", rc); err != nil {
		return nil, err
	}
	f := &Fabric{provider: info.Fabric.ProvName}
	f.open(&c.fid)
	return f, nil
}

// matches reports whether info has the fabric's provider, or names no provider. Providers do not
// check that: they would misinterpret an Info of another provider, or crash.
func (f *Fabric) matches(info *Info) bool {
	return info != nil && (info.Fabric.ProvName == f.provider || info.Fabric.ProvName == "")
}

func (f *Fabric) c() *C.struct_fid_fabric { return (*C.struct_fid_fabric)(f.pointer()) }

// Waitable is an object that TryWait takes, whose file descriptors a thread can sleep on: an EQ, a
// CQ or a Counter.
type Waitable interface{ waitable() *object }

// hasDescriptor reports whether o was opened with WaitFD or WaitPollFD.
func hasDescriptor(o Waitable) bool {
	var wait WaitObj
	switch o := o.(type) {
	case *EQ:
		wait = o.wait
	case *CQ:
		wait = o.wait
	case *Counter:
		wait = o.wait
	}
	return wait == WaitFD || wait == WaitPollFD
}

// TryWait returns nil if a thread may sleep on the descriptors of the objects (fi_trywait). It
// returns ErrAgain if there may be completions or events; then the caller must read the objects
// first. It returns ErrInvalid for an object that was not opened with WaitFD or WaitPollFD.
func (f *Fabric) TryWait(objs ...Waitable) error {
	const function = "fi_trywait"
	if !f.isOpen() {
		return closedError(function)
	}
	fids := make([]*C.struct_fid, len(objs)+1) // at least one element, so that &fids[0] is valid
	for i, o := range objs {
		w := o.waitable()
		if !w.isOpen() {
			return closedError(function)
		}
		if !hasDescriptor(o) { // providers would dereference the object's wait object, which is NULL
			return &Error{function, ErrInvalid}
		}
		fids[i] = w.fid
	}
	return check(function, C.fi_trywait(f.c(), &fids[0], C.int(len(objs))))
}
