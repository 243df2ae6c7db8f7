//go:build libfabric

package fi

// #include "shim_av.h"
import "C"

import "unsafe"

// AVSetAttr is how a set is made (struct fi_av_set_attr).
type AVSetAttr struct {
	Count      int    // members expected, and the most that there may be; 0: those of the vector
	Start, End Addr   // with a Stride: the first member, and the last that may be one
	Stride     int    // 0: the set begins empty
	CommKey    []byte // of a fabric's manager of collectives; nil: none
	Flags      Flags  // FlagUniverse, and which collectives: FlagBarrierSet, ...; none of those: all
}

// AVSet is an ordered set of addresses of a vector: the members of a collective
// operation (fi_av_set(3)). Making and changing it is local. In libfabric 1.17
// only the vectors of net and rxm have sets, those of others are
// ErrNotSupported.
type AVSet struct {
	object
	av *AV
}

// OpenSet makes a set of the vector's addresses (fi_av_set). The set needs the
// vector. Members of the range are inserted one by one: 1.17 takes them from a
// copy of the vector, made for its first set.
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
		// Nothing from 1 to 0: the empty range of the man page, from
		// FI_ADDR_NOTAVAIL to the same, is full of members for 1.17.
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
			continue // "valid addresses which fall within the range"
		}
		if err := s.Insert(a); err != nil {
			return nil, closing(err, s)
		}
	}
	return s, nil
}

// closing closes what cannot be used because of err.
func closing(err error, o interface{ Close() error }) error {
	_ = o.Close()
	return err
}

// Union adds the members of src, at the end (fi_av_set_union).
func (s *AVSet) Union(src *AVSet) error {
	return s.with("fi_av_set_union", src, func(d, s *C.struct_fid_av_set) C.int { return C.fi_av_set_union(d, s) })
}

// Intersect keeps the members that src has too (fi_av_set_intersect). 1.17 loses
// some if the order differs.
func (s *AVSet) Intersect(src *AVSet) error {
	return s.with("fi_av_set_intersect", src, func(d, s *C.struct_fid_av_set) C.int { return C.fi_av_set_intersect(d, s) })
}

// Diff takes out the members that src has (fi_av_set_diff). 1.17 takes out the
// last member for each of them instead.
func (s *AVSet) Diff(src *AVSet) error {
	return s.with("fi_av_set_diff", src, func(d, s *C.struct_fid_av_set) C.int { return C.fi_av_set_diff(d, s) })
}

// Insert adds an address of the vector at the end (fi_av_set_insert). A member
// is ErrInvalid, a full set ErrNoMemory.
func (s *AVSet) Insert(a Addr) error {
	if !s.isOpen() {
		return closedError("fi_av_set_insert")
	}
	if !s.av.isKnown(a) {
		return &Error{"fi_av_set_insert", ErrInvalid}
	}
	return check("fi_av_set_insert", C.fi_av_set_insert(s.c(), C.fi_addr_t(a)))
}

// Remove takes out an address (fi_av_set_remove). One that is no member is
// ErrInvalid. The order of the others stays, but not in 1.17.
func (s *AVSet) Remove(a Addr) error {
	if !s.isOpen() {
		return closedError("fi_av_set_remove")
	}
	return check("fi_av_set_remove", C.fi_av_set_remove(s.c(), C.fi_addr_t(a)))
}

// Addr is the address of all current members, to join their group by
// (fi_av_set_addr).
func (s *AVSet) Addr() (Addr, error) {
	if !s.isOpen() {
		return AddrNotAvail, closedError("fi_av_set_addr")
	}
	a := C.fi_addr_t(AddrNotAvail)
	err := check("fi_av_set_addr", C.fi_av_set_addr(s.c(), &a))
	return Addr(a), err
}

// with calls a function of two sets, which must be of one vector.
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
