//go:build libfabric

package fi

// #include "shim.h"
import "C"

// EQ is an event queue: it tells of connections, and of control operations
// that have ended (fi_eq(3)).
type EQ struct {
	object
}

// EQAttr describes a queue to be opened (struct fi_eq_attr).
type EQAttr struct {
	Size            int   // entries, at least; zero: the provider's choice
	Flags           Flags // FlagWrite to write events, FlagAffinity
	Wait            WaitObj
	SignalingVector int // the processor to interrupt, with FlagAffinity
}

// OpenEQ opens an event queue (fi_eq_open).
func (f *Fabric) OpenEQ(attr EQAttr) (*EQ, error) {
	if !f.isOpen() {
		return nil, closedError("fi_eq_open")
	}
	a := C.struct_fi_eq_attr{
		size:             C.size_t(attr.Size),
		flags:            C.uint64_t(attr.Flags),
		wait_obj:         C.enum_fi_wait_obj(attr.Wait),
		signaling_vector: C.int(attr.SignalingVector),
	}
	var c *C.struct_fid_eq
	if err := check("fi_eq_open", C.fi_eq_open(f.c(), &a, &c, nil)); err != nil {
		return nil, err
	}
	q := new(EQ)
	q.open(&c.fid, &f.object)
	return q, nil
}

func (q *EQ) c() *C.struct_fid_eq { return (*C.struct_fid_eq)(q.pointer()) }

func (q *EQ) waitable() *object { return &q.object }
