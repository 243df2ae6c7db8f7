package mpi

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/kernel"
	"github.com/weft-hpc/weft/internal/rma"
	"github.com/weft-hpc/weft/transport"
)

// accOps maps the built-in operations of reductions to the operations of package rma. Elements of
// type Loc (a value with its index) have no operations other than MinLoc and MaxLoc, so package rma
// has no operations of its own for them: they are its Min and Max.
var accOps = [...]rma.Op{
	kernel.Sum: rma.Sum, kernel.Prod: rma.Prod, kernel.Min: rma.Min, kernel.Max: rma.Max,
	kernel.Band: rma.Band, kernel.Bor: rma.Bor, kernel.Bxor: rma.Bxor,
	kernel.Land: rma.Land, kernel.Lor: rma.Lor, kernel.Lxor: rma.Lxor,
	kernel.MinLoc: rma.Min, kernel.MaxLoc: rma.Max,
}

// accumulator returns the function that computes op over elements of the window, or nil if op is
// not defined for them. The function sets inout[i] to in[i] ∘ inout[i].
func (x *Win) accumulator(op rma.Op) func(inout, in []byte) {
	for kind, o := range accOps {
		if o != op {
			continue
		}
		if k, ok := kernel.For(kernel.Op(kind), x.elem.Kernel); ok && k.Size == x.elem.Size {
			return k.Reduce2
		}
	}
	return nil
}

// datatypes maps element types to the datatypes in which a transport computes atomic operations.
var datatypes = map[kernel.Type]transport.Datatype{
	kernel.Int8: transport.Int8, kernel.Int16: transport.Int16, kernel.Int32: transport.Int32, kernel.Int64: transport.Int64,
	kernel.Uint8: transport.Uint8, kernel.Uint16: transport.Uint16, kernel.Uint32: transport.Uint32, kernel.Uint64: transport.Uint64,
	kernel.Float32: transport.Float32, kernel.Float64: transport.Float64,
	kernel.Complex64: transport.Complex64, kernel.Complex128: transport.Complex128,
	kernel.Bool: transport.Uint8,
}

// datatype returns the datatype of package transport for t, and whether there is one.
func datatype(t *elem.Type) (transport.Datatype, bool) {
	e := t.Kernel
	switch {
	case e == kernel.Int && t.Size == 8:
		e = kernel.Int64
	case e == kernel.Int:
		e = kernel.Int32
	case (e == kernel.Uint || e == kernel.Uintptr) && t.Size == 8:
		e = kernel.Uint64
	case e == kernel.Uint || e == kernel.Uintptr:
		e = kernel.Uint32
	}
	d, ok := datatypes[e]
	return d, ok && d.Size() == t.Size // a Loc has the kernel type of its value, but is larger
}

// comparableBytes reports whether two elements are equal if and only if their bytes are equal: true
// for integers and bools.
func comparableBytes(t *elem.Type) bool {
	d, ok := datatype(t)
	return ok && d < transport.Float32
}

// builtIn returns the rma.Op of a built-in operation, whether or not it is defined for
// the window's elements. ok is false for other operations.
//
// Hot path: no allocation.
func (o *Op) builtIn() (op rma.Op, ok bool) {
	switch {
	case o == nil || o.combine != nil:
		return 0, false
	case o.kind == OpReplace:
		return rma.Replace, true
	case o.kind == OpNoOp:
		return rma.NoOp, true
	default:
		return accOps[o.kind], true
	}
}

// accumulate returns the rma.Op of an operation over elements of type t. If windows do not have the
// operation, or it is not defined for t, accumulate returns ErrOp.
//
// Hot path: no allocation.
func (o *Op) accumulate(t *elem.Type) (rma.Op, error) {
	switch {
	case o == nil:
		return 0, errNoOp
	case o.combine != nil:
		return 0, fmt.Errorf("%w: the target cannot run an operation of OpFunc", ErrOp)
	case o.kind == OpReplace:
		return rma.Replace, nil
	case o.kind == OpNoOp:
		return rma.NoOp, nil
	}
	if k, ok := kernel.For(o.kind, t.Kernel); !ok || k.Size != t.Size {
		return 0, fmt.Errorf("%w: %s over %v", ErrOp, o.name, t.Go)
	}
	return accOps[o.kind], nil
}

// checkAccumulate checks the arguments of an accumulate of buf, and returns the offset in bytes in
// the target's part and the operation.
func (x *Win) checkAccumulate(buf elem.Buffer, target, disp int, op *Op) (at int, o rma.Op, err error) {
	if at, err = x.checkElements(buf.Count, target, disp); err != nil {
		return 0, 0, err
	}
	o, err = op.accumulate(x.elem)
	return at, o, err
}

