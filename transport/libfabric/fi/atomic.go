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

// Atomic operations (fi_atomic(3)) work on the elements of a peer's memory. Each element is updated
// atomically with respect to other atomic operations of the same provider, and with respect to the
// peer's own loads and stores only if the provider documents that.
//
// The arguments addr and key name the peer's memory as in RMA calls. The memory's region must
// permit AccessRemoteWrite, and AccessRemoteRead as well for fetching and comparing operations.
// Buffers hold whole elements of the datatype in native byte order; the number of elements follows
// from the size of the buffers. Buffers belong to libfabric until the completion has been read. The
// address of the target should be a multiple of the size of an element.
//
// AtomicValid, FetchAtomicValid and CompareAtomicValid report what a provider supports. Every
// posting call checks that, too, and posts no unsupported operation, because with several providers
// the target process would jump to address zero. With rxd before libfabric 2.0 this package treats
// fetching and comparing operations as unsupported, although rxd reports them as supported, because
// the completion of such an operation may crash the process.
//
// The calls do not block. The first call on an endpoint allocates, and so do calls with vectors
// without a Context. Errors are not wrapped in an Error. Among them are:
//
//   - ErrAgain: the endpoint has no room or is not connected yet; read the completion queue and
//     post again.
//   - ErrNotSupported: the provider does not support the operation.
//   - ErrMsgSize: too many elements, or too many bytes to inject.
//   - ErrTooBig: too many buffers or segments.
//   - ErrInvalid: the size of a buffer is not a multiple of the element size, or the numbers of
//     elements do not match.
//   - ErrBusy: ctx is in flight.
//   - ErrOpBadState: the endpoint is not enabled.
//   - ErrClosed: the endpoint or ctx is closed.

// family says which C function does an operation: fi_atomic (C.WEFT_BASE), fi_fetch_atomic
// (C.WEFT_FETCH) or fi_compare_atomic (C.WEFT_COMPARE).
type family = C.enum_weft_family

// target returns the arguments that all atomic calls have in common, as the C functions in
// shim_atomic.h take them.
func target(dest Addr, addr, key uint64, t Datatype, op AtomicOp) C.struct_weft_target {
	return C.struct_weft_target{
		dest: C.fi_addr_t(dest), addr: C.uint64_t(addr), key: C.uint64_t(key),
		datatype: C.uint32_t(t), op: C.uint32_t(op),
	}
}

// Atomic applies op to the elements of dest's memory, with the elements of buf as operands
// (fi_atomic).
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

// InjectAtomic is Atomic for at most TxAttr.InjectSize bytes (fi_inject_atomic). When InjectAtomic
// returns, the caller may reuse buf. There is no completion.
func (e *Endpoint) InjectAtomic(buf []byte, dest Addr, addr, key uint64, t Datatype, op AtomicOp) error {
	if err := e.checkInject(len(buf), dest); err != nil {
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

// FetchAtomic does what Atomic does, and also stores the former values of the target's elements in
// result, which must be as long as buf (fi_fetch_atomic). With AtomicRead buf may be empty.
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

// CompareAtomic compares each element of the target with the element of compare, and if op's
// comparison holds, replaces it by the element of buf (fi_compare_atomic). With AtomicMaskSwap the
// elements of compare are masks of the bits to replace. CompareAtomic stores the former values of
// the target's elements in result. The three buffers must be of equal length.
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

// AtomicValid returns how many elements of type t one Atomic with op takes (fi_atomicvalid). It
// returns ErrNotSupported if the provider does not support the operation.
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
		return 0, unsupported(function)
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

// AtomicAttr describes a domain's support for an operation (struct fi_atomic_attr).
type AtomicAttr struct {
	Count int // largest number of elements per operation
	Size  int // size of an element in bytes
}

// QueryAtomic returns the domain's limits for op on elements of t (fi_query_atomic): without flags
// for Atomic, with FlagFetchAtomic for FetchAtomic, with FlagCompareAtomic for CompareAtomic, with
// FlagTagged for operations on a tagged receive buffer. It returns ErrNotSupported if the domain
// does not support the operation.
func (d *Domain) QueryAtomic(t Datatype, op AtomicOp, flags Flags) (AtomicAttr, error) {
	const function = "fi_query_atomic"
	if !d.isOpen() {
		return AtomicAttr{}, closedError(function)
	}
	if !t.known() || !op.known() || flags&(FlagFetchAtomic|FlagCompareAtomic) != 0 && d.fetchingCrashes() {
		return AtomicAttr{}, unsupported(function)
	}
	var attr C.struct_fi_atomic_attr
	rc := C.fi_query_atomic((*C.struct_fid_domain)(d.pointer()), C.enum_fi_datatype(t), C.enum_fi_op(op),
		&attr, C.uint64_t(flags))
	if err := check(function, rc); err != nil {
		return AtomicAttr{}, err
	}
	return AtomicAttr{Count: int(attr.count), Size: int(attr.size)}, nil
}

// fetchingCrashes reports whether fetching and comparing operations may crash the process. rxd of
// libfabric before 2.0 frees such an operation when the peer has acknowledged it, although the
// fetched data may arrive later.
func (d *Domain) fetchingCrashes() bool {
	return strings.HasSuffix(d.fabric.provider, "ofi_rxd") && LibraryVersion() < MakeVersion(2, 0)
}

// elements returns the number of elements of t in buf. If they cannot be posted to dest with op, it
// returns the error of the posting call.
func (e *Endpoint) elements(kind family, buf []byte, dest Addr, t Datatype, op AtomicOp) (C.size_t, error) {
	if err := e.checkDest(dest); err != nil {
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

// atomicLimits caches the results of AtomicValid, FetchAtomicValid and CompareAtomicValid, by
// family, operation and datatype. An entry is the returned count plus one; 0:
// [Endpoint.atomicLimit] has not asked the provider yet.
type atomicLimits struct {
	table atomic.Pointer[[C.WEFT_COMPARE + 1][C.WEFT_ATOMIC_OP_END][C.WEFT_DATATYPE_END]atomic.Int32]
}

// atomicLimit returns how many elements of t one operation with op takes, 0 if the provider does
// not support op on elements of t. It asks the provider only at the first call with the same kind,
// t and op.
func (e *Endpoint) atomicLimit(kind family, t Datatype, op AtomicOp) int {
	if !t.known() || !op.known() {
		return 0
	}
	table := e.atomics.table.Load()
	if table == nil {
		table = new([C.WEFT_COMPARE + 1][C.WEFT_ATOMIC_OP_END][C.WEFT_DATATYPE_END]atomic.Int32)
		// This may replace a table that another goroutine has stored, which does no harm: both get
		// the same values.
		e.atomics.table.Store(table)
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
