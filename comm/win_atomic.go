package comm

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/kernel"
	"github.com/weft-hpc/weft/internal/rma"
	"github.com/weft-hpc/weft/transport"
)

// The operations that only accumulates know; to reductions they are ErrOp.
const (
	opReplace kernel.Op = -1 - iota
	opNoOp
)

// Replace takes the origin's element; for Accumulate, GetAccumulate and FetchOp
// only (MPI_REPLACE, MPI 4.1 §12.3.4).
func Replace[T any]() Op[T] { return Op[T]{name: "Replace", kind: opReplace} }

// NoOp leaves the element as it is; for GetAccumulate and FetchOp, which then
// read atomically (MPI_NO_OP, MPI 4.1 §12.3.4).
func NoOp[T any]() Op[T] { return Op[T]{name: "NoOp", kind: opNoOp} }

// accOps are the operations of windows. Those with Loc are the only ones that
// are defined for it, and take the places of Min and Max there.
var accOps = [...]rma.Op{
	kernel.Sum: rma.Sum, kernel.Prod: rma.Prod, kernel.Min: rma.Min, kernel.Max: rma.Max,
	kernel.Band: rma.Band, kernel.Bor: rma.Bor, kernel.Bxor: rma.Bxor,
	kernel.Land: rma.Land, kernel.Lor: rma.Lor, kernel.Lxor: rma.Lxor,
	kernel.MinLoc: rma.Min, kernel.MaxLoc: rma.Max,
}

// accumulator is the kernel of an operation of windows over the type; nil:
// there is none.
func (t *typeInfo) accumulator(op rma.Op) func(inout, in []byte) {
	for kind, o := range accOps {
		if o != op {
			continue
		}
		if k, ok := kernel.For(kernel.Op(kind), t.elem); ok && k.Size == t.size {
			return k.Reduce2
		}
	}
	return nil
}

// datatypes are the names that fabrics have for element types.
var datatypes = map[kernel.Type]transport.Datatype{
	kernel.Int8: transport.Int8, kernel.Int16: transport.Int16, kernel.Int32: transport.Int32, kernel.Int64: transport.Int64,
	kernel.Uint8: transport.Uint8, kernel.Uint16: transport.Uint16, kernel.Uint32: transport.Uint32, kernel.Uint64: transport.Uint64,
	kernel.Float32: transport.Float32, kernel.Float64: transport.Float64,
	kernel.Complex64: transport.Complex64, kernel.Complex128: transport.Complex128,
	kernel.Bool: transport.Uint8,
}

// datatype is what fabrics call the type, if they know it.
func (t *typeInfo) datatype() (transport.Datatype, bool) {
	e := t.elem
	switch {
	case e == kernel.Int && t.size == 8:
		e = kernel.Int64
	case e == kernel.Int:
		e = kernel.Int32
	case (e == kernel.Uint || e == kernel.Uintptr) && t.size == 8:
		e = kernel.Uint64
	case e == kernel.Uint || e == kernel.Uintptr:
		e = kernel.Uint32
	}
	d, ok := datatypes[e]
	return d, ok && d.Size() == t.size // else it is a Loc
}

// comparable says whether elements are equal where their bytes are, and only
// there: integers and bools.
func (t *typeInfo) comparable() bool {
	d, ok := t.datatype()
	return ok && d < transport.Float32
}

// builtIn is what windows call op, if that is built in, whether or not it is
// defined for T.
//
// Hot path: no allocation.
func builtIn[T any](op OpFor[T]) (rma.Op, bool) {
	if op == nil {
		return 0, false
	}
	switch o := op(); {
	case o.combine != nil || o.name == "":
		return 0, false
	case o.kind == opReplace:
		return rma.Replace, true
	case o.kind == opNoOp:
		return rma.NoOp, true
	default:
		return accOps[o.kind], true
	}
}

// accumulate turns op into what windows use.
//
// Hot path: no allocation.
func accumulate[T any](op OpFor[T]) (rma.Op, error) {
	if op == nil {
		return 0, fmt.Errorf("%w: it is nil", ErrOp)
	}
	o, info := op(), infoOf[T]()
	switch {
	case o.combine != nil:
		return 0, fmt.Errorf("%w: one of OpFunc would have to run at the target", ErrOp)
	case o.name == "":
		return 0, fmt.Errorf("%w: it is zero, or its function is nil", ErrOp)
	case o.kind == opReplace:
		return rma.Replace, nil
	case o.kind == opNoOp:
		return rma.NoOp, nil
	}
	if k, ok := kernel.For(o.kind, info.elem); !ok || k.Size != info.size {
		return 0, fmt.Errorf("%w: %s over %T", ErrOp, o.name, *new(T))
	}
	return accOps[o.kind], nil
}

