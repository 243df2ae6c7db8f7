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
	strided, half := comm.Vector(32, 1, 3), comm.Vector(32, 1, 2)
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
		{"Place.Put and Get", func(w *comm.Win[int64], own, other int) error {
			p := w.At(other, 0).Layout(strided)
			if err := p.Put(comm.Of(buf[own], half)); err != nil {
				return err
			}
			if err := p.Get(comm.Of(result[own], half)); err != nil {
				return err
			}
			return w.Flush(other)
		}},
		{"Place.RPut", func(w *comm.Win[int64], own, other int) error {
			return wait(w.At(other, 0).Layout(strided).RPut(comm.Slice(buf[own][:32])))
		}},
		{"Place.GetAccumulate", func(w *comm.Win[int64], own, other int) error {
			p := w.At(other, 1).Layout(strided)
			if err := p.GetAccumulate(comm.Of(buf[own], half), comm.Of(result[own], half), comm.Sum); err != nil {
				return err
			}
			return w.Flush(other)
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

// TestRegionsAllocateNothing is TestWindowsAllocateNothing for operations on regions.
func TestRegionsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	strided := comm.Vector(16, 1, 3)
	for _, fab := range fabrics {
		if fab.name == "at random" || fab.name == "no async" {
			continue // as in TestWindowsAllocateNothing
		}
		t.Run(fab.name, func(t *testing.T) {
			windows, regions := make([]*comm.Win[int64], 2), make([]comm.Region[int64], 2)
			bufs := [2][]int64{make([]int64, 16), make([]int64, 16)}
			countAllocations(t, 2, func(c *comm.Comm) error {
				own := c.Rank()
				if windows[own] == nil {
					w, err := comm.NewDynamicWin[int64](c)
					if err != nil {
						return err
					}
					mem, _, err := comm.Alloc[int64](c, 100)
					if err != nil {
						return err
					}
					r, err := w.Attach(mem)
					if err != nil {
						return err
					}
					all := make([]comm.Region[int64], 2)
					if err := first(comm.Allgather(c, []comm.Region[int64]{r}, all), w.LockAll()); err != nil {
						return err
					}
					windows[own], regions[own] = w, all[1-own]
				}
				w, r := windows[own], regions[own]
				if err := w.In(r, 3).Put(comm.Slice(bufs[own])); err != nil {
					return err
				}
				if err := w.In(r, 0).Layout(strided).Accumulate(comm.Slice(bufs[own]), comm.Sum); err != nil {
					return err
				}
				if _, err := w.In(r, 5).FetchOp(1, comm.Sum); err != nil {
					return err
				}
				return w.Flush(1 - own)
			}, append([]commtest.Option{commtest.WithProviders(fab.open())}, fab.opts...)...)
		})
	}
}
