package mpi

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/rma"
)

// Region is the content of comm.Region: memory that a rank has attached to a dynamic window.
type Region = rma.Region

// Place is the content of comm.Place: elements of a rank's part of the window, or of a region.
type Place struct {
	Rank   int
	Region Region
	Inside bool         // the place is in Region; then Rank has no meaning
	Disp   int          // in elements; it is added to the offsets of Layout
	Layout *elem.Layout // nil: consecutive elements
}

// Target returns the rank for errors.
func (p *Place) Target() int {
	if p.Inside {
		return p.Region.Rank()
	}
	return p.Rank
}

// Attach implements comm.Win.Attach, which documents the call.
func (x *Win) Attach(b elem.Buffer) (Region, error) {
	err := x.live()
	if err == nil {
		err = b.Type.HostErr()
	}
	var r Region
	if err == nil {
		r, err = x.win.Attach(b.Bytes())
	}
	return r, x.fail("Attach", noRank, err)
}

// Detach implements comm.Win.Detach, which documents the call.
func (x *Win) Detach(r *Region) error {
	return x.checked(opDetach, func() error { return x.win.Detach(r) })
}

// access fills a with the place p, for an operation on the elements of b, which belong to the
// origin. If access returns none as true, the rank of the place is ProcNull, and there is nothing
// to do.
//
// Hot path: no allocation.
func (x *Win) access(a *rma.Access, p *Place, b elem.Buffer) (none bool, err error) {
	if err := x.live(); err != nil {
		return false, err
	}
	n, size := b.Count, x.elem.Size
	if b.Type.Layout != nil {
		n = elem.Whole(b.Size(), size)
	}
	if err := b.Type.HostErr(); err != nil {
		return false, err
	}
	low, high := 0, n
	disp := p.Disp
	if p.Layout != nil {
		in := p.Layout.Elements()
		if err := in.Err(); err != nil {
			return false, err
		}
		if in.Size() != n {
			return false, fmt.Errorf("%w: the place has %d elements, the buffer %d", ErrCount, in.Size(), n)
		}
		low, high = in.Span()
		if off, ok := in.Contiguous(); ok {
			disp += off
			low, high = 0, n
		} else if a.Layout, err = p.Layout.Of(x.elem); err != nil {
			return false, err
		}
	}
	if none, err := x.within(p, disp, low, high); none || err != nil {
		return none, err
	}
	a.Target, a.Disp = p.Rank, disp*size
	if p.Inside {
		a.Region, err = x.win.Lookup(&p.Region)
	}
	return false, err
}

// within checks that the memory of p has the elements low to high-1, shifted by disp. none reports
// whether the rank of p is ProcNull.
func (x *Win) within(p *Place, disp, low, high int) (none bool, err error) {
	n := 0
	switch {
	case p.Inside:
		n = elem.Whole(p.Region.Size(), x.elem.Size)
		if x.elem.Size == 0 {
			n = high + max(0, disp) // elements of size 0 need no memory
		}
	case p.Rank == ProcNull:
		return true, nil
	case uint(p.Rank) >= uint(len(x.lens)):
		return false, fmt.Errorf("%w: the window has %d", ErrRank, len(x.lens))
	default:
		n = x.lens[p.Rank]
	}
	switch {
	case p.Disp < 0:
		return false, fmt.Errorf("%w: %d is negative", ErrDisp, p.Disp)
	case disp < -low || disp > n || high > n-disp:
		return false, fmt.Errorf("%w: the elements %d to %d, but there are %d", ErrRMARange, disp+low, disp+high-1, n)
	}
	return false, nil
}

// memoryOf returns the data of b for package rma.
func memoryOf(b elem.Buffer) rma.Memory { return rma.Memory{Bytes: b.Bytes(), Layout: b.Type.Layout} }

// PutAt implements comm.Place.Put, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Win) PutAt(b elem.Buffer, p *Place) error {
	var a rma.Access
	none, err := x.access(&a, p, b)
	if err == nil && !none {
		a.Src = memoryOf(b)
		_, err = x.win.PutAt(x.c.ctx, &a)
	}
	if err != nil {
		return x.fail("Put", p.Target(), err)
	}
	return nil
}

