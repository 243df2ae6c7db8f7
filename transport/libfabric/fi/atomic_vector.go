//go:build libfabric

package fi

// #include "shim_atomic.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Vector is a list of buffers with elements of a Datatype: a local operand of an atomic operation.
// It has at most TxAttr.IovLimit buffers.
type Vector struct {
	Bufs  [][]byte
	Descs []Desc // one descriptor per buffer, or none at all
}

// RMAIoc is a segment of a peer's memory (struct fi_rma_ioc).
type RMAIoc struct {
	Addr  uint64 // virtual address in the peer or offset in the region, as in [RMAIov]
	Count uint64 // number of elements
	Key   uint64
}

// AtomicMsg has all arguments of an atomic operation (struct fi_msg_atomic).
type AtomicMsg struct {
	Operand Vector
	Compare Vector // used by CompareAtomicMsg
	Result  Vector // used by FetchAtomicMsg and CompareAtomicMsg
	Addr    Addr   // the peer whose memory is the target
	// RMA is the peer's memory, at most TxAttr.RMAIovLimit segments. With ModeAsyncIov the caller
	// must not change the slice's elements before the operation completes.
	RMA      []RMAIoc
	Datatype Datatype
	Op       AtomicOp
	Context  *Context
	Data     uint64 // immediate data, with FlagRemoteCQData
}

// AtomicV is Atomic for the elements of several buffers (fi_atomicv).
func (e *Endpoint) AtomicV(operand Vector, dest Addr, addr, key uint64, t Datatype, op AtomicOp, ctx *Context) error {
	v, err := e.beginAtomic(ctx, C.WEFT_BASE, dest, t, op, operand, Vector{}, Vector{}, 0)
	if err != nil {
		return err
	}
	rc := C.weft_atomicv(e.ep(), v.operand, target(dest, addr, key, t, op), ctx.address())
	runtime.KeepAlive(v.arrays)
	runtime.KeepAlive(operand)
	return ctx.posted(rc)
}

// FetchAtomicV is FetchAtomic for several buffers (fi_fetch_atomicv). Operand and result must have
// equally many elements; their numbers of buffers may differ. AtomicRead needs no operand.
func (e *Endpoint) FetchAtomicV(operand, result Vector, dest Addr, addr, key uint64, t Datatype, op AtomicOp, ctx *Context) error {
	v, err := e.beginAtomic(ctx, C.WEFT_FETCH, dest, t, op, operand, Vector{}, result, 0)
	if err != nil {
		return err
	}
	rc := C.weft_fetch_atomicv(e.ep(), v.operand, v.result, target(dest, addr, key, t, op), ctx.address())
	runtime.KeepAlive(v.arrays)
	runtime.KeepAlive(operand)
	runtime.KeepAlive(result)
	return ctx.posted(rc)
}

// CompareAtomicV is CompareAtomic for several buffers (fi_compare_atomicv). The three vectors must
// have equally many elements.
func (e *Endpoint) CompareAtomicV(operand, compare, result Vector, dest Addr, addr, key uint64, t Datatype, op AtomicOp, ctx *Context) error {
	v, err := e.beginAtomic(ctx, C.WEFT_COMPARE, dest, t, op, operand, compare, result, 0)
	if err != nil {
		return err
	}
	rc := C.weft_compare_atomicv(e.ep(), v.operand, v.compare, v.result, target(dest, addr, key, t, op), ctx.address())
	runtime.KeepAlive(v.arrays)
	runtime.KeepAlive(operand)
	runtime.KeepAlive(compare)
	runtime.KeepAlive(result)
	return ctx.posted(rc)
}

// AtomicMsg is Atomic with the arguments in msg (fi_atomicmsg). With FlagInject the caller may
// reuse the buffers when AtomicMsg returns. With FlagTagged the target is a tagged receive buffer,
// and the Key of a segment in msg.RMA is the buffer's tag.
func (e *Endpoint) AtomicMsg(msg *AtomicMsg, flags Flags) error {
	return e.atomicMsg(C.WEFT_BASE, msg, flags)
}

// FetchAtomicMsg is FetchAtomic with the arguments in msg (fi_fetch_atomicmsg).
func (e *Endpoint) FetchAtomicMsg(msg *AtomicMsg, flags Flags) error {
	return e.atomicMsg(C.WEFT_FETCH, msg, flags)
}

// CompareAtomicMsg is CompareAtomic with the arguments in msg (fi_compare_atomicmsg).
func (e *Endpoint) CompareAtomicMsg(msg *AtomicMsg, flags Flags) error {
	return e.atomicMsg(C.WEFT_COMPARE, msg, flags)
}

