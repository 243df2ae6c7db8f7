package mpi_test

import (
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// TestWindowsAllocateNothing: calls on windows that programs make in inner loops allocate nothing
// once the pools have filled.
func TestWindowsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	buf, result := make([][]int64, 2), make([][]int64, 2)
	for i := range buf {
		buf[i], result[i] = make([]int64, 64), make([]int64, 64)
	}
	value := func(_ int64, err error) error { return err }
	for _, x := range []struct {
		name string
		call func(w *comm.Win[int64], own, other int) error
	}{
		{"Put, Get and Flush", func(w *comm.Win[int64], own, other int) error {
			if err := w.Put(buf[own], other, 0); err != nil {
				return err
			}
			if err := w.Get(result[own], other, 64); err != nil {
				return err
			}
			return w.Flush(other)
		}},
		{"RPut", func(w *comm.Win[int64], own, other int) error { return wait(w.RPut(buf[own], other, 0)) }},
		{"Accumulate", func(w *comm.Win[int64], own, other int) error {
			if err := w.Accumulate(buf[own], other, 0, comm.Sum); err != nil {
				return err
			}
			return w.FlushLocal(other)
		}},
		{"GetAccumulate", func(w *comm.Win[int64], own, other int) error {
			if err := w.GetAccumulate(buf[own], result[own], other, 0, comm.Max); err != nil {
				return err
			}
			return w.FlushAll()
		}},
		{"FetchOp", func(w *comm.Win[int64], _, other int) error { return value(w.FetchOp(1, other, 3, comm.Sum)) }},
		{"CompareSwap", func(w *comm.Win[int64], _, other int) error { return value(w.CompareSwap(1, 2, other, 3)) }},
		{"Lock", func(w *comm.Win[int64], _, other int) error {
			if err := w.UnlockAll(); err != nil {
				return err
			}
			if err := w.Lock(other, comm.LockExclusive); err != nil {
				return err
			}
			if err := w.Unlock(other); err != nil {
				return err
			}
			return w.LockAll()
		}},
		{"Fence", func(w *comm.Win[int64], _, _ int) error {
			if err := w.UnlockAll(); err != nil {
				return err
			}
			if err := w.Fence(); err != nil {
				return err
			}
			return w.LockAll()
		}},
	} {
		for _, fab := range fabrics {
			if fab.name == "at random" || fab.name == "no async" {
				// Over "at random" the transport itself allocates. Over "no async" windows run the
				// same code as over RMA.
				continue
			}
			t.Run(x.name+"/"+fab.name, func(t *testing.T) {
				windows := make([]*comm.Win[int64], 2)
				countAllocations(t, 2, func(c *comm.Comm) error {
					own := c.Rank()
					if windows[own] == nil {
						w, err := comm.NewWin[int64](c, 128)
						if err != nil {
							return err
						}
						windows[own] = w
						if err := w.LockAll(); err != nil {
							return err
						}
					}
					return x.call(windows[own], own, 1-own)
				}, append([]commtest.Option{commtest.WithProviders(fab.open())}, fab.opts...)...)
			})
		}
	}
}
