package mpi_test

import (
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/transport/inproc"
)

// TestSharedWindow: the parts of a window of NewSharedWin follow each other in memory, and all
// operations work on them.
func TestSharedWindow(t *testing.T) {
	for _, n := range []int{1, 2, 4} {
		overShared(t, n, func(c *comm.Comm) error {
			for _, each := range []int{0, 1, 300} {
				w, err := comm.NewSharedWin[int32](c, each*c.Rank())
				if err != nil {
					return err
				}
				total := each * n * (n - 1) / 2
				if len(w.All()) != total || len(w.Local()) != each*c.Rank() || w.Flavor() != comm.FlavorShared {
					return fmt.Errorf("%d of %d elements", len(w.Local()), len(w.All()))
				}
				for i := range w.Local() {
					w.Local()[i] = int32(c.Rank()*1000 + i)
				}
				if err := c.Barrier(); err != nil {
					return err
				}
				at := 0
				for r := range n {
					part, ok := w.Shared(r)
					if !ok || len(part) != each*r {
						return fmt.Errorf("part of rank %d: %d elements", r, len(part))
					}
					for i, x := range part {
						if x != int32(r*1000+i) || x != w.All()[at+i] || &part[i] != &w.All()[at+i] {
							return fmt.Errorf("element %d of rank %d is %d", i, r, x)
						}
					}
					at += len(part)
				}
				if err := c.Barrier(); err != nil {
					return err
				}
				if each > 0 && n > 1 {
					if err := first(w.LockAll(), w.Accumulate([]int32{1}, n-1, 7%each, comm.Sum), w.UnlockAll(), c.Barrier()); err != nil {
						return err
					}
					part, _ := w.Shared(n - 1)
					if want := int32((n-1)*1000 + 7%each + n); part[7%each] != want {
						return fmt.Errorf("sum %d, want %d", part[7%each], want)
					}
				}
				if err := w.Free(); err != nil {
					return err
				}
				if w.All() != nil {
					return fmt.Errorf("a freed window has memory")
				}
			}
			w, err := comm.NewSharedWin[float64](c, 3, comm.NonContiguous())
			if err != nil {
				return err
			}
			part, ok := w.Shared(n - 1)
			if !ok || len(part) != 3 || w.All() != nil {
				return fmt.Errorf("part of %d elements, %v", len(part), ok)
			}
			return w.Free()
		})
	}
}

// TestSharedWindowWithout: without shared memory NewSharedWin fails on all ranks, and the communicator
// stays usable.
func TestSharedWindowWithout(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		_, err := comm.NewSharedWin[int](c, 3)
		_, err2 := comm.NewSharedWin[int](c, 3, comm.NonContiguous())
		_, err3 := comm.NewSharedWin[int](c, -c.Rank())
		if c.Rank() == 0 { // rank 1 and 2 refuse, which revokes c
			err3 = nil
		}
		return first(wantErr("shared", err, comm.ErrRMAShared, "NewSharedWin"), wantErr("apart", err2, comm.ErrRMAShared, ""),
			unless(err3, comm.ErrCount, comm.ErrRevoked))
	}, commtest.WithProviders(inproc.NewFabric(inproc.WithoutSharedMemory())))
}

// TestSharedWindowTooLarge: NewSharedWin fails on all ranks if the host has memory for each part but
// not for all of them. The communicator stays usable.
func TestSharedWindowTooLarge(t *testing.T) {
	mpi.SetMemory(t, 1<<20)
	overShared(t, 4, func(c *comm.Comm) error {
		for range 5 {
			_, err := comm.NewSharedWin[byte](c, 1<<19)
			if err := first(wantErr("all parts", err, comm.ErrCount, "NewSharedWin"), c.Barrier()); err != nil {
				return err
			}
		}
		w, err := comm.NewSharedWin[byte](c, 1<<18)
		if err != nil {
			return err
		}
		return w.Free()
	})
}

