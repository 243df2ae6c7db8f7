//go:build linux

package mpi_test

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport/inproc"
)

// TestWrongWindowCalls makes one wrong call in each case. The call must return the documented error
// and change no element, and the window must still be usable.
func TestWrongWindowCalls(t *testing.T) {
	type win = *comm.Win[int]
	value := func(_ int, err error) error { return err }
	two, x := []int{8, 9}, 7
	var noOp comm.OpFor[int]
	for name, bad := range map[string]struct {
		call func(w win) error
		kind error
		text string
	}{
		"put to size":         {func(w win) error { return w.Put(two, 2, 0) }, comm.ErrRank, "comm: Put (win 0.1, rank 2): rank out of range: the window has 2"},
		"put to any":          {func(w win) error { return w.Put(two, comm.AnySource, 0) }, comm.ErrRank, "any source"},
		"put at -1":           {func(w win) error { return w.Put(two, 1, -1) }, comm.ErrDisp, "-1"},
		"put at the least":    {func(w win) error { return w.Put(two, 1, math.MinInt) }, comm.ErrDisp, ""},
		"put across the end":  {func(w win) error { return w.Put(two, 1, 9) }, comm.ErrRMARange, "2 elements from element 9 on, but the part has 10"},
		"put far out":         {func(w win) error { return w.Put(two, 1, math.MaxInt) }, comm.ErrRMARange, ""},
		"put that overflows":  {func(w win) error { return w.Put(two, 1, math.MaxInt/8+2) }, comm.ErrRMARange, ""},
		"put to an empty one": {func(w win) error { return w.Put(two[:1], 0, 0) }, comm.ErrRMARange, "the part has 0"},
		"get too much":        {func(w win) error { return w.Get(make([]int, 11), 1, 0) }, comm.ErrRMARange, "Get"},
		"rput":                {func(w win) error { return wait(w.RPut(two, 1, 9)) }, comm.ErrRMARange, "RPut"},
		"rget":                {func(w win) error { return wait(w.RGet(two, 3, 0)) }, comm.ErrRank, "RGet"},
		"accumulate out":      {func(w win) error { return w.Accumulate(two, 1, 10, comm.Sum) }, comm.ErrRMARange, "Accumulate"},
		"accumulate nil":      {func(w win) error { return w.Accumulate(two, 1, 0, nil) }, comm.ErrOp, "nil"},
		"accumulate no op":    {func(w win) error { return w.Accumulate(two, 1, 0, noOp) }, comm.ErrOp, "nil"},
		"accumulate zero op":  {func(w win) error { return w.Accumulate(two, 1, 0, func() (o comm.Op[int]) { return }) }, comm.ErrOp, "zero"},
		"accumulate function": {func(w win) error {
			return w.Accumulate(two, 1, 0, comm.OpFunc(true, func(inout, in []int) { copy(inout, in) }))
		}, comm.ErrOp, "OpFunc"},
		"raccumulate":      {func(w win) error { return wait(w.RAccumulate(two, 1, -2, comm.Sum)) }, comm.ErrDisp, "RAccumulate"},
		"lengths":          {func(w win) error { return w.GetAccumulate(two, make([]int, 3), 1, 0, comm.Sum) }, comm.ErrCount, "buf has 2 elements, result 3"},
		"nil to sum":       {func(w win) error { return w.GetAccumulate(nil, two, 1, 0, comm.Sum) }, comm.ErrCount, ""},
		"overlap":          {func(w win) error { return w.GetAccumulate(two, two, 1, 0, comm.Sum) }, comm.ErrBuffer, "GetAccumulate"},
		"rgetaccumulate":   {func(w win) error { return wait(w.RGetAccumulate(two, make([]int, 2), 1, 9, comm.Sum)) }, comm.ErrRMARange, "RGetAccumulate"},
		"fetchop out":      {func(w win) error { return value(w.FetchOp(1, 1, 10, comm.Sum)) }, comm.ErrRMARange, "FetchOp"},
		"fetchop no rank":  {func(w win) error { return value(w.FetchOp(1, -5, 0, comm.Sum)) }, comm.ErrRank, "FetchOp"},
		"rfetchop nil":     {func(w win) error { return wait(w.RFetchOp(nil, &x, 1, 0, comm.Sum)) }, comm.ErrArg, "RFetchOp"},
		"rfetchop result":  {func(w win) error { return wait(w.RFetchOp(&x, nil, 1, 0, comm.Sum)) }, comm.ErrArg, ""},
		"rfetchop same":    {func(w win) error { return wait(w.RFetchOp(&x, &x, 1, 0, comm.Sum)) }, comm.ErrBuffer, ""},
		"swap out":         {func(w win) error { return value(w.CompareSwap(0, 1, 1, 10)) }, comm.ErrRMARange, "CompareSwap"},
		"rswap nil":        {func(w win) error { return wait(w.RCompareSwap(0, 1, nil, 1, 0)) }, comm.ErrArg, "RCompareSwap"},
		"lock no rank":     {func(w win) error { return w.Lock(2, comm.LockShared) }, comm.ErrRank, "Lock"},
		"lock kind":        {func(w win) error { return w.Lock(1, 0) }, comm.ErrLockType, "Lock"},
		"lock twice":       {func(w win) error { return w.Lock(1, comm.LockShared) }, comm.ErrRMASync, "locked already"},
		"try no rank":      {func(w win) error { _, err := w.TryLock(2, comm.LockShared); return err }, comm.ErrRank, "TryLock"},
		"try kind":         {func(w win) error { _, err := w.TryLock(1, 0); return err }, comm.ErrLockType, "TryLock"},
		"try twice":        {func(w win) error { _, err := w.TryLock(1, comm.LockShared); return err }, comm.ErrRMASync, "locked already"},
		"lock all":         {func(w win) error { return w.LockAll() }, comm.ErrRMASync, "LockAll"},
		"start":            {func(w win) error { return w.Start([]int{1}) }, comm.ErrRMASync, "Start"},
		"start no rank":    {func(w win) error { return w.Start([]int{1, 4}) }, comm.ErrRank, "Start"},
		"start twice":      {func(w win) error { return w.Start([]int{1, 1}) }, comm.ErrArg, "twice"},
		"post to ProcNull": {func(w win) error { return w.Post([]int{comm.ProcNull}) }, comm.ErrRank, "Post"},
		"complete":         {func(w win) error { return w.Complete() }, comm.ErrRMASync, "Complete"},
		"wait":             {func(w win) error { return w.Wait() }, comm.ErrRMASync, "Wait"},
		"test":             {func(w win) error { _, err := w.Test(); return err }, comm.ErrRMASync, "Test"},
		"unlock":           {func(w win) error { return w.Unlock(0) }, comm.ErrRMASync, "not locked"},
		"unlock no rank":   {func(w win) error { return w.Unlock(9) }, comm.ErrRank, "Unlock"},
		"unlock all":       {func(w win) error { return w.UnlockAll() }, comm.ErrRMASync, "UnlockAll"},
		"flush":            {func(w win) error { return w.Flush(-1) }, comm.ErrRank, "Flush"},
		"flush local":      {func(w win) error { return w.FlushLocal(3) }, comm.ErrRank, "FlushLocal"},
		"no epoch":         {func(w win) error { return w.Put(nil, 0, 0) }, comm.ErrRMASync, "rank 0's part"},
		"no epoch, fetch":  {func(w win) error { return value(w.FetchOp(0, 0, 0, comm.NoOp)) }, comm.ErrRMARange, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 2, func(c *comm.Comm) error {
				return withWindow(c, 10*c.Rank(), func(w win) error {
					copy(w.Local(), count(10, 0))
					if err := c.Barrier(); err != nil {
						return err
					}
					if c.Rank() == 0 { // rank 0 locks the part of rank 1, not its own part
						got := make([]int, 10)
						if err := first(w.Lock(1, comm.LockExclusive), wantErr(name, bad.call(w), bad.kind, bad.text),
							w.Get(got, 1, 0), w.Unlock(1), same("target", got, count(10, 0))); err != nil {
							return err
						}
					}
					return first(w.Fence(), w.Put(two, 1, c.Rank()*2), w.Fence(), same("own", two, []int{8, 9}))
				})
			})
		})
	}
}