// Accumulate combines len(buf) elements of rank target's part of the window,
// from its element disp on, with those of buf, each in one step with respect to
// all accumulates, fetches and CompareSwaps of the window (MPI_Accumulate, MPI
// 4.1 §12.3.4). Those of one rank to one element are done in the order of its
// program. op is Replace or any operation of this package that T permits, with
// MinLoc and MaxLoc over Loc, but not one of OpFunc.
//
// It does not wait for the elements to be changed: buf belongs to the window,
// and must not be written to, until FlushLocal, Flush, Unlock, Complete or
// Fence. Mixed with Put at the same elements they are undefined; use Replace.
// Where a fabric's atomics are used, Min and Max of a NaN are as it has them.
//
// Errors: those of Put; ErrOp.
//
// Hot path: no allocation in steady state.
func (w *Win[T]) Accumulate(buf []T, target, disp int, op OpFor[T]) error {
	x, at, err := w.reach(len(buf), target, disp)
	o, operr := accumulate(op)
	if err == nil {
		err = operr
	}
	if err == nil && target != ProcNull {
		err = x.win.Accumulate(x.c.ctx, target, at, bytesView(buf), o)
	}
	if err != nil {
		return w.fail("Accumulate", target, err)
	}
	return nil
}

// RAccumulate is Accumulate with a request: when that is complete, buf may be
// used again (MPI_Raccumulate, MPI 4.1 §12.3.5).
func (w *Win[T]) RAccumulate(buf []T, target, disp int, op OpFor[T]) Request {
	x, at, err := w.reach(len(buf), target, disp)
	o, operr := accumulate(op)
	if err == nil {
		err = operr
	}
	if err != nil {
		return w.refused("RAccumulate", target, err)
	}
	if target == ProcNull {
		return Request{c: hasLeft}
	}
	r, err := x.win.RAccumulate(x.c.ctx, target, at, bytesView(buf), o)
	return x.request(opRAccumulate, target, r, err)
}

// GetAccumulate is Accumulate that also fetches what the elements were before
// into result, which is as long as buf and apart from it (MPI_Get_accumulate,
// MPI 4.1 §12.3.4). With NoOp it only reads, and buf may be nil. Both slices
// belong to the window until FlushLocal, Flush, Unlock, Complete or Fence, and
// then result is filled. Errors: those of Accumulate; ErrCount where lengths
// differ, ErrBuffer.
//
// Hot path: no allocation in steady state.
func (w *Win[T]) GetAccumulate(buf, result []T, target, disp int, op OpFor[T]) error {
	x, at, o, err := w.reachFetch(buf, result, target, disp, op)
	if err == nil && target != ProcNull {
		err = x.win.GetAccumulate(x.c.ctx, target, at, bytesView(buf), bytesView(result), o)
	}
	if err != nil {
		return w.fail("GetAccumulate", target, err)
	}
	return nil
}

// RGetAccumulate is GetAccumulate with a request: when that is complete, result
// is filled and buf may be used again (MPI_Rget_accumulate, MPI 4.1 §12.3.5).
func (w *Win[T]) RGetAccumulate(buf, result []T, target, disp int, op OpFor[T]) Request {
	return w.fetch(opRGetAccumulate, buf, result, target, disp, op)
}

func (w *Win[T]) fetch(name callName, buf, result []T, target, disp int, op OpFor[T]) Request {
	x, at, o, err := w.reachFetch(buf, result, target, disp, op)
	if err != nil {
		return w.refused(name.String(), target, err)
	}
	if target == ProcNull {
		return Request{c: hasLeft}
	}
	r, err := x.win.RGetAccumulate(x.c.ctx, target, at, bytesView(buf), bytesView(result), o)
	return x.request(name, target, r, err)
}

func (w *Win[T]) reachFetch(buf, result []T, target, disp int, op OpFor[T]) (*window, int, rma.Op, error) {
	x, at, err := w.reach(len(result), target, disp)
	if err != nil {
		return nil, 0, 0, err
	}
	o, err := accumulate(op)
	switch {
	case err != nil:
	case o == rma.NoOp && buf == nil:
	case len(buf) != len(result):
		err = fmt.Errorf("%w: buf has %d elements, result %d", ErrCount, len(buf), len(result))
	case overlap(bytesView(buf), bytesView(result)):
		err = ErrBuffer
	}
	return x, at, o, err
}