// Accumulate implements comm.Win.Accumulate, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Win) Accumulate(buf elem.Buffer, target, disp int, op *Op) error {
	t := x.timing()
	at, o, err := x.checkAccumulate(buf, target, disp, op)
	if err == nil && target != ProcNull {
		err = x.win.Accumulate(x.c.ctx, target, at, buf.Bytes(), o)
	}
	if err != nil {
		return x.fail("Accumulate", target, err)
	}
	t.end(opAccumulate, target, noRank, buf.Size())
	return nil
}

// RAccumulate implements comm.Win.RAccumulate, which documents the call.
func (x *Win) RAccumulate(buf elem.Buffer, target, disp int, op *Op) Request {
	at, o, err := x.checkAccumulate(buf, target, disp, op)
	if err != nil {
		return x.refused("RAccumulate", target, err)
	}
	if target == ProcNull {
		return Request{c: completedAtStart}
	}
	r, err := x.win.RAccumulate(x.c.ctx, target, at, buf.Bytes(), o)
	return x.request(opRAccumulate, target, r, err)
}

// GetAccumulate implements comm.Win.GetAccumulate, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Win) GetAccumulate(buf, result elem.Buffer, target, disp int, op *Op) error {
	t := x.timing()
	at, o, err := x.checkFetch(buf, result, target, disp, op)
	if err == nil && target != ProcNull {
		err = x.win.GetAccumulate(x.c.ctx, target, at, buf.Bytes(), result.Bytes(), o)
	}
	if err != nil {
		return x.fail("GetAccumulate", target, err)
	}
	t.end(opGetAccumulate, target, noRank, result.Size())
	return nil
}

// RGetAccumulate implements comm.Win.RGetAccumulate, which documents the call.
func (x *Win) RGetAccumulate(buf, result elem.Buffer, target, disp int, op *Op) Request {
	return x.fetch(opRGetAccumulate, buf, result, target, disp, op)
}

func (x *Win) fetch(name callName, buf, result elem.Buffer, target, disp int, op *Op) Request {
	at, o, err := x.checkFetch(buf, result, target, disp, op)
	if err != nil {
		return x.refused(name.String(), target, err)
	}
	if target == ProcNull {
		return Request{c: completedAtStart}
	}
	r, err := x.win.RGetAccumulate(x.c.ctx, target, at, buf.Bytes(), result.Bytes(), o)
	return x.request(name, target, r, err)
}

// checkFetch checks the arguments of an accumulate of buf that fetches the old elements into
// result. It returns the offset in bytes in the target's part and the operation. With NoOp, buf may
// be nil.
func (x *Win) checkFetch(buf, result elem.Buffer, target, disp int, op *Op) (at int, o rma.Op, err error) {
	if at, err = x.checkElements(result.Count, target, disp); err != nil {
		return 0, 0, err
	}
	o, err = op.accumulate(x.elem)
	switch {
	case err != nil:
	case o == rma.NoOp && buf.IsNil():
	case buf.Count != result.Count:
		err = fmt.Errorf("%w: buf has %d elements, result %d", ErrCount, buf.Count, result.Count)
	case elem.Overlap(buf.Bytes(), result.Bytes()):
		err = ErrBuffer
	}
	return at, o, err
}

// FetchWord does what comm.Win.FetchOp does, for an element of 4 or 8 bytes in memory that this
// rank has mapped. word and old hold the bits of elements (see elem.Word). If ok is false,
// FetchWord has done nothing, for example because the element is not such a one or an argument is
// wrong, and the caller must use FetchOp.
//
// Hot path: no allocation.
func (x *Win) FetchWord(word uint64, target, disp int, op *Op) (old uint64, ok bool) {
	t := x.timing()
	at, err := x.checkElements(1, target, disp)
	if err != nil || !x.win.Words() {
		return 0, false
	}
	o, ok := op.builtIn()
	if !ok {
		return 0, false
	}
	if old, ok = x.win.FetchWord(target, at, o, word); ok {
		t.end(opFetchOp, target, noRank, x.elem.Size)
	}
	return old, ok
}

// FetchOp implements comm.Win.FetchOp, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Win) FetchOp(value, result []byte, target, disp int, op *Op) error {
	if err := x.live(); err != nil {
		return x.fail("FetchOp", target, err)
	}
	t := x.timing()
	z := x.takeFetchBuffer()
	copy(z.value(), value)
	clear(z.result()) // if target is ProcNull, the result is zero
	r := x.fetch(opFetchOp, z.buffer(z.value()), z.buffer(z.result()), target, disp, op)
	err := x.await(r, z, result)
	if err == nil {
		t.end(opFetchOp, target, noRank, x.elem.Size)
	}
	return err
}

// RFetchOp implements comm.Win.RFetchOp, which documents the call.
func (x *Win) RFetchOp(value, result elem.Buffer, target, disp int, op *Op) Request {
	return x.fetch(opRFetchOp, value, result, target, disp, op)
}

