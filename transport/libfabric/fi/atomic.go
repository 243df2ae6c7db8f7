//go:build libfabric

package fi

// #include "shim_atomic.h"
import "C"

import (
	"math"
	"runtime"
	"strings"
	"sync/atomic"
)

// Atomic operations (fi_atomic(3)) on the elements of a peer's memory, each
// element by itself, atomically towards other operations of the same provider;
// towards the peer's own loads and stores only as far as the provider says.
//
// The peer's memory is named as in RMA; what the region's Access must permit
// is AccessRemoteWrite, for fetching and comparing AccessRemoteRead as well.
// Buffers hold whole elements of the datatype in the machine's own form: their
// lengths say how many there are. They belong to libfabric until the completion
// has been read. The target should be aligned to the size of an element.
//
// What a provider can do is asked by AtomicValid, FetchAtomicValid and
// CompareAtomicValid. The calls ask as well, once for each operation and datatype,
// and post nothing else: with several providers the target would jump to address
// zero. Of rxd before libfabric 2.0 nothing that fetches is valid, whatever it
// says itself: its completion would end the process by and by.
//
// The calls do not block and, but for the first, do not allocate. They return a
// bare Errno: ErrAgain if the endpoint is full or not yet connected, and the
// caller is to read the completion queue and post again; ErrNotSupported for what
// the provider cannot do; ErrMsgSize for more elements than it takes, ErrTooBig for
// more buffers; ErrInvalid
// for a buffer that is no multiple of an element, or buffers that do not fit
// together; ErrBusy if ctx is in flight; ErrClosed.

// family is which of the three kinds of call.
type family = C.enum_weft_family

// target is what all calls have in common.
func target(dest Addr, addr, key uint64, t Datatype, op AtomicOp) C.struct_weft_target {
	return C.struct_weft_target{
		dest: C.fi_addr_t(dest), addr: C.uint64_t(addr), key: C.uint64_t(key),
		datatype: C.uint32_t(t), op: C.uint32_t(op),
	}
}

// Atomic does op with the elements of buf to those of dest (fi_atomic).
func (e *Endpoint) Atomic(buf []byte, desc Desc, dest Addr, addr, key uint64, t Datatype, op AtomicOp, ctx *Context) error {
	n, err := e.elements(C.WEFT_BASE, buf, dest, t, op)
	if err != nil {
		return err
	}
	if err := ctx.begin(e.root, false); err != nil {
		return err
	}
	rc := C.weft_atomic(e.ep(), ctx.pin(buf), n, desc.c(), target(dest, addr, key, t, op), ctx.address())
	runtime.KeepAlive(buf)
	return ctx.posted(rc)
}

// InjectAtomic is Atomic with at most TxAttr.InjectSize bytes; buf is the
// caller's again on return and there is no completion (fi_inject_atomic).
func (e *Endpoint) InjectAtomic(buf []byte, dest Addr, addr, key uint64, t Datatype, op AtomicOp) error {
	if err := e.injects(len(buf), dest); err != nil {
		return err
	}
	n, err := e.elements(C.WEFT_BASE, buf, dest, t, op)
	if err != nil {
		return err
	}
	rc := C.weft_inject_atomic(e.ep(), (*Context)(nil).pin(buf), n, target(dest, addr, key, t, op))
	runtime.KeepAlive(buf)
	return (*Context)(nil).posted(rc)
}

// FetchAtomic is Atomic and puts the former values of dest's elements into
// result, which is as long as buf (fi_fetch_atomic). AtomicRead needs no buf.
func (e *Endpoint) FetchAtomic(buf []byte, desc Desc, result []byte, resultDesc Desc,
	dest Addr, addr, key uint64, t Datatype, op AtomicOp, ctx *Context,
) error {
	n, err := e.elements(C.WEFT_FETCH, result, dest, t, op)
	if err != nil {
		return err
	}
	if len(buf) != len(result) && (op != AtomicRead || len(buf) != 0) {
		return ErrInvalid
	}
	if err := ctx.begin(e.root, false); err != nil {
		return err
	}
	rc := C.weft_fetch_atomic(e.ep(), ctx.pin(buf), n, desc.c(), ctx.pin(result), resultDesc.c(),
		target(dest, addr, key, t, op), ctx.address())
	runtime.KeepAlive(buf)
	runtime.KeepAlive(result)
	return ctx.posted(rc)
}

// CompareAtomic replaces the elements of dest by those of buf where the
// comparison of op with the elements of compare holds, or as the masks in
// compare say, and puts their former values into result (fi_compare_atomic).
// The three buffers are equally long.
func (e *Endpoint) CompareAtomic(buf []byte, desc Desc, compare []byte, compareDesc Desc, result []byte, resultDesc Desc,
	dest Addr, addr, key uint64, t Datatype, op AtomicOp, ctx *Context,
) error {
	n, err := e.elements(C.WEFT_COMPARE, result, dest, t, op)
	if err != nil {
		return err
	}
	if len(buf) != len(result) || len(compare) != len(result) {
		return ErrInvalid
	}
	if err := ctx.begin(e.root, false); err != nil {
		return err
	}
	rc := C.weft_compare_atomic(e.ep(), ctx.pin(buf), n, desc.c(), ctx.pin(compare), compareDesc.c(),
		ctx.pin(result), resultDesc.c(), target(dest, addr, key, t, op), ctx.address())
	runtime.KeepAlive(buf)
	runtime.KeepAlive(compare)
	runtime.KeepAlive(result)
	return ctx.posted(rc)
}