// TestOutsideOfEpochs: without an epoch every operation returns ErrRMASync.
func TestOutsideOfEpochs(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		return withWindow(c, 4, func(w *comm.Win[int]) error {
			one, other := []int{1}, 1-c.Rank()
			closed := func(when string) error {
				_, ferr := w.FetchOp(1, other, 0, comm.Sum)
				_, cerr := w.CompareSwap(0, 1, other, 0)
				return first(
					wantErr(when, w.Put(one, other, 0), comm.ErrRMASync, "Put"), wantErr(when, w.Get(one, other, 0), comm.ErrRMASync, "Get"),
					wantErr(when, w.Accumulate(one, other, 0, comm.Sum), comm.ErrRMASync, "Accumulate"),
					wantErr(when, ferr, comm.ErrRMASync, "FetchOp"), wantErr(when, cerr, comm.ErrRMASync, "CompareSwap"),
					wantErr(when, wait(w.RPut(one, other, 0)), comm.ErrRMASync, "RPut"))
			}
			if err := first(closed("at first"),
				w.Lock(other, comm.LockShared), w.Put(one, other, 0), w.Unlock(other), closed("after Unlock"),
				w.LockAll(), w.Put(one, other, 0), w.UnlockAll(), closed("after UnlockAll"),
				w.Post([]int{other}), w.Start([]int{other}), w.Put(one, other, 0), w.Complete(), closed("after Complete"), w.Wait(),
				w.Fence(), w.Put(one, other, 0), w.Fence(), w.Lock(other, comm.LockShared), w.Unlock(other), closed("after Fence and Lock"),
			); err != nil {
				return err
			}
			return first(c.Barrier(), same("own", w.Local(), []int{1, 0, 0, 0}))
		})
	})
}