// SwapWord does what comm.Win.CompareSwap does, for an element of 4 or 8 bytes in memory that this
// rank has mapped. compare, word and old hold the bits of elements (see elem.Word); word is the new
// value. If ok is false, SwapWord has done nothing (see FetchWord), and the caller must use
// CompareSwap.
//
// Hot path: no allocation.
func (x *Win) SwapWord(compare, word uint64, target, disp int) (old uint64, ok bool) {
	t := x.timing()
	at, err := x.checkElements(1, target, disp)
	if err != nil || !x.win.Words() || !x.comparable {
		return 0, false
	}
	if old, ok = x.win.SwapWord(target, at, compare, word); ok {
		t.end(opCompareSwap, target, noRank, x.elem.Size)
	}
	return old, ok
}

// CompareSwap implements comm.Win.CompareSwap, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Win) CompareSwap(compare, value, result []byte, target, disp int) error {
	if err := x.live(); err != nil {
		return x.fail("CompareSwap", target, err)
	}
	t := x.timing()
	z := x.takeFetchBuffer()
	copy(z.compare(), compare)
	copy(z.value(), value)
	clear(z.result()) // if target is ProcNull, the result is zero
	r := x.swap(opCompareSwap, z, z.result(), target, disp)
	err := x.await(r, z, result)
	if err == nil {
		t.end(opCompareSwap, target, noRank, x.elem.Size)
	}
	return err
}

// RCompareSwap implements comm.Win.RCompareSwap, which documents the call.
func (x *Win) RCompareSwap(compare, value, result []byte, target, disp int) Request {
	if err := x.live(); err != nil {
		return x.refused("RCompareSwap", target, err)
	}
	z := x.takeFetchBuffer()
	copy(z.compare(), compare)
	copy(z.value(), value)
	r := x.swap(opRCompareSwap, z, result, target, disp)
	x.putFetchBuffer(z) // package rma has copied the elements of z
	return r
}

func (x *Win) swap(name callName, z *fetchBuffer, result []byte, target, disp int) Request {
	at, err := x.checkElements(1, target, disp)
	if err == nil && !x.comparable {
		err = fmt.Errorf("%w: CompareSwap needs integers or bools, not %v", ErrType, x.elem.Go)
	}
	if err != nil {
		return x.refused(name.String(), target, err)
	}
	if target == ProcNull {
		return Request{c: completedAtStart}
	}
	r, err := x.win.RCompareSwap(x.c.ctx, target, at, z.value(), z.compare(), result)
	return x.request(name, target, r, err)
}

// NilPointer returns the request of the call op, to which the program has passed a nil pointer.
// Wait and Test of the request return ErrArg.
func (x *Win) NilPointer(op string, target int) Request {
	return x.refused(op, target, errNilPointer)
}

var errNilPointer = fmt.Errorf("%w: a nil pointer", ErrArg)

// fetchBuffer is the memory of one FetchOp or CompareSwap, or of the start of an RCompareSwap. It
// holds three elements: the value, the element to compare with, and the result. A blocking call
// does not use the program's variables, because the operation may still run, and use its memory,
// when the call has returned an error.
type fetchBuffer struct {
	t   *elem.Type
	mem []byte
}

func (z *fetchBuffer) value() []byte   { return z.mem[:z.t.Size] }
func (z *fetchBuffer) compare() []byte { return z.mem[z.t.Size:][:z.t.Size] }
func (z *fetchBuffer) result() []byte  { return z.mem[2*z.t.Size:] }

// buffer returns b, the bytes of one of the three elements, as a buffer of one element.
func (z *fetchBuffer) buffer(b []byte) elem.Buffer { return elem.At(b, 1, z.t) }

// takeFetchBuffer returns a buffer that no call uses.
func (x *Win) takeFetchBuffer() *fetchBuffer {
	x.bufferMu.Lock()
	defer x.bufferMu.Unlock()
	n := len(x.freeBuffers)
	if n == 0 {
		return &fetchBuffer{t: x.elem, mem: elem.AlignedBytes(3 * x.elem.Size)}
	}
	z := x.freeBuffers[n-1]
	x.freeBuffers = x.freeBuffers[:n-1]
	return z
}

func (x *Win) putFetchBuffer(z *fetchBuffer) {
	x.bufferMu.Lock()
	defer x.bufferMu.Unlock()
	x.freeBuffers = append(x.freeBuffers, z)
}

// await blocks until r, the operation that uses z, is complete. Then it copies the result from z to
// result, and puts z back. If r fails, await drops z.
func (x *Win) await(r Request, z *fetchBuffer, result []byte) error {
	if _, err := r.wait(); err != nil {
		r.r.Abandon() // the operation may still run and use z, so z is not reused
		return err
	}
	copy(result, z.result())
	x.putFetchBuffer(z)
	return nil
}
