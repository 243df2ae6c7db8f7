package mpi_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// origins returns views of n elements of a buffer with room for 2n+1 elements, and for each the indices
// of its elements.
func origins(n int) []shape {
	var second, backwards []int
	for i := range n {
		second = append(second, 1+2*i)
		backwards = append(backwards, n-1-i)
	}
	return []shape{
		{"slice", comm.Contiguous(n), seq(0, n)},
		{"every second", comm.Vector(n, 1, 2).Shift(1), second},
		{"backwards", comm.Vector(n, 1, -1).Shift(n - 1), backwards},
	}
}

// placeTrial puts, gets and accumulates between views of this rank and layouts in the memory of rank
// target, for elements that number makes. place returns the place at an element of that memory, which
// has room for size elements. No other rank uses the memory meanwhile.
func placeTrial[T comm.Number](w *comm.Win[T], target, size int, number func(i int) T, place func(disp int) comm.Place[T]) error {
	all := make([]T, size)
	fetch := func() ([]T, error) {
		err := first(place(0).Get(comm.Slice(all)), w.Flush(target))
		return append([]T(nil), all...), err
	}
	rng := rand.New(rand.NewPCG(uint64(target), uint64(size)))
	for _, s := range shapes(size / 40) {
		n := len(s.indices)
		_, high := s.layout.Span()
		disp := rng.IntN(size - high)
		for _, o := range origins(n) {
			p := place(disp).Layout(s.layout)
			buf, got, before := make([]T, 2*n+1), make([]T, 2*n+1), []T(nil)
			for i := range buf {
				buf[i] = number(rng.IntN(3) + 1)
			}
			v, result := comm.Of(buf, o.layout), comm.Of(got, o.layout)
			before, err := fetch()
			if err != nil {
				return err
			}
			want, old := append([]T(nil), before...), make([]T, 2*n+1)
			step := rng.IntN(6)
			switch step {
			case 0:
				err = first(p.Put(v), w.Flush(target))
			case 1:
				err = first(wait(p.RPut(v)), w.Flush(target))
			case 2:
				err = first(p.Accumulate(v, comm.Sum), w.Flush(target))
			case 3:
				err = first(wait(p.RAccumulate(v, comm.Sum)), w.Flush(target))
			case 4:
				err = first(p.GetAccumulate(v, result, comm.Replace), w.FlushLocal(target))
			default:
				err = first(wait(p.RGetAccumulate(v, result, comm.Sum)))
			}
			if err != nil {
				return fmt.Errorf("%s from %s, step %d: %w", s.name, o.name, step, err)
			}
			for i, at := range s.indices {
				at += disp
				x := buf[o.indices[i]]
				if step >= 4 {
					old[o.indices[i]] = want[at]
				}
				if step == 0 || step == 1 || step == 4 {
					want[at] = x
				} else {
					want[at] += x
				}
			}
			after, err := fetch()
			if err := first(err, same(fmt.Sprintf("%s from %s, step %d", s.name, o.name, step), after, want), same("fetched", got, old)); err != nil {
				return err
			}
			clear(got)
			if rng.IntN(2) == 0 {
				err = first(p.Get(result), w.FlushLocal(target))
			} else {
				err = wait(p.RGet(result))
			}
			clear(old)
			for i, at := range s.indices {
				old[o.indices[i]] = want[at+disp]
			}
			if err := first(err, same(s.name+": got", got, old)); err != nil {
				return err
			}
		}
	}
	return singles(number, place)
}