// RPutAt implements comm.Place.RPut, which documents the call.
func (x *Win) RPutAt(b elem.Buffer, p *Place) Request {
	a := rma.Access{Ticket: true}
	none, err := x.access(&a, p, b)
	if err != nil {
		return x.refused("RPut", p.Target(), err)
	}
	if none {
		return Request{c: completedAtStart}
	}
	a.Src = memoryOf(b)
	r, err := x.win.PutAt(x.c.ctx, &a)
	return x.request(opRPut, p.Target(), r, err)
}

// GetAt implements comm.Place.Get, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Win) GetAt(b elem.Buffer, p *Place) error {
	var a rma.Access
	none, err := x.access(&a, p, b)
	if err == nil && !none {
		a.Result = memoryOf(b)
		_, err = x.win.GetAt(x.c.ctx, &a)
	}
	if err != nil {
		return x.fail("Get", p.Target(), err)
	}
	return nil
}

// RGetAt implements comm.Place.RGet, which documents the call.
func (x *Win) RGetAt(b elem.Buffer, p *Place) Request {
	a := rma.Access{Ticket: true}
	none, err := x.access(&a, p, b)
	if err != nil {
		return x.refused("RGet", p.Target(), err)
	}
	if none {
		return Request{c: completedAtStart}
	}
	a.Result = memoryOf(b)
	r, err := x.win.GetAt(x.c.ctx, &a)
	return x.request(opRGet, p.Target(), r, err)
}

// AccumulateAt implements comm.Place.Accumulate, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Win) AccumulateAt(b elem.Buffer, p *Place, op *Op) error {
	var a rma.Access
	none, err := x.change(&a, p, b, op)
	if err == nil && !none {
		_, err = x.win.AccumulateAt(x.c.ctx, &a)
	}
	if err != nil {
		return x.fail("Accumulate", p.Target(), err)
	}
	return nil
}

// RAccumulateAt implements comm.Place.RAccumulate, which documents the call.
func (x *Win) RAccumulateAt(b elem.Buffer, p *Place, op *Op) Request {
	a := rma.Access{Ticket: true}
	none, err := x.change(&a, p, b, op)
	if err != nil {
		return x.refused("RAccumulate", p.Target(), err)
	}
	if none {
		return Request{c: completedAtStart}
	}
	r, err := x.win.AccumulateAt(x.c.ctx, &a)
	return x.request(opRAccumulate, p.Target(), r, err)
}

// change fills a for an accumulate of b.
func (x *Win) change(a *rma.Access, p *Place, b elem.Buffer, op *Op) (none bool, err error) {
	if none, err = x.access(a, p, b); err != nil {
		return false, err
	}
	a.Src = memoryOf(b)
	a.Op, err = op.accumulate(x.elem)
	return none, err
}

// GetAccumulateAt implements comm.Place.GetAccumulate, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Win) GetAccumulateAt(b, result elem.Buffer, p *Place, op *Op) error {
	var a rma.Access
	none, err := x.exchange(&a, p, b, result, op)
	if err == nil && !none {
		_, err = x.win.GetAccumulateAt(x.c.ctx, &a)
	}
	if err != nil {
		return x.fail("GetAccumulate", p.Target(), err)
	}
	return nil
}

// RGetAccumulateAt implements comm.Place.RGetAccumulate, which documents the call.
func (x *Win) RGetAccumulateAt(b, result elem.Buffer, p *Place, op *Op) Request {
	return x.fetchAt(opRGetAccumulate, b, result, p, op)
}

func (x *Win) fetchAt(name callName, b, result elem.Buffer, p *Place, op *Op) Request {
	a := rma.Access{Ticket: true}
	none, err := x.exchange(&a, p, b, result, op)
	if err != nil {
		return x.refused(name.String(), p.Target(), err)
	}
	if none {
		return Request{c: completedAtStart}
	}
	r, err := x.win.GetAccumulateAt(x.c.ctx, &a)
	return x.request(name, p.Target(), r, err)
}

