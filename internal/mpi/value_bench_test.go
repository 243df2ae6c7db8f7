package mpi_test

import (
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// BenchmarkSendValueSelf sends a small struct from a rank to itself. It measures the calls without
// the transfer between ranks.
func BenchmarkSendValueSelf(b *testing.B) {
	type settings struct {
		Name  string
		Steps int
		Scale float64
	}
	b.ReportAllocs()
	commtest.Run(b, 1, func(c *comm.Comm) error {
		for b.Loop() {
			if err := comm.SendValue(c, settings{"run", 100, 0.5}, 0, 0); err != nil {
				return err
			}
			if _, _, err := comm.RecvValue[settings](c, 0, 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// BenchmarkSendValue measures the round trip, between two ranks, of a small struct without
// interfaces and of one that holds an interface.
func BenchmarkSendValue(b *testing.B) {
	type settings struct {
		Name  string
		Steps int
		Scale float64
	}
	b.Run("struct", func(b *testing.B) { valueTrips(b, settings{"run", 100, 0.5}) })
	b.Run("interface", func(b *testing.B) { valueTrips(b, struct{ V any }{7}) })
}

func valueTrips[T any](b *testing.B, v T) {
	b.ReportAllocs()
	commtest.Run(b, 2, func(c *comm.Comm) error {
		trip := func() error {
			if c.Rank() == 0 {
				if err := comm.SendValue(c, v, 1, 0); err != nil {
					return err
				}
			}
			if _, _, err := comm.RecvValue[T](c, 1-c.Rank(), 0); err != nil || c.Rank() == 0 {
				return err
			}
			return comm.SendValue(c, v, 0, 0)
		}
		if err := trip(); err != nil {
			return err
		}
		for i := 0; i < b.N; i++ {
			if err := trip(); err != nil {
				return err
			}
		}
		return nil
	})
}