// TestInvalidWindows calls methods of nil, zero and freed windows. Those that return an error must
// return ErrWin.
func TestInvalidWindows(t *testing.T) {
	type win = *comm.Win[int]
	calls := map[string]func(w win) error{
		"Put": func(w win) error { return w.Put([]int{1}, 0, 0) }, "Get": func(w win) error { return w.Get([]int{1}, 0, 0) },
		"RPut": func(w win) error { return wait(w.RPut([]int{1}, 0, 0)) }, "RGet": func(w win) error { return wait(w.RGet([]int{1}, 0, 0)) },
		"Accumulate":     func(w win) error { return w.Accumulate([]int{1}, 0, 0, comm.Sum) },
		"RAccumulate":    func(w win) error { return wait(w.RAccumulate([]int{1}, 0, 0, comm.Sum)) },
		"GetAccumulate":  func(w win) error { return w.GetAccumulate([]int{1}, []int{1}, 0, 0, comm.Sum) },
		"RGetAccumulate": func(w win) error { return wait(w.RGetAccumulate([]int{1}, []int{1}, 0, 0, comm.Sum)) },
		"FetchOp":        func(w win) error { _, err := w.FetchOp(1, 0, 0, comm.Sum); return err },
		"RFetchOp":       func(w win) error { return wait(w.RFetchOp(new(int), new(int), 0, 0, comm.Sum)) },
		"CompareSwap":    func(w win) error { _, err := w.CompareSwap(0, 1, 0, 0); return err },
		"RCompareSwap":   func(w win) error { return wait(w.RCompareSwap(0, 1, new(int), 0, 0)) },
		"Fence":          func(w win) error { return w.Fence() }, "Lock": func(w win) error { return w.Lock(0, comm.LockShared) },
		"Unlock": func(w win) error { return w.Unlock(0) }, "LockAll": func(w win) error { return w.LockAll() },
		"UnlockAll": func(w win) error { return w.UnlockAll() }, "Flush": func(w win) error { return w.Flush(0) },
		"FlushLocal": func(w win) error { return w.FlushLocal(0) }, "FlushAll": func(w win) error { return w.FlushAll() },
		"FlushLocalAll": func(w win) error { return w.FlushLocalAll() }, "Sync": func(w win) error { return w.Sync() },
		"Post": func(w win) error { return w.Post(nil) }, "Start": func(w win) error { return w.Start(nil) },
		"Complete": func(w win) error { return w.Complete() }, "Wait": func(w win) error { return w.Wait() },
		"Test": func(w win) error { _, err := w.Test(); return err }, "Revoke": func(w win) error { return w.Revoke() },
		"Free": func(w win) error { return w.Free() },
	}
	var after win
	ranks(t, 2, func(c *comm.Comm) error {
		freed, err := comm.NewWin[int](c, 3)
		if err != nil {
			return err
		}
		if err := freed.Free(); err != nil {
			return err
		}
		for what, w := range map[string]win{"nil": nil, "zero": {}, "freed": freed} {
			for name, call := range calls {
				if err := wantErr(what+" "+name, call(w), comm.ErrWin, "comm: "+name); err != nil {
					return err
				}
			}
		}
		if none := (win)(nil); none.Local() != nil || none.Len(0) != 0 || none.Comm() != nil || freed.Len(-1) != 0 || freed.Len(1) != 3 {
			return errors.New("Local, Len or Comm")
		}
		if c.Rank() == 0 {
			return withWindow(c, 1, func(w win) error { after = w; return nil })
		}
		return withWindow(c, 1, func(win) error { return nil })
	})
	require.Len(t, after.Local(), 1)
	require.ErrorIs(t, after.Fence(), comm.ErrWin)
}