// singles checks the operations on single elements.
func singles[T comm.Number](number func(i int) T, place func(disp int) comm.Place[T]) error {
	p, q := place(2), place(0).Layout(comm.Contiguous(1).Shift(3))
	x, y, z := number(5), number(7), number(0)
	if _, err := first2(p.FetchOp(x, comm.Replace)); err != nil {
		return err
	}
	old, err := q.FetchOp(y, comm.Replace)
	if err != nil {
		return err
	}
	was, err := p.FetchOp(y, comm.Sum)
	if err := first(err, same("FetchOp", []T{was}, []T{x})); err != nil {
		return err
	}
	if err := first(wait(q.RFetchOp(&old, &z, comm.NoOp)), same("RFetchOp", []T{z}, []T{y})); err != nil {
		return err
	}
	switch any(x).(type) {
	case float64, complex128:
		_, err := p.CompareSwap(x, y)
		return wantErr("CompareSwap", err, comm.ErrType, "")
	}
	was, err = p.CompareSwap(x+y, y)
	if err := first(err, same("CompareSwap", []T{was}, []T{x + y})); err != nil {
		return err
	}
	return first(wait(q.RCompareSwap(x, x, &z)), same("RCompareSwap", []T{z}, []T{y}), wait(q.RCompareSwap(y, x, &z)), same("RCompareSwap", []T{z}, []T{y}))
}

func first2[T any](v T, err error) (T, error) { return v, err }

// inTurn calls f on this rank for each target, under an exclusive lock.
func inTurn[T any](w *comm.Win[T], f func(target int) error) error {
	c := w.Comm()
	for i := range c.Size() {
		target := (c.Rank() + i) % c.Size()
		if err := first(w.Lock(target, comm.LockExclusive), f(target), w.Unlock(target)); err != nil {
			return err
		}
	}
	return c.Barrier()
}

// partPlaces runs placeTrial on parts.
func partPlaces[T comm.Number](c *comm.Comm, size int, number func(i int) T) error {
	return withWindow(c, size, func(w *comm.Win[T]) error {
		return inTurn(w, func(target int) error {
			return placeTrial(w, target, size, number, func(disp int) comm.Place[T] { return w.At(target, disp) })
		})
	})
}

// regionPlaces runs placeTrial on regions, with memory of Go's heap or of Alloc.
func regionPlaces[T comm.Number](c *comm.Comm, size int, alloc bool, number func(i int) T) error {
	w, err := comm.NewDynamicWin[T](c)
	if err != nil {
		return err
	}
	mem := make([]T, size)
	if alloc {
		m, free, err := comm.Alloc[T](c, size+5)
		if err != nil {
			return err
		}
		defer free()
		mem = m[3:][:size]
	}
	r, err := w.Attach(mem)
	if err != nil {
		return err
	}
	regions := make([]comm.Region[T], c.Size())
	if err := comm.Allgather(c, []comm.Region[T]{r}, regions); err != nil {
		return err
	}
	err = inTurn(w, func(target int) error {
		if regions[target].Rank() != target || regions[target].Len() != size {
			return fmt.Errorf("region of rank %d with %d elements", regions[target].Rank(), regions[target].Len())
		}
		return placeTrial(w, target, size, number, func(disp int) comm.Place[T] { return w.In(regions[target], disp) })
	})
	if err := first(err, w.Detach(r), wantErr("twice", w.Detach(r), comm.ErrRMAAttach, "Detach"), c.Barrier()); err != nil {
		return err
	}
	kept := append([]T(nil), mem[1:3]...)
	for target, r := range regions { // now the regions are stale
		p := w.In(r, 1)
		buf := make([]T, 9)
		if err := w.Lock(target, comm.LockShared); err != nil {
			return err
		}
		_, ferr := p.FetchOp(number(1), comm.Sum)
		err := p.Put(comm.Slice(buf))
		if err == nil {
			err = w.Flush(target)
		}
		rerr := wait(p.Layout(comm.Vector(9, 1, 2)).RGet(comm.Slice(buf)))
		if err := first(wantErr("FetchOp", ferr, comm.ErrRMARange, "not attached"), wantErr("Put", err, comm.ErrRMARange, "not attached"),
			wantErr("RGet", rerr, comm.ErrRMARange, "not attached")); err != nil {
			return err
		}
		if err := w.Unlock(target); err != nil { // the first failure of the epoch, if it was not at once
			if err := wantErr("Unlock", err, comm.ErrRMARange, "not attached"); err != nil {
				return err
			}
		}
	}
	return first(c.Barrier(), same("detached memory", mem[1:3], kept), w.Free())
}

