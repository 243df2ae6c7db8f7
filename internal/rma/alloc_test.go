package rma

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// No operation allocates in steady state, at neither side.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for fabric, p := range map[string]transport.Provider{
		"rma":      inproc.NewFabric(),
		"messages": inproc.NewFabric(inproc.WithoutRMA()),
		"native":   &atomicFabric{Fabric: inproc.NewFabric()},
		"strict":   inproc.NewFabric(inproc.WithMRMode(transport.MRLocal | transport.MRVirtAddr)),
	} {
		ms := openWindows(t, openEngines(t, 2, p, nil), 1<<16, ofInt64())
		m, x := ms[0], background
		one, old, many := word(1), make([]byte, 8), make([]byte, 1<<16)
		flush := func(err error) error {
			if err != nil {
				return err
			}
			return m.Flush(x, 1)
		}
		for name, call := range map[string]func() error{
			"put":        func() error { return flush(m.Put(x, 1, 0, one)) },
			"long put":   func() error { return flush(m.Put(x, 1, 0, many)) },
			"get":        func() error { return flush(m.Get(x, 1, 0, old)) },
			"long get":   func() error { return flush(m.Get(x, 1, 0, many)) },
			"accumulate": func() error { return flush(m.Accumulate(x, 1, 0, one, Sum)) },
			"fetch":      func() error { return flush(m.GetAccumulate(x, 1, 0, one, old, Sum)) },
			"swap":       func() error { return flush(m.CompareSwap(x, 1, 0, one, one, old)) },
			"own":        func() error { return m.GetAccumulate(x, 0, 0, one, old, Sum) },
			"request": func() error {
				q, err := m.Rput(x, 1, 0, one)
				if err == nil {
					_, err = q.Wait(x)
				}
				return err
			},
			"many": func() error {
				for range 100 {
					if err := m.Put(x, 1, 0, one); err != nil {
						return err
					}
				}
				return m.FlushAll(x)
			},
		} {
			t.Run(fabric+"/"+name, func(t *testing.T) {
				require.NoError(t, m.LockAll(x))
				var err error
				run := func() {
					if err == nil {
						err = call()
					}
				}
				for range 100 {
					run()
				}
				require.Zero(t, testing.AllocsPerRun(100, run))
				require.NoError(t, err)
				require.NoError(t, m.UnlockAll(x))
			})
		}
		t.Run(fabric+"/lock", func(t *testing.T) {
			run := func() {
				if err := m.Lock(x, 1, true); err != nil {
					t.Error(err)
				}
				if err := m.Unlock(x, 1); err != nil {
					t.Error(err)
				}
			}
			run()
			require.Zero(t, testing.AllocsPerRun(100, run))
		})
	}
}

// BenchmarkFetch is one round trip of a contended counter.
func BenchmarkFetch(b *testing.B) {
	for name, p := range map[string]transport.Provider{"messages": inproc.NewFabric()} {
		b.Run(name, func(b *testing.B) {
			ms := openWindows(b, openEngines(b, 2, p, nil), 64, ofInt64())
			require.NoError(b, ms[0].LockAll(background))
			one, old := word(1), make([]byte, 8)
			b.ReportAllocs()
			for b.Loop() {
				if err := ms[0].GetAccumulate(background, 1, 0, one, old, Sum); err != nil {
					b.Fatal(err)
				}
				if err := ms[0].Flush(background, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