func (e *Endpoint) atomicMsg(kind family, msg *AtomicMsg, flags Flags) error {
	if err := e.checkSendMsg(msg.Operand.Bufs, flags, msg.Addr); err != nil {
		return err
	}
	if len(msg.RMA) > e.root.limits.rma {
		return ErrTooBig
	}
	if len(msg.RMA) == 0 {
		return ErrInvalid
	}
	ctx := msg.Context
	v, err := e.beginAtomic(ctx, kind, msg.Addr, msg.Datatype, msg.Op, msg.Operand, msg.Compare, msg.Result, flags)
	if err != nil {
		return err
	}
	rma := ctx.pinArray(unsafe.Pointer(unsafe.SliceData(msg.RMA)), len(msg.RMA))
	rc := C.weft_atomicmsg(e.ep(), kind, v.operand, v.compare, v.result,
		target(msg.Addr, 0, 0, msg.Datatype, msg.Op), rma, C.size_t(len(msg.RMA)),
		ctx.address(), C.uint64_t(msg.Data), C.uint64_t(flags))
	runtime.KeepAlive(v.arrays)
	runtime.KeepAlive(msg)
	return ctx.posted(rc)
}

// vectors are the three local operands of a vector call as the C functions in shim_atomic.h take
// them. Their addresses point into arrays of the Context in the field arrays. The caller must keep
// that Context alive during the call of libfabric.
type vectors struct {
	arrays                   *Context
	operand, compare, result C.struct_weft_iocs
}

// beginAtomic checks the arguments of an atomic operation, marks ctx as in flight and pins the
// buffers of the three vectors. It stores the addresses and descriptors of all their buffers one
// after the other in two arrays of ctx or, if ctx is nil, of a temporary Context. The first is an
// array of struct fi_ioc, which has the layout of struct iovec, but counts elements instead of
// bytes.
func (e *Endpoint) beginAtomic(ctx *Context, kind family, dest Addr, t Datatype, op AtomicOp, operand, compare, result Vector, flags Flags) (vectors, error) {
	if err := e.checkSend(max(len(operand.Bufs), len(compare.Bufs), len(result.Bufs)), flags, dest); err != nil {
		return vectors{}, err
	}
	if err := e.checkAtomicVectors(kind, t, op, &operand, &compare, &result, flags); err != nil {
		return vectors{}, err
	}
	if op == AtomicRead && len(operand.Bufs) == 0 {
		// Providers take the number of elements from the operand, and for AtomicRead do not read
		// its buffers.
		operand = result
	}
	if err := ctx.begin(e.root, false); err != nil {
		return vectors{}, err
	}
	arrays := ctx
	if arrays == nil {
		arrays = new(Context) // a temporary Context, which holds only the arrays
	}
	arrays.iov, arrays.descs = arrays.iov[:0], arrays.descs[:0]
	for _, v := range [...]*Vector{&operand, &compare, &result} {
		for i, b := range v.Bufs {
			var desc Desc
			if i < len(v.Descs) {
				desc = v.Descs[i]
			}
			arrays.iov = append(arrays.iov, iovec{uintptr(ctx.pin(b)), uintptr(len(b) / t.Size())})
			arrays.descs = append(arrays.descs, desc)
		}
	}
	iov := ctx.pinArray(unsafe.Pointer(unsafe.SliceData(arrays.iov)), len(arrays.iov))
	desc := ctx.pinArray(unsafe.Pointer(unsafe.SliceData(arrays.descs)), len(arrays.descs))
	next := func(v *Vector) C.struct_weft_iocs {
		n := len(v.Bufs)
		if n == 0 {
			return C.struct_weft_iocs{}
		}
		at := C.struct_weft_iocs{iov: iov, desc: desc, count: C.size_t(n)}
		iov += C.uintptr_t(n) * C.sizeof_struct_fi_ioc
		desc += C.uintptr_t(n) * C.uintptr_t(unsafe.Sizeof(Desc{}))
		return at
	}
	return vectors{arrays: arrays, operand: next(&operand), compare: next(&compare), result: next(&result)}, nil
}

// kindFlags are the flags of QueryAtomic for each family.
var kindFlags = [...]Flags{C.WEFT_BASE: 0, C.WEFT_FETCH: FlagFetchAtomic, C.WEFT_COMPARE: FlagCompareAtomic}

// checkAtomicVectors returns an error if the provider does not support the operation, or if the
// operation does not permit the lengths of the three vectors.
func (e *Endpoint) checkAtomicVectors(kind family, t Datatype, op AtomicOp, operand, compare, result *Vector, flags Flags) error {
	limit := 0
	if flags&FlagTagged == 0 {
		limit = e.root.atomicLimit(kind, t, op)
	} else if attr, err := e.domain.QueryAtomic(t, op, FlagTagged|kindFlags[kind]); err == nil {
		limit = attr.Count
	}
	if limit == 0 {
		return ErrNotSupp
	}
	var lengths [3]int
	for i, v := range [...]*Vector{operand, compare, result} {
		for _, b := range v.Bufs {
			if len(b)%t.Size() != 0 {
				return ErrInvalid
			}
			lengths[i] += len(b) / t.Size()
		}
	}
	n := max(lengths[0], lengths[2]) // the operand of AtomicRead may be empty
	switch {
	case n > limit:
		return ErrMsgSize
	case lengths[0] != n && op != AtomicRead,
		lengths[1] != n && kind == C.WEFT_COMPARE,
		lengths[2] != n && kind != C.WEFT_BASE:
		return ErrInvalid
	}
	return nil
}