// AtomicValid asks whether Atomic does op on elements of t, and if so on how
// many at once (fi_atomicvalid). The error is ErrNotSupported if it does not.
func (e *Endpoint) AtomicValid(t Datatype, op AtomicOp) (count int, err error) {
	return e.atomicValid("fi_atomicvalid", C.WEFT_BASE, t, op)
}

// FetchAtomicValid is AtomicValid for FetchAtomic (fi_fetch_atomicvalid).
func (e *Endpoint) FetchAtomicValid(t Datatype, op AtomicOp) (count int, err error) {
	return e.atomicValid("fi_fetch_atomicvalid", C.WEFT_FETCH, t, op)
}

// CompareAtomicValid is AtomicValid for CompareAtomic (fi_compare_atomicvalid).
func (e *Endpoint) CompareAtomicValid(t Datatype, op AtomicOp) (count int, err error) {
	return e.atomicValid("fi_compare_atomicvalid", C.WEFT_COMPARE, t, op)
}

func (e *Endpoint) atomicValid(function string, kind family, t Datatype, op AtomicOp) (int, error) {
	if !e.isOpen() {
		return 0, closedError(function)
	}
	if !t.known() || !op.known() || kind != C.WEFT_BASE && e.domain.fetchingCrashes() {
		return 0, lacks(function)
	}
	var count C.size_t
	rc := C.weft_atomicvalid(e.ep(), kind, C.uint32_t(t), C.uint32_t(op), &count)
	if err := check(function, rc); err != nil {
		return 0, err
	}
	return int(count), nil
}

// Flags of QueryAtomic, besides FlagTagged.
const (
	FlagFetchAtomic   Flags = C.FI_FETCH_ATOMIC
	FlagCompareAtomic Flags = C.FI_COMPARE_ATOMIC
)

// AtomicAttr is how a domain does an operation (struct fi_atomic_attr).
type AtomicAttr struct {
	Count int // elements at once
	Size  int // bytes of one
}

// QueryAtomic asks how the domain does op on elements of t: without flags by
// Atomic, with FlagFetchAtomic by FetchAtomic, with FlagCompareAtomic by
// CompareAtomic, with FlagTagged to a tagged receive buffer (fi_query_atomic).
// The error is ErrNotSupported if it does not.
func (d *Domain) QueryAtomic(t Datatype, op AtomicOp, flags Flags) (AtomicAttr, error) {
	const function = "fi_query_atomic"
	if !d.isOpen() {
		return AtomicAttr{}, closedError(function)
	}
	if !t.known() || !op.known() || flags&(FlagFetchAtomic|FlagCompareAtomic) != 0 && d.fetchingCrashes() {
		return AtomicAttr{}, lacks(function)
	}
	var attr C.struct_fi_atomic_attr
	rc := C.fi_query_atomic((*C.struct_fid_domain)(d.pointer()), C.enum_fi_datatype(t), C.enum_fi_op(op),
		&attr, C.uint64_t(flags))
	if err := check(function, rc); err != nil {
		return AtomicAttr{}, err
	}
	return AtomicAttr{Count: int(attr.count), Size: int(attr.size)}, nil
}

// fetchingCrashes says whether the provider is one that forgets an atomic
// operation when the peer has acknowledged it, though what it fetches is still to
// come.
func (d *Domain) fetchingCrashes() bool {
	return strings.HasSuffix(d.fabric.provider, "ofi_rxd") && LibraryVersion() < MakeVersion(2, 0)
}

// elements is how many of t there are in buf, if a call of that family may do op
// with them at dest.
func (e *Endpoint) elements(kind family, buf []byte, dest Addr, t Datatype, op AtomicOp) (C.size_t, error) {
	if err := e.reaches(dest); err != nil {
		return 0, err
	}
	limit := e.root.atomicLimit(kind, t, op)
	if limit == 0 {
		return 0, ErrNotSupp
	}
	size := t.Size()
	if len(buf)%size != 0 {
		return 0, ErrInvalid
	}
	if len(buf)/size > limit {
		return 0, ErrMsgSize
	}
	return C.size_t(len(buf) / size), nil
}

// atomicLimits has the answers of AtomicValid and its siblings, one more than
// each: 0 has not been asked yet.
type atomicLimits struct {
	table atomic.Pointer[[C.WEFT_COMPARE + 1][C.WEFT_ATOMIC_OP_END][C.WEFT_DATATYPE_END]atomic.Int32]
}

// atomicLimit is how many elements the provider takes at once, 0 if it cannot do
// op at all.
func (e *Endpoint) atomicLimit(kind family, t Datatype, op AtomicOp) int {
	if !t.known() || !op.known() {
		return 0
	}
	table := e.atomics.table.Load()
	if table == nil {
		table = new([C.WEFT_COMPARE + 1][C.WEFT_ATOMIC_OP_END][C.WEFT_DATATYPE_END]atomic.Int32)
		e.atomics.table.Store(table) // another goroutine's answers are the same
	}
	limit := &table[kind][op][t]
	if n := limit.Load(); n != 0 {
		return int(n) - 1
	}
	n, _ := e.atomicValid("", kind, t, op)
	n = min(n, math.MaxInt32-1)
	limit.Store(int32(n) + 1)
	return n
}