// TestHints: hints forbid calls, and windows with them work.
func TestHints(t *testing.T) {
	overFabrics(t, []int{1, 3}, func(c *comm.Comm) error {
		next := (c.Rank() + 1) % c.Size()
		w, err := comm.NewWin[float64](c, 4, comm.NoLocks(), comm.NoOrder(), comm.OnlyOps(comm.Sum[float64], comm.Max[float64]))
		if err != nil {
			return err
		}
		err = first(wantErr("Lock", w.Lock(next, comm.LockShared), comm.ErrRMASync, "without locks"),
			wantErr("LockAll", w.LockAll(), comm.ErrRMASync, "without locks"), w.Fence())
		for i := range 10 {
			err = first(err, w.Accumulate([]float64{1, float64(i)}, next, 0, comm.Sum), w.Accumulate([]float64{float64(i)}, next, 2, comm.Max),
				w.Accumulate([]float64{9}, next, 3, comm.Replace))
		}
		return first(err, wantErr("Prod", w.Accumulate([]float64{2}, next, 0, comm.Prod), comm.ErrOp, ""),
			wantErr("Min", wait(w.RAccumulate([]float64{2}, next, 0, comm.Min)), comm.ErrOp, ""),
			w.Fence(), same("own", w.Local(), []float64{10, 45, 9, 9}), w.Free())
	})
}

// TestHintsDiffer: ranks that pass different hints get an error, and the communicator stays usable.
func TestHintsDiffer(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		for _, hints := range [][]comm.WinHint{
			{comm.NoLocks()}, {comm.NoOrder()}, {comm.OnlyOps(comm.Sum[int])}, {comm.OnlyOps[int]()}, {comm.NonContiguous()},
		} {
			if c.Rank() == 1 {
				hints = nil
			}
			_, err := comm.NewWin[int](c, 2, hints...)
			if err := wantErr("hints", err, comm.ErrMismatch, "flavour or hint"); err != nil {
				return err
			}
		}
		var err error
		if c.Rank() == 2 {
			_, err = comm.NewDynamicWin[int](c)
		} else {
			_, err = comm.NewWin[int](c, 0)
		}
		return first(wantErr("flavour", err, comm.ErrMismatch, ""), c.Barrier())
	})
	ranks(t, 1, func(c *comm.Comm) error {
		_, err := comm.NewWin[int](c, 2, comm.OnlyOps(comm.OpOf(func(a, _ int) int { return a })))
		return wantErr("operation", err, comm.ErrOp, "OpFunc")
	})
}

// TestAssertions: calls with assertions have the effect of those without.
func TestAssertions(t *testing.T) {
	overFabrics(t, []int{1, 2, 3}, func(c *comm.Comm) error {
		next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		return withWindow(c, 4, func(w *comm.Win[int]) error {
			put := func(x, at int) error { return w.Put([]int{x}, next, at) }
			if err := first(w.FenceWith(comm.NoPrecede|comm.NoStore), put(c.Rank()+1, 0), w.FenceWith(comm.NoSucceed|comm.NoPut),
				same("own", w.Local()[:1], []int{prev + 1}), wantErr("NoSucceed", put(1, 1), comm.ErrRMASync, "")); err != nil {
				return err
			}
			if err := first(w.LockWith(next, comm.LockExclusive, comm.NoCheck), put(7, 1), w.Flush(next), put(8, 2),
				wantErr("twice", w.Lock(next, comm.LockShared), comm.ErrRMASync, ""), w.Unlock(next),
				wantErr("after", put(1, 1), comm.ErrRMASync, ""), c.Barrier()); err != nil {
				return err
			}
			if err := first(w.LockAllWith(comm.NoCheck), w.Accumulate([]int{1}, next, 3, comm.Sum), w.UnlockAll(),
				wantErr("after", put(1, 1), comm.ErrRMASync, ""), w.LockAllWith(0), w.Accumulate([]int{1}, next, 3, comm.Sum), w.UnlockAll(), c.Barrier()); err != nil {
				return err
			}
			if err := first(w.Lock(c.Rank(), comm.LockShared), same("own", w.Local()[1:], []int{7, 8, 2}), w.Unlock(c.Rank()), c.Barrier()); err != nil {
				return err
			}
			for i := range 3 {
				if err := first(w.PostWith([]int{prev}, comm.NoCheck), c.Barrier(), w.StartWith([]int{next}, comm.NoCheck), put(i, 1),
					w.Complete(), w.Wait(), same("own", w.Local()[1:2], []int{i}),
					// The next epoch is one without assertions. It must not take a message of this one.
					w.Post([]int{prev}), w.Start([]int{next}), put(i+10, 1), w.Complete(), w.Wait(), same("own", w.Local()[1:2], []int{i + 10})); err != nil {
					return err
				}
			}
			return first(wantErr("Fence", w.FenceWith(comm.NoCheck), comm.ErrArg, "assertion"), wantErr("Lock", w.LockWith(0, comm.LockShared, comm.NoPut), comm.ErrArg, ""),
				wantErr("LockAll", w.LockAllWith(comm.NoStore), comm.ErrArg, ""), wantErr("Start", w.StartWith([]int{next}, comm.NoPut), comm.ErrArg, ""),
				wantErr("Post", w.PostWith([]int{next}, comm.NoSucceed), comm.ErrArg, ""))
		})
	})
}