// TestPlaces runs the trials for elements of several sizes, over every fabric.
func TestPlaces(t *testing.T) {
	overFabrics(t, []int{1, 2, 3}, func(c *comm.Comm) error {
		return first(
			partPlaces(c, 4000, func(i int) int64 { return int64(i) }),
			partPlaces(c, 4000, func(i int) uint16 { return uint16(i) }),
			partPlaces(c, 1500, func(i int) complex128 { return complex(float64(i), 1) }))
	})
}

// TestRegionPlaces runs the trials on regions of dynamic windows.
func TestRegionPlaces(t *testing.T) {
	overFabrics(t, []int{1, 2, 3}, func(c *comm.Comm) error {
		for _, alloc := range []bool{false, true} {
			if err := first(
				regionPlaces(c, 3000, alloc, func(i int) int32 { return int32(i) }),
				regionPlaces(c, 2000, alloc, func(i int) float64 { return float64(i) }),
				regionPlaces(c, 3000, alloc, func(i int) int8 { return int8(i) })); err != nil {
				return fmt.Errorf("alloc %v: %w", alloc, err)
			}
		}
		return nil
	})
}

// TestLongPieces moves blocks that are long enough for an RMA operation each.
func TestLongPieces(t *testing.T) {
	const blocks, block, stride = 7, 1500, 2000
	overFabrics(t, []int{2, 3}, func(c *comm.Comm) error {
		return withWindow(c, blocks*stride, func(w *comm.Win[int]) error {
			next := (c.Rank() + 1) % c.Size()
			buf, got := count(blocks*stride, c.Rank()*1e6), make([]int, blocks*stride)
			l := comm.Vector(blocks, block, stride)
			p := w.At(next, 0).Layout(l.Shift(stride - block))
			if err := first(w.LockAll(), p.Put(comm.Of(buf, l)), w.Flush(next), wait(p.RGet(comm.Of(got, l))),
				wait(p.RPut(comm.Of(buf, l))), w.UnlockAll(), c.Barrier()); err != nil {
				return err
			}
			prev := (c.Rank() + c.Size() - 1) % c.Size()
			for i := range blocks {
				at := i * stride
				if err := first(same("got", got[at:at+block], buf[at:at+block]),
					same("put", w.Local()[at+stride-block:][:block], count(block, prev*1e6+at))); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// node is an element of a linked list over all ranks. next is a place in another rank's memory.
type node struct {
	value int
	next  comm.Region[node]
	more  bool
}

// TestLists builds a linked list whose nodes lie in the memory of all ranks, and every rank walks it.
func TestLists(t *testing.T) {
	const rounds = 5
	overFabrics(t, []int{1, 3}, func(c *comm.Comm) error {
		// node contains a Region of node, which has the size of any Region, so the type is finite.
		w, err := comm.NewDynamicWin[node](c)
		if err != nil {
			return err
		}
		var head comm.Region[node]
		size := c.Size()
		for i := range rounds * size { // the owners alternate; each node refers to the one before
			owner := i % size
			if c.Rank() == owner {
				mem := []node{{value: i, next: head, more: i > 0}}
				if head, err = w.Attach(mem); err != nil {
					return err
				}
			}
			one := []comm.Region[node]{head}
			if err := comm.Bcast(c, one, owner); err != nil {
				return err
			}
			head = one[0]
		}
		if err := w.LockAll(); err != nil {
			return err
		}
		var values []int
		at := make([]node, 1)
		for r := head; ; r = at[0].next {
			if err := first(w.In(r, 0).Get(comm.Slice(at)), w.Flush(r.Rank())); err != nil {
				return err
			}
			values = append([]int{at[0].value}, values...)
			if !at[0].more {
				break
			}
		}
		return first(w.UnlockAll(), same("list", values, count(rounds*size, 0)), w.Free())
	})
}

// TestWrongPlaces makes one wrong call in each case, which changes nothing.
func TestWrongPlaces(t *testing.T) {
	type win = *comm.Win[int]
	type region = comm.Region[int]
	two := comm.Slice([]int{8, 9})
	at := func(f func(w win, r region) error) func(w win, r region) error { return f }
	for name, bad := range map[string]struct {
		call func(w win, r region) error
		kind error
		text string
	}{
		"rank":        {at(func(w win, _ region) error { return w.At(2, 0).Put(two) }), comm.ErrRank, "comm: Put (win 0.1, rank 2): rank out of range: the window has 2"},
		"disp":        {at(func(w win, r region) error { return w.In(r, -1).Put(two) }), comm.ErrDisp, "-1"},
		"end":         {at(func(w win, r region) error { return w.In(r, 9).Put(two) }), comm.ErrRMARange, "the elements 9 to 10, but there are 10"},
		"layout":      {at(func(w win, r region) error { return w.In(r, 0).Layout(comm.Vector(2, 1, 10)).Put(two) }), comm.ErrRMARange, "0 to 10"},
		"before":      {at(func(w win, r region) error { return w.In(r, 0).Layout(comm.Vector(2, 1, -1)).Get(two) }), comm.ErrRMARange, "-1 to 0"},
		"lengths":     {at(func(w win, r region) error { return w.In(r, 0).Layout(comm.Vector(3, 1, 2)).Put(two) }), comm.ErrCount, "3 elements, the buffer 2"},
		"zero layout": {at(func(w win, r region) error { return w.In(r, 0).Layout(comm.Layout{}).Put(two) }), comm.ErrCount, "0 elements"},
		"bad layout":  {at(func(w win, r region) error { return w.In(r, 0).Layout(comm.Vector(-1, 1, 1)).Put(two) }), comm.ErrLayout, ""},
		"zero view":   {at(func(w win, r region) error { return w.In(r, 0).Put(comm.View[int]{}) }), comm.ErrType, "zero"},
		"bad view":    {at(func(w win, r region) error { return w.In(r, 0).Get(comm.Of([]int{1}, comm.Contiguous(2))) }), comm.ErrCount, ""},
		"zero region": {at(func(w win, _ region) error { return w.In(region{}, 0).Put(comm.Slice([]int{})) }), comm.ErrRMARange, "not a region of this window"},
		"part":        {at(func(w win, _ region) error { return w.At(1, 0).Put(two) }), comm.ErrRMARange, "there are 0"},
		"slice":       {at(func(w win, _ region) error { return w.Put([]int{1}, 1, 0) }), comm.ErrRMARange, "the part has 0"},
		"op":          {at(func(w win, r region) error { return w.In(r, 0).Accumulate(two, nil) }), comm.ErrOp, ""},
		"own op": {at(func(w win, r region) error {
			return w.In(r, 0).Accumulate(two, comm.OpOf(func(a, _ int) int { return a }))
		}), comm.ErrOp, ""},
		"result": {at(func(w win, r region) error {
			return w.In(r, 0).GetAccumulate(two, comm.Slice(make([]int, 3)), comm.Sum)
		}), comm.ErrCount, "result 3"},
		"overlap":     {at(func(w win, r region) error { return w.In(r, 0).GetAccumulate(two, two, comm.Sum) }), comm.ErrBuffer, ""},
		"no source":   {at(func(w win, r region) error { return w.In(r, 0).GetAccumulate(comm.View[int]{}, two, comm.Sum) }), comm.ErrType, ""},
		"rput":        {at(func(w win, r region) error { return wait(w.In(r, 10).RPut(two)) }), comm.ErrRMARange, "RPut"},
		"rget":        {at(func(w win, r region) error { return wait(w.At(-7, 0).RGet(two)) }), comm.ErrRank, "RGet"},
		"raccumulate": {at(func(w win, r region) error { return wait(w.In(r, 10).RAccumulate(two, comm.Sum)) }), comm.ErrRMARange, "RAccumulate"},
		"nil":         {at(func(w win, r region) error { return wait(w.In(r, 0).RFetchOp(nil, nil, comm.Sum)) }), comm.ErrArg, ""},
		"nil swap":    {at(func(w win, r region) error { return wait(w.In(r, 0).RCompareSwap(1, 2, nil)) }), comm.ErrArg, ""},
		"two swapped": {at(func(w win, r region) error {
			_, err := w.In(r, 0).Layout(comm.Vector(2, 1, 2)).CompareSwap(1, 2)
			return err
		}), comm.ErrCount, ""},
		"no window": {at(func(_ win, r region) error { var w win; return w.In(r, 0).Put(two) }), comm.ErrWin, ""},
		"attach":    {at(func(w win, _ region) error { var no win; _, err := no.Attach([]int{1}); return err }), comm.ErrWin, "Attach"},
		"detach":    {at(func(w win, r region) error { return w.Detach(r) }), comm.ErrRMAAttach, "Detach"},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 2, func(c *comm.Comm) error {
				w, err := comm.NewDynamicWin[int](c)
				if err != nil {
					return err
				}
				mem, all := count(10, 0), make([]region, 1)
				if c.Rank() == 1 {
					if all[0], err = w.Attach(mem); err != nil {
						return err
					}
					_, err = w.Attach(mem[9:])
					if err := wantErr("overlap", err, comm.ErrRMAAttach, "attached already"); err != nil {
						return err
					}
				}
				if err := comm.Bcast(c, all, 1); err != nil {
					return err
				}
				if c.Rank() == 0 {
					got := make([]int, 10)
					if err := first(w.Lock(1, comm.LockExclusive), wantErr(name, bad.call(w, all[0]), bad.kind, bad.text),
						w.In(all[0], 0).Get(comm.Slice(got)), w.Unlock(1), same("target", got, count(10, 0))); err != nil {
						return err
					}
				}
				return first(c.Barrier(), w.Fence(), w.In(all[0], 2*c.Rank()).Put(two), w.At(comm.ProcNull, 5).Put(two), w.Fence(), w.Free())
			})
		})
	}
}

// TestKilledOwner: operations on a region of a rank that has died fail in bounded time.
func TestKilledOwner(t *testing.T) {
	for _, fab := range fabrics {
		if fab.immortal {
			continue
		}
		t.Run(fab.name, func(t *testing.T) {
			dead := make(chan struct{})
			ranks(t, 3, func(c *comm.Comm) error {
				w, err := comm.NewDynamicWin[int](c)
				if err != nil {
					return err
				}
				r, err := w.Attach(make([]int, 3000))
				if err != nil {
					return err
				}
				all := make([]comm.Region[int], 3)
				meet := first(comm.Allgather(c, []comm.Region[int]{r}, all), c.Barrier())
				if c.Rank() == 1 {
					commtest.Kill(c)
					close(dead)
					return nil
				}
				<-dead
				if meet != nil {
					return meet
				}
				p := w.In(all[1], 0).Layout(comm.Vector(1000, 1, 3))
				err = first(w.LockAll(), p.Put(comm.Slice(make([]int, 1000))), wait(p.RGet(comm.Slice(make([]int, 1000)))), w.Flush(1))
				if unless(err, comm.ErrProcFailed, comm.ErrRevoked) != nil || err == nil {
					return fmt.Errorf("operations: %w", err)
				}
				// A rank that learns of the end by a revocation may not know which rank has failed.
				if failed := w.FailedRanks(); isErr(err, comm.ErrProcFailed) && !slices.Contains(failed, 1) {
					return fmt.Errorf("failed: %v", failed)
				}
				if err := unless(w.Free(), comm.ErrWin, comm.ErrProcFailed, comm.ErrRMASync); err != nil {
					return err
				}
				commtest.Kill(c) // otherwise Run would call Finalize, which returns an error after a failure
				return nil
			}, append([]commtest.Option{commtest.WithProviders(fab.open())}, fab.opts...)...)
		})
	}
}
