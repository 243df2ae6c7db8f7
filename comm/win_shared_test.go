package comm_test

import (
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport/inproc"
)

// BenchmarkSharedWindow is what the calls cost their caller.
func BenchmarkSharedWindow(b *testing.B) {
	buf := make([]int64, 1)
	for _, x := range []struct {
		name string
		call func(w *comm.Win[int64]) error
	}{
		{"Put", func(w *comm.Win[int64]) error { return w.Put(buf, 1, 0) }},
		{"Put and Flush", func(w *comm.Win[int64]) error {
			if err := w.Put(buf, 1, 0); err != nil {
				return err
			}
			return w.Flush(1)
		}},
		{"Get and Flush", func(w *comm.Win[int64]) error {
			if err := w.Get(buf, 1, 0); err != nil {
				return err
			}
			return w.Flush(1)
		}},
		{"FetchOp", func(w *comm.Win[int64]) error {
			_, err := w.FetchOp(1, 1, 0, comm.Sum)
			return err
		}},
		{"CompareSwap", func(w *comm.Win[int64]) error {
			_, err := w.CompareSwap(1, 1, 1, 0)
			return err
		}},
		{"Accumulate", func(w *comm.Win[int64]) error { return w.Accumulate(buf, 1, 0, comm.Max) }},
		{"Unlock and Lock", func(w *comm.Win[int64]) error {
			if err := w.Unlock(1); err != nil {
				return err
			}
			return w.Lock(1, comm.LockExclusive)
		}},
	} {
		b.Run(x.name, func(b *testing.B) {
			commtest.Run(b, 2, func(c *comm.Comm) error {
				return within(c, 16, func(w *comm.Win[int64]) error {
					if c.Rank() != 0 {
						return nil
					}
					if err := w.Lock(1, comm.LockExclusive); err != nil {
						return err
					}
					b.ReportAllocs()
					for b.Loop() {
						if err := x.call(w); err != nil {
							return err
						}
					}
					return w.Unlock(1)
				})
			}, commtest.WithProviders(inproc.NewFabric()))
		})
	}
}
