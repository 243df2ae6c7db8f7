package rma

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// TestAllocations checks that operations, locks and epochs do not allocate in steady state, at the
// origin or at the target.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for fabric, p := range map[string]transport.Provider{
		"shared":   inproc.NewFabric(),
		"rma":      inproc.NewFabric(inproc.WithoutSharedMemory()),
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
				for range 2 * maxPending {
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
				for range 2 * maxPending {
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
		t.Run(fabric+"/epochs", func(t *testing.T) {
			targets := []int{1}
			run := func() {
				for _, f := range []func() error{
					func() error { return m.Fence(x, false) },
					func() error { return m.Put(x, 1, 0, one) },
					func() error { return m.Fence(x, true) },
					func() error { return m.Start(targets) },
					func() error { return m.Put(x, 1, 0, one) },
					func() error { return m.Complete(x) },
					func() error { return m.LockAll(x) },
					func() error { return m.Put(x, 1, 0, one) },
					func() error { return m.UnlockAll(x) },
				} {
					if err := f(); err != nil {
						t.Error(err)
					}
				}
			}
			run()
			require.Zero(t, testing.AllocsPerRun(100, run))
		})
	}
}

// BenchmarkFetch compares a fetch from a counter of another rank, which waits in a receive, with a
// message to that rank and back.
func BenchmarkFetch(b *testing.B) {
	bench := func(name string, serve, ask func(m *member, rounds int) error) {
		b.Run(name, func(b *testing.B) {
			ms := openWindows(b, openEngines(b, 2, inproc.NewFabric(), nil), 64, ofInt64())
			rounds := b.N
			b.ReportAllocs()
			each(b, ms, func(m *member) error {
				if m.rank == 1 {
					return serve(m, rounds)
				}
				return ask(m, rounds)
			})
		})
	}
	one := word(1)
	bench("fetch", func(m *member, _ int) error {
		_, err := m.world.Recv(background, nil, engine.Env{Peer: 0})
		return err
	}, func(m *member, rounds int) error {
		old := make([]byte, 8)
		if err := m.LockAll(background); err != nil {
			return err
		}
		for range rounds {
			if err := m.GetAccumulate(background, 1, 0, one, old, Sum); err != nil {
				return err
			}
			if err := m.Flush(background, 1); err != nil {
				return err
			}
		}
		return m.world.Send(background, nil, engine.Env{Peer: 1})
	})
	bench("message", func(m *member, rounds int) error {
		buf := make([]byte, 8)
		for range rounds {
			if _, err := m.world.Recv(background, buf, engine.Env{Peer: 0}); err != nil {
				return err
			}
			if err := m.world.Send(background, buf, engine.Env{Peer: 0}); err != nil {
				return err
			}
		}
		return nil
	}, func(m *member, rounds int) error {
		buf := make([]byte, 8)
		for range rounds {
			if err := m.world.Send(background, one, engine.Env{Peer: 1}); err != nil {
				return err
			}
			if _, err := m.world.Recv(background, buf, engine.Env{Peer: 1}); err != nil {
				return err
			}
		}
		return nil
	})
}