// TestWrongAssertions: wrong assertions that are cheap to detect are errors.
func TestWrongAssertions(t *testing.T) {
	overShared(t, 2, func(c *comm.Comm) error {
		return withWindow(c, 1, func(w *comm.Win[int]) error {
			var err error
			if c.Rank() == 0 {
				err = w.Lock(0, comm.LockShared)
			}
			if err = first(err, c.Barrier()); err != nil {
				return err
			}
			if c.Rank() == 1 {
				err = first(wantErr("exclusive", w.LockWith(0, comm.LockExclusive, comm.NoCheck), comm.ErrRMASync, "asserts"),
					w.LockWith(0, comm.LockShared, comm.NoCheck), w.Unlock(0))
			}
			if err = first(err, c.Barrier()); err == nil && c.Rank() == 0 {
				err = w.Unlock(0)
			}
			return first(err, c.Barrier())
		})
	})
	ranks(t, 2, func(c *comm.Comm) error { // only one rank asserts
		w, err := comm.NewWin[int](c, 1)
		if err != nil {
			return err
		}
		if c.Rank() == 0 {
			err = w.FenceWith(comm.NoPrecede)
		} else {
			err = w.Fence()
		}
		return first(unless(err, comm.ErrMismatch, comm.ErrRevoked), notNil(err), w.Free())
	})
}

func notNil(err error) error {
	if err == nil {
		return fmt.Errorf("no error")
	}
	return nil
}

// TestWindowAttributes checks what a window says about itself.
func TestWindowAttributes(t *testing.T) {
	ranks(t, 2, func(c *comm.Comm) error {
		w, err := comm.NewWin[int16](c, 3)
		if err != nil {
			return err
		}
		d, err := comm.NewDynamicWin[int16](c)
		if err != nil {
			return err
		}
		o, err := comm.WinOf(c, []int16{1})
		if err != nil {
			return err
		}
		if w.Flavor() != comm.FlavorAllocated || d.Flavor() != comm.FlavorDynamic || o.Flavor() != comm.FlavorCreated {
			return fmt.Errorf("flavours %d %d %d", w.Flavor(), d.Flavor(), o.Flavor())
		}
		if w.Name() != "win 0.1" || d.Len(1) != 0 || len(d.Local()) != 0 || w.Group().Size() != 2 || w.FailedRanks() != nil {
			return fmt.Errorf("%q, %d elements, %d ranks", w.Name(), d.Len(1), w.Group().Size())
		}
		if w.SetName("halo"); w.Name() != "halo" {
			return fmt.Errorf("name %q", w.Name())
		}
		var none *comm.Win[int16]
		none.SetName("x")
		if none.Name() != "" || none.Flavor() != 0 || none.Group().Size() != 0 || none.FailedRanks() != nil || none.All() != nil {
			return fmt.Errorf("a nil window has properties")
		}
		return first(w.Free(), d.Free(), o.Free())
	})
}