// FetchOp combines element disp of rank target's part with value in one step,
// and returns what it was before (MPI_Fetch_and_op, MPI 4.1 §12.3.4): with Sum a
// counter, with Replace a swap, with NoOp a read. It blocks until that is done.
// From ProcNull it returns zero. Errors: those of Accumulate.
//
// Hot path: no allocation in steady state.
func (w *Win[T]) FetchOp(value T, target, disp int, op OpFor[T]) (T, error) {
	if x, at, err := w.reach(1, target, disp); err == nil && x.win.Words() {
		if o, ok := builtIn(op); ok {
			if old, ok := x.win.FetchWord(target, at, o, wordOf(value)); ok {
				return ofWord[T](old), nil
			}
		}
	}
	var zero T
	if _, err := w.live(); err != nil {
		return zero, w.fail("FetchOp", target, err)
	}
	z := w.cell()
	z.value, z.result = value, zero
	r := w.fetch(opFetchOp, one(&z.value), one(&z.result), target, disp, op)
	return w.await(r, z)
}

// RFetchOp is FetchOp that returns at once, so that many may be under way: value
// and result belong to the request until it is complete, and then result has
// what the element was.
func (w *Win[T]) RFetchOp(value, result *T, target, disp int, op OpFor[T]) Request {
	if value == nil || result == nil {
		return w.refused("RFetchOp", target, errNilPointer)
	}
	return w.fetch(opRFetchOp, one(value), one(result), target, disp, op)
}

// CompareSwap stores value in element disp of rank target's part if that equals
// compare, in one step, and returns what it was before: it was stored where that
// is compare (MPI_Compare_and_swap, MPI 4.1 §12.3.4). It blocks until that is
// done. T is an integer or a bool. From ProcNull it returns zero. Errors: those
// of Put; ErrType for other elements.
//
// Hot path: no allocation in steady state.
func (w *Win[T]) CompareSwap(compare, value T, target, disp int) (T, error) {
	if x, at, err := w.reach(1, target, disp); err == nil && x.win.Words() && x.comparable {
		if old, ok := x.win.SwapWord(target, at, wordOf(compare), wordOf(value)); ok {
			return ofWord[T](old), nil
		}
	}
	var zero T
	if _, err := w.live(); err != nil {
		return zero, w.fail("CompareSwap", target, err)
	}
	z := w.cell()
	z.compare, z.value, z.result = compare, value, zero
	r := w.swap(opCompareSwap, z, &z.result, target, disp)
	return w.await(r, z)
}

// RCompareSwap is CompareSwap that returns at once: result belongs to the
// request until it is complete, and then has what the element was.
func (w *Win[T]) RCompareSwap(compare, value T, result *T, target, disp int) Request {
	if _, err := w.live(); err != nil {
		return w.refused("RCompareSwap", target, err)
	}
	if result == nil {
		return w.refused("RCompareSwap", target, errNilPointer)
	}
	z := w.cell()
	z.compare, z.value = compare, value
	r := w.swap(opRCompareSwap, z, result, target, disp)
	w.putCell(z) // its elements were copied
	return r
}

func (w *Win[T]) swap(name callName, z *cell[T], result *T, target, disp int) Request {
	x, at, err := w.reach(1, target, disp)
	if err == nil && !x.comparable {
		err = fmt.Errorf("%w: CompareSwap is for integers and bools, and %T is neither", ErrType, *new(T))
	}
	if err != nil {
		return w.refused(name.String(), target, err)
	}
	if target == ProcNull {
		return Request{c: hasLeft}
	}
	r, err := x.win.RCompareSwap(x.c.ctx, target, at, bytesView(one(&z.value)), bytesView(one(&z.compare)), bytesView(one(result)))
	return x.request(name, target, r, err)
}

var errNilPointer = fmt.Errorf("%w: a nil pointer", ErrArg)

// cell is the memory of a blocking fetch, which the engine may need for longer
// than the call lasts.
type cell[T any] struct{ value, compare, result T }

func (w *Win[T]) cell() *cell[T] {
	w.cellMu.Lock()
	defer w.cellMu.Unlock()
	n := len(w.cells)
	if n == 0 {
		return new(cell[T])
	}
	z := w.cells[n-1]
	w.cells = w.cells[:n-1]
	return z
}

func (w *Win[T]) putCell(z *cell[T]) {
	w.cellMu.Lock()
	defer w.cellMu.Unlock()
	w.cells = append(w.cells, z)
}

// await waits for the fetch into a cell.
func (w *Win[T]) await(r Request, z *cell[T]) (T, error) {
	if _, err := r.Wait(); err != nil {
		r.r.Abandon() // the fetch may still be under way, so z is left to it
		var zero T
		return zero, err
	}
	result := z.result
	w.putCell(z)
	return result, nil
}
