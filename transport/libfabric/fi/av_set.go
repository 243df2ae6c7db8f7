//go:build libfabric

package fi

// #include "shim_av.h"
import "C"

import "unsafe"

// AVSetAttr has the attributes for opening an AVSet (struct fi_av_set_attr).
type AVSetAttr struct {
	Count      int    // largest number of members; 0: the size of the vector
	Start, End Addr   // if Stride is not 0: the first and the last Addr of the range of the first members
	Stride     int    // distance between two Addrs of this range; 0: the set is empty at first
	CommKey    []byte // key from the fabric's manager of collective operations; nil: none
	// Flags may have FlagUniverse, and the flags of the collectives that the set is for, such as
	// FlagBarrierSet. Without flags of collectives the set is for all of them.
	Flags Flags
}

// AVSet is an ordered set of addresses of a vector: the members of a collective operation
// (fi_av_set(3)). Opening and changing a set is local. In libfabric 1.17 only net and rxm support
// sets; other providers return ErrNotSupported.
type AVSet struct {
	object
	av *AV
}

// OpenSet opens a set of the vector's addresses (fi_av_set). Addrs of the range from attr.Start to
// attr.End that are not in the vector do not become members. The vector cannot be closed before the
// set. OpenSet does not pass the range to libfabric, but inserts the members one by one: libfabric
// 1.17 would take them from a copy of the vector that it made when the first set was opened.
func (v *AV) OpenSet(attr AVSetAttr) (*AVSet, error) {
	const function = "fi_av_set"
	if !v.isOpen() {
		return nil, closedError(function)
	}
	if attr.Count < 0 || attr.Stride < 0 || attr.Stride > 0 && attr.End < attr.Start {
		return nil, &Error{function, ErrInvalid}
	}
	c := C.struct_fi_av_set_attr{
		count: C.size_t(attr.Count),
		// From 1 to 0 is an empty range. According to the man page an empty range has
		// FI_ADDR_NOTAVAIL as both bounds, but libfabric 1.17 takes these for a range
		// with members.
		start_addr: 1,
		end_addr:   0,
		stride:     1,
		flags:      C.uint64_t(attr.Flags),
	}
	if len(attr.CommKey) > 0 {
		c.comm_key_size = C.size_t(len(attr.CommKey))
		c.comm_key = (*C.uint8_t)(C.CBytes(attr.CommKey))
		defer C.free(unsafe.Pointer(c.comm_key))
	}
	var fid *C.struct_fid_av_set
	if err := check(function, C.fi_av_set(v.c(), &c, &fid, nil)); err != nil {
		return nil, err
	}
	s := &AVSet{av: v}
	s.open(&fid.fid, &v.object)
	end := attr.End
	if v.known != nil {
		end = min(end, v.known.last())
	}
	for a := attr.Start; attr.Stride > 0 && attr.Start <= a && a <= end; a += Addr(attr.Stride) {
		if !v.isKnown(a) {
			continue // fi_av_set(3): the members are the "valid addresses which fall within the range"
		}
		if err := s.Insert(a); err != nil {
			return nil, closing(err, s)
		}
	}
	return s, nil
}

// closing closes o, because it is unusable after err, and returns err.
func closing(err error, o interface{ Close() error }) error {
	_ = o.Close()
	return err
}

// Union appends those members of src that s does not contain (fi_av_set_union).
func (s *AVSet) Union(src *AVSet) error {
	return s.with("fi_av_set_union", src, func(d, s *C.struct_fid_av_set) C.int { return C.fi_av_set_union(d, s) })
}

// Intersect removes the members that src does not contain (fi_av_set_intersect). libfabric 1.17
// also removes some that src contains, if the two sets have different orders.
func (s *AVSet) Intersect(src *AVSet) error {
	return s.with("fi_av_set_intersect", src, func(d, s *C.struct_fid_av_set) C.int { return C.fi_av_set_intersect(d, s) })
}

// Diff removes the members that src contains (fi_av_set_diff). libfabric 1.17 removes the right
// number of members, but takes them from the end of the set.
func (s *AVSet) Diff(src *AVSet) error {
	return s.with("fi_av_set_diff", src, func(d, s *C.struct_fid_av_set) C.int { return C.fi_av_set_diff(d, s) })
}

// Insert appends an address of the vector (fi_av_set_insert). It returns ErrInvalid if the address
// is not in the vector or is a member already, and ErrNoMemory if the set is full.
func (s *AVSet) Insert(a Addr) error {
	if !s.isOpen() {
		return closedError("fi_av_set_insert")
	}
	if !s.av.isKnown(a) {
		return &Error{"fi_av_set_insert", ErrInvalid}
	}
	return check("fi_av_set_insert", C.fi_av_set_insert(s.c(), C.fi_addr_t(a)))
}

// Remove removes an address (fi_av_set_remove). It returns ErrInvalid if the address is not a
// member. The other members keep their order, except with libfabric 1.17.
func (s *AVSet) Remove(a Addr) error {
	if !s.isOpen() {
		return closedError("fi_av_set_remove")
	}
	return check("fi_av_set_remove", C.fi_av_set_remove(s.c(), C.fi_addr_t(a)))
}

// Addr returns an address that stands for all current members, for joining their collective group
// (fi_av_set_addr).
func (s *AVSet) Addr() (Addr, error) {
	if !s.isOpen() {
		return AddrNotAvail, closedError("fi_av_set_addr")
	}
	a := C.fi_addr_t(AddrNotAvail)
	err := check("fi_av_set_addr", C.fi_av_set_addr(s.c(), &a))
	return Addr(a), err
}

// with calls f with the sets s and src. f calls the C function with this name. If s and src are not
// sets of the same vector, with returns ErrInvalid.
func (s *AVSet) with(function string, src *AVSet, f func(dst, src *C.struct_fid_av_set) C.int) error {
	if !s.isOpen() || !src.isOpen() {
		return closedError(function)
	}
	if s.av != src.av {
		return &Error{function, ErrInvalid}
	}
	return check(function, f(s.c(), src.c()))
}

func (s *AVSet) c() *C.struct_fid_av_set { return (*C.struct_fid_av_set)(s.pointer()) }