// exchange fills a for an accumulate of b that fetches the previous elements into result. With
// NoOp, b does not matter.
func (x *Win) exchange(a *rma.Access, p *Place, b, result elem.Buffer, op *Op) (none bool, err error) {
	if none, err = x.access(a, p, result); err != nil {
		return false, err
	}
	a.Result = memoryOf(result)
	if a.Op, err = op.accumulate(x.elem); err != nil {
		return false, err
	}
	switch {
	case a.Op == rma.NoOp:
		return none, nil
	case b.Type.HostErr() != nil:
		return false, b.Type.HostErr()
	case b.Size() != result.Size():
		return false, fmt.Errorf("%w: buf has %d elements, result %d", ErrCount, elem.Whole(b.Size(), x.elem.Size), elem.Whole(result.Size(), x.elem.Size))
	case b.Type.Layout == nil && result.Type.Layout == nil && elem.Overlap(b.Bytes(), result.Bytes()):
		return false, ErrBuffer
	}
	a.Src = memoryOf(b)
	return none, nil
}

// single reports whether p is one place of a rank's part, for which the calls without a Place are
// faster.
func (p *Place) single() bool { return !p.Inside && p.Layout == nil }

// FetchOpAt implements comm.Place.FetchOp, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Win) FetchOpAt(value, result []byte, p *Place, op *Op) error {
	if p.single() {
		return x.FetchOp(value, result, p.Rank, p.Disp, op)
	}
	if err := x.live(); err != nil {
		return x.fail("FetchOp", p.Target(), err)
	}
	z := x.takeFetchBuffer()
	copy(z.value(), value)
	clear(z.result()) // if the rank is ProcNull, the result is zero
	return x.await(x.fetchAt(opFetchOp, z.buffer(z.value()), z.buffer(z.result()), p, op), z, result)
}

// RFetchOpAt implements comm.Place.RFetchOp, which documents the call.
func (x *Win) RFetchOpAt(value, result elem.Buffer, p *Place, op *Op) Request {
	return x.fetchAt(opRFetchOp, value, result, p, op)
}

// CompareSwapAt implements comm.Place.CompareSwap, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Win) CompareSwapAt(compare, value, result []byte, p *Place) error {
	if p.single() {
		return x.CompareSwap(compare, value, result, p.Rank, p.Disp)
	}
	if err := x.live(); err != nil {
		return x.fail("CompareSwap", p.Target(), err)
	}
	z := x.takeFetchBuffer()
	copy(z.compare(), compare)
	copy(z.value(), value)
	clear(z.result())
	return x.await(x.swapAt(opCompareSwap, z, z.result(), p), z, result)
}

// RCompareSwapAt implements comm.Place.RCompareSwap, which documents the call.
func (x *Win) RCompareSwapAt(compare, value, result []byte, p *Place) Request {
	if err := x.live(); err != nil {
		return x.refused("RCompareSwap", p.Target(), err)
	}
	z := x.takeFetchBuffer()
	copy(z.compare(), compare)
	copy(z.value(), value)
	r := x.swapAt(opRCompareSwap, z, result, p)
	x.putFetchBuffer(z) // package rma has copied the elements of z
	return r
}

func (x *Win) swapAt(name callName, z *fetchBuffer, result []byte, p *Place) Request {
	a := rma.Access{Ticket: true, Compare: z.compare()}
	none, err := x.access(&a, p, z.buffer(result))
	if err == nil && !x.comparable {
		err = fmt.Errorf("%w: CompareSwap needs integers or bools, not %v", ErrType, x.elem.Go)
	}
	if err != nil {
		return x.refused(name.String(), p.Target(), err)
	}
	if none {
		return Request{c: completedAtStart}
	}
	a.Src.Bytes, a.Result.Bytes = z.value(), result // a layout of one element is contiguous, so a has none
	r, err := x.win.CompareSwapAt(x.c.ctx, &a)
	return x.request(name, p.Target(), r, err)
}
