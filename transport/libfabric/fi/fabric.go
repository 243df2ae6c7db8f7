//go:build libfabric

package fi

// #include "shim.h"
import "C"

// Fabric is a network as one provider sees it (fi_fabric(3)).
type Fabric struct {
	object
	provider string
}

// OpenFabric opens the fabric of an Info (fi_fabric).
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

// offers says whether an Info can be of this fabric: providers take each other's
// for their own, or crash.
func (f *Fabric) offers(info *Info) bool {
	return info != nil && (info.Fabric.ProvName == f.provider || info.Fabric.ProvName == "")
}

func (f *Fabric) c() *C.struct_fid_fabric { return (*C.struct_fid_fabric)(f.pointer()) }

// Waitable is what a thread can wait on besides the library's own calls: an
// EQ, a CQ or a Counter.
type Waitable interface{ waitable() *object }

// sleeps says whether an object was opened with something to sleep on.
func sleeps(o Waitable) bool {
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

// TryWait says whether the thread may sleep on the descriptors of the objects
// (fi_trywait): ErrAgain means that something is there to be read, or may be,
// and has to be looked at first. An object that was not opened with WaitFD or
// WaitPollFD is ErrInvalid.
func (f *Fabric) TryWait(objs ...Waitable) error {
	const function = "fi_trywait"
	if !f.isOpen() {
		return closedError(function)
	}
	fids := make([]*C.struct_fid, len(objs)+1) // one more: there may be none
	for i, o := range objs {
		w := o.waitable()
		if !w.isOpen() {
			return closedError(function)
		}
		if !sleeps(o) { // providers would follow a null pointer to its wait object
			return &Error{function, ErrInvalid}
		}
		fids[i] = w.fid
	}
	return check(function, C.fi_trywait(f.c(), &fids[0], C.int(len(objs))))
}