// TestWindowCreationErrors: if a rank passes a wrong argument, NewWin or WinOf fails on all ranks,
// and no rank waits for ever.
func TestWindowCreationErrors(t *testing.T) {
	for name, x := range map[string]struct {
		make func(c *comm.Comm, bad bool) error
		kind error
	}{
		"count": {func(c *comm.Comm, bad bool) error {
			n := 5
			if bad {
				n = -1
			}
			_, err := comm.NewWin[int](c, n)
			return err
		}, comm.ErrCount},
		"memory": {func(c *comm.Comm, bad bool) error {
			n := 5
			if bad {
				n = math.MaxInt
			}
			_, err := comm.NewWin[int](c, n)
			return err
		}, comm.ErrCount},
		"pointers": {func(c *comm.Comm, _ bool) error { _, err := comm.NewWin[string](c, 1); return err }, comm.ErrType},
		"slices":   {func(c *comm.Comm, _ bool) error { _, err := comm.WinOf(c, [][]int{{1}}); return err }, comm.ErrType},
		"types": {func(c *comm.Comm, bad bool) error {
			if bad {
				_, err := comm.NewWin[float64](c, 1)
				return err
			}
			_, err := comm.NewWin[int64](c, 1)
			return err
		}, comm.ErrMismatch},
		"other collective": {func(c *comm.Comm, bad bool) error {
			if bad {
				return comm.Allgather(c, count(3, 0), make([]int, 9))
			}
			_, err := comm.NewWin[int](c, 1)
			return err
		}, comm.ErrMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 3, func(world *comm.Comm) error {
				c, err := world.Dup()
				if err != nil {
					return err
				}
				err = x.make(c, c.Rank() == 1)
				if !isErr(err, x.kind) && !isErr(err, comm.ErrRevoked) {
					return fmt.Errorf("%s: %w", name, err)
				}
				if c.Rank() == 1 && name != "other collective" || name == "types" {
					if err := wantErr(name, err, x.kind, "comm: "); err != nil {
						return err
					}
				}
				if name == "types" {
					err = c.Barrier()
				} else {
					err = nil
				}
				return first(err, c.Free(), withWindow(world, 1, func(*comm.Win[int]) error { return nil }))
			})
		})
	}
	_, err := comm.NewWin[int](nil, 1)
	require.ErrorIs(t, err, comm.ErrClosed)
}

// TestUnusualElements uses elements of size 0, large ones, and types that CompareSwap does not
// accept.
func TestUnusualElements(t *testing.T) {
	type large struct{ Words [100]uint64 }
	overFabrics(t, []int{1, 3}, func(c *comm.Comm) error {
		other := c.Size() - 1 - c.Rank()
		err := withWindow(c, 5, func(w *comm.Win[struct{}]) error {
			return first(w.Fence(), w.Put(make([]struct{}, 5), other, 0), w.Accumulate(make([]struct{}, 2), other, 3, comm.Replace), w.Fence(),
				wantErr("beyond", w.Put(make([]struct{}, 6), other, 0), comm.ErrRMARange, "6 elements"))
		})
		if err != nil {
			return err
		}
		return withWindow(c, 4, func(w *comm.Win[large]) error {
			var x large
			x.Words[99] = 7
			if err := first(w.Fence(), w.Accumulate([]large{x, x}, other, 2, comm.Replace), w.Fence(),
				same("own", w.Local(), []large{{}, {}, x, x})); err != nil {
				return err
			}
			was, err := w.FetchOp(large{}, other, 3, comm.NoOp)
			_, serr := w.CompareSwap(x, large{}, other, 3)
			return first(err, same("read", []large{was}, []large{x}), wantErr("swap", serr, comm.ErrType, "needs integers or bools"))
		})
	})
}

// TestWindowOverAlloc: a window over memory of Alloc registers nothing. The memory stays mapped
// until both the window and the memory are freed.
func TestWindowOverAlloc(t *testing.T) {
	var n atomic.Int64
	ranks(t, 3, func(c *comm.Comm) error {
		mem, free, err := comm.Alloc[int](c, 1000)
		if err := first(err, c.Barrier(), c.Barrier()); err != nil {
			return err
		}
		before := n.Load()
		w, err := comm.WinOf(c, mem[100:])
		if err != nil {
			return err
		}
		free()
		next, prev := (c.Rank()+1)%3, (c.Rank()+2)%3
		if err := first(w.Fence(), w.Put(count(900, c.Rank()), next, 0), w.Fence(), same("own", mem[100:], count(900, prev))); err != nil {
			return err
		}
		if now := n.Load(); now != before {
			return fmt.Errorf("%d registrations for a window over registered memory", now-before)
		}
		was, _ := peek(mem)
		if err := w.Free(); err != nil {
			return err
		}
		free()
		if is, still := peek(mem); still && is == was {
			return errors.New("the memory was not given back")
		}
		return nil
	}, commtest.WithProviders(counted{inproc.NewFabric(), &n}))
	require.EqualValues(t, 3, n.Load())
}
