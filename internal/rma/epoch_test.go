package rma

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// TestRules checks that operations and epochs that the standard forbids return an error.
func TestRules(t *testing.T) {
	ms := openWindows(t, openEngines(t, 2, inproc.NewFabric(), nil), 64, ofInt64())
	w, b, x := ms[0], make([]byte, 8), background
	forbidden := func(err, want error) {
		t.Helper()
		require.ErrorIs(t, err, want)
	}
	forbidden(w.Put(x, 1, 0, b), ErrEpoch)
	forbidden(w.Put(x, 0, 0, b), ErrEpoch)
	forbidden(w.Unlock(x, 1), ErrEpoch)
	forbidden(w.UnlockAll(x), ErrEpoch)
	forbidden(w.Complete(x), ErrEpoch)

	require.NoError(t, w.Lock(x, 1, false))
	forbidden(w.Lock(x, 1, false), ErrEpoch)
	forbidden(w.LockAll(x), ErrEpoch)
	forbidden(w.Start([]int{1}), ErrEpoch)
	forbidden(w.Fence(x, false), ErrEpoch)
	forbidden(w.Put(x, 0, 0, b), ErrEpoch)
	require.NoError(t, w.Put(x, 1, 0, b))
	require.NoError(t, w.Unlock(x, 1))
	forbidden(w.Put(x, 1, 0, b), ErrEpoch)

	require.NoError(t, w.LockAll(x))
	forbidden(w.Lock(x, 1, false), ErrEpoch)
	forbidden(w.Fence(x, false), ErrEpoch)
	forbidden(w.Unlock(x, 1), ErrEpoch)
	require.NoError(t, w.UnlockAll(x))

	require.NoError(t, w.Start([]int{1}))
	forbidden(w.Lock(x, 1, false), ErrEpoch)
	forbidden(w.Put(x, 0, 0, b), ErrEpoch)
	require.NoError(t, w.Put(x, 1, 0, b))
	require.NoError(t, w.Complete(x))
	forbidden(w.Put(x, 1, 0, b), ErrEpoch)
	forbidden(w.Start([]int{2}), ErrRange)

	require.NoError(t, w.Fence(x, false))
	require.NoError(t, w.Put(x, 1, 0, b))
	require.NoError(t, w.Fence(x, true))
	forbidden(w.Put(x, 1, 0, b), ErrEpoch)
	require.NoError(t, w.Fence(x, false))
	require.NoError(t, w.Lock(x, 1, true)) // the fence epoch has no operations
	forbidden(w.Put(x, 0, 0, b), ErrEpoch)
	require.NoError(t, w.Unlock(x, 1))
}

func TestRanges(t *testing.T) {
	for _, f := range []transport.Provider{inproc.NewFabric(), inproc.NewFabric(inproc.WithoutSharedMemory()), inproc.NewFabric(inproc.WithoutRMA()), &atomicFabric{Fabric: inproc.NewFabric()}} {
		engines := openEngines(t, 2, f, nil)
		ms := openWindows(t, engines, 64, ofInt64())
		w, b, x := ms[0], make([]byte, 8), background
		require.NoError(t, w.LockAll(x))
		for target := range 2 {
			for _, disp := range []int{-1, -8, 57, 64, 65, 1 << 62, -1 << 63} {
				require.ErrorIs(t, w.Put(x, target, disp, b), ErrRange, disp)
				require.ErrorIs(t, w.Get(x, target, disp, b), ErrRange)
				require.ErrorIs(t, w.Accumulate(x, target, disp, b, Sum), ErrRange)
				require.ErrorIs(t, w.CompareSwap(x, target, disp, b, b, b), ErrRange)
			}
			require.NoError(t, w.Put(x, target, 64, nil))
			require.ErrorIs(t, w.Put(x, target, 65, nil), ErrRange)
			require.ErrorIs(t, w.Accumulate(x, target, 4, b, Sum), ErrRange, "not aligned")
			require.ErrorIs(t, w.Accumulate(x, target, 0, b[:4], Sum), ErrRange, "half an element")
			require.ErrorIs(t, w.GetAccumulate(x, target, 0, b, make([]byte, 16), Sum), ErrRange)
			require.ErrorIs(t, w.CompareSwap(x, target, 0, b, b[:4], b), ErrRange)
			require.ErrorIs(t, w.Accumulate(x, target, 0, b, Ops), ErrOp)
		}
		require.ErrorIs(t, w.Put(x, 2, 0, b), ErrRange)
		require.ErrorIs(t, w.Put(x, -1, 0, b), ErrRange)
		require.ErrorIs(t, w.Flush(x, 2), ErrRange)
		require.ErrorIs(t, w.Lock(x, 2, true), ErrEpoch)
		require.NoError(t, w.UnlockAll(x))
		require.ErrorIs(t, w.Lock(x, 2, true), ErrRange)
		require.ErrorIs(t, w.Unlock(x, -1), ErrRange)
	}
}

// TestUnevenParts checks operations on parts of different sizes, one of them empty, in a window
// whose elements have no kernels, so sums are not defined.
func TestUnevenParts(t *testing.T) {
	for _, opts := range [][]inproc.Option{nil, {inproc.WithoutSharedMemory()}, {inproc.WithoutRMA()}, {inproc.WithMRMode(transport.MRLocal)}} {
		engines := openEngines(t, 3, inproc.NewFabric(opts...), nil)
		world := []int{2, 0, 1} // by rank of the group: the rank in the world, which differs
		ms := make([]*member, 3)
		parts := make([]Part, 3)
		for i, e := range world {
			m := &member{rank: i, size: 3, e: engines[e]}
			m.world, m.ctx = m.e.OpenContext(0, world), m.e.OpenContext(2, world)
			var err error
			m.Window, parts[i], err = New(Config{Ctx: m.ctx, Alloc: 12 * i, Elem: 12})
			require.NoError(t, err)
			m.local = m.Local()
			ms[i] = m
			defer m.Close()
		}
		connect(t, ms, parts)
		each(t, ms, func(m *member) error {
			if err := m.fence(); err != nil {
				return err
			}
			if err := wantErr(m.Put(background, 0, 0, make([]byte, 1)), ErrRange); err != nil {
				return err
			}
			if err := wantErr(m.Accumulate(background, 1, 0, make([]byte, 12), Sum), ErrOp); err != nil {
				return err
			}
			if m.rank == 0 {
				if err := m.Accumulate(background, 2, 12, pattern(12, 1), Replace); err != nil {
					return err
				}
				if err := m.Put(background, 1, 0, pattern(12, 2)); err != nil {
					return err
				}
			}
			return m.fence()
		})
		require.Equal(t, pattern(12, 1), ms[2].local[12:])
		require.Equal(t, pattern(12, 2), ms[1].local)
	}
}

func TestPartsThatDisagree(t *testing.T) {
	engines := openEngines(t, 2, inproc.NewFabric(), nil)
	w, part, err := New(Config{Ctx: engines[0].OpenContext(4, []int{0, 1}), Local: make([]byte, 8), Elem: 8})
	require.NoError(t, err)
	defer w.Close()
	other := part
	other.Elem = 4
	for _, parts := range [][]Part{{part, other}, {part}} {
		_, err := w.Connect(parts)
		require.ErrorIs(t, err, ErrParts)
	}
	_, _, err = New(Config{Ctx: engines[0].OpenContext(4, []int{0, 1}), Elem: 8})
	require.Error(t, err, "the context already has a window")
}

// TestComputingTarget checks that a target serves other ranks while it computes. On a single
// processor it does so when Go preempts the computing goroutine.
func TestComputingTarget(t *testing.T) {
	for name, open := range flavours() {
		if name == "no async" {
			continue
		}
		t.Run(name, func(t *testing.T) { computingTarget(t, open, 20) })
		t.Run("one processor/"+name, func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			computingTarget(t, open, 3)
		})
	}
}

func computingTarget(t *testing.T, open func() (transport.Provider, map[string]string), rounds int) {
	p, set := open()
	ms := openWindows(t, openEngines(t, 2, p, set), 1<<12, ofInt64())
	var stop atomic.Bool
	each(t, ms, func(m *member) error {
		if err := m.fence(); err != nil {
			return err
		}
		if err := m.Fence(background, true); err != nil {
			return err
		}
		if m.rank == 1 {
			for !stop.Load() { // in place of a computation, without calls of the window
			}
			return nil
		}
		defer stop.Store(true)
		old := make([]byte, 8)
		for i := range rounds {
			if err := m.Lock(background, 1, i%2 == 0); err != nil {
				return err
			}
			if err := m.Put(background, 1, 8, make([]byte, 4000)); err != nil {
				return err
			}
			if err := m.GetAccumulate(background, 1, 0, word(1), old, Sum); err != nil {
				return err
			}
			if err := m.Unlock(background, 1); err != nil {
				return err
			}
			if err := same(old, word(int64(i))); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestManyGoroutines lets several goroutines of each rank add to elements of one window at the same
// time. No addition may be lost.
func TestManyGoroutines(t *testing.T) {
	const threads, times = 4, 50
	everyFlavour(t, 3, 8*(threads+1), func(t *testing.T, ms []*member) {
		each(t, ms, func(m *member) error {
			if err := m.LockAll(background); err != nil {
				return err
			}
			var g errgroup.Group
			for i := range threads {
				g.Go(func() error { // ends after its operations
					old, one := make([]byte, 8), word(1)
					for k := range times {
						target := (m.rank + k) % m.size
						if err := m.Accumulate(background, target, 8*(i+1), one, Sum); err != nil {
							return err
						}
						q, err := m.RGetAccumulate(background, target, 0, one, old, Sum)
						if err != nil {
							return err
						}
						if _, err := q.Wait(background); err != nil {
							return err
						}
						if k%8 == 0 {
							if err := m.Flush(background, target); err != nil {
								return err
							}
						}
					}
					return nil
				})
			}
			if err := g.Wait(); err != nil {
				return err
			}
			if err := m.UnlockAll(background); err != nil {
				return err
			}
			return m.barrier()
		})
		var all, own int64
		for _, m := range ms {
			all += get(m.local)
			for i := range threads {
				own += get(m.local[8*(i+1):])
			}
		}
		require.Equal(t, int64(3*threads*times), all)
		require.Equal(t, all, own)
	})
}

// TestFlushBesideAStream checks that a flush waits only for operations that started before it,
// while another goroutine keeps starting operations.
func TestFlushBesideAStream(t *testing.T) {
	everyFlavour(t, 2, 16, func(t *testing.T, ms []*member) {
		each(t, ms, func(m *member) error {
			if m.rank == 1 { // serves rank 0 during this call
				_, err := m.world.Recv(background, nil, engine.Env{Peer: 0})
				return err
			}
			if err := m.LockAll(background); err != nil {
				return err
			}
			var stop atomic.Bool
			streamed := make(chan error, 1)
			go func() { // ends after stop is set; rank 0 waits for it
				for one := word(1); !stop.Load(); {
					if err := m.Put(background, 1, 8, one); err != nil {
						streamed <- err
						return
					}
				}
				streamed <- nil
			}()
			old := make([]byte, 8)
			for i := range 40 {
				if err := m.GetAccumulate(background, 1, 0, word(1), old, Sum); err != nil {
					return err
				}
				flush := m.Flush
				if i%2 == 0 {
					flush = m.FlushLocal
				}
				if err := flush(background, 1); err != nil {
					return err
				}
				if err := same(old, word(int64(i))); err != nil {
					return err
				}
			}
			stop.Store(true)
			if err := <-streamed; err != nil {
				return err
			}
			if err := m.UnlockAll(background); err != nil {
				return err
			}
			return m.world.Send(background, nil, engine.Env{Peer: 1})
		})
	})
}

// TestAllocated checks that memory of the engine's Alloc stays mapped after Free, while a window or
// an operation uses it.
func TestAllocated(t *testing.T) {
	ms := openWindows(t, openEngines(t, 2, inproc.NewFabric(inproc.WithoutRMA()), map[string]string{"engine.async_progress": "false"}), 64, ofInt64())
	e := ms[0].e
	own, err := e.Alloc(4096)
	require.NoError(t, err)
	cfg := ofInt64()
	cfg.Ctx, cfg.Local = e.OpenContext(6, []int{0, 1}), own.Bytes()[8:]
	w, _, err := New(cfg)
	require.NoError(t, err)
	buf, err := e.Alloc(4096)
	require.NoError(t, err)
	require.NoError(t, ms[0].Fence(background, false))
	for range 65 { // one more than maxMessages
		require.NoError(t, ms[0].Put(background, 1, 0, buf.Bytes()[:64]))
	}
	own.Free()
	buf.Free()
	require.NoError(t, e.Reap())
	own.Bytes()[100], buf.Bytes()[0] = 1, 2 // faults if they are not mapped any more
	each(t, ms, func(m *member) error { return m.fence() })
	require.NoError(t, w.Close())
	require.NoError(t, e.Reap())
	require.Equal(t, byte(2), ms[1].local[0])
}

// value returns the error of a call that also returns a value.
func value[T any](_ T, err error) error { return err }

// TestClosed checks that calls on a closed window return ErrClosed.
func TestClosed(t *testing.T) {
	ms := openWindows(t, openEngines(t, 2, inproc.NewFabric(), nil), 64, ofInt64())
	w := ms[0]
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	for _, err := range []error{
		w.Put(background, 1, 0, nil), w.Lock(background, 1, true), w.LockAll(background), w.Fence(background, false),
		w.Start(nil), w.Flush(background, 1), w.FlushAll(background), w.Sync(), value(w.Connect(nil)), w.Settle(0),
	} {
		require.ErrorIs(t, err, engine.ErrClosed)
	}
	// The context can have another window.
	again, _, err := New(Config{Ctx: w.ctx, Elem: 1})
	require.NoError(t, err)
	require.NoError(t, again.Close())

	w.ctx.Revoke(errors.New("enough"))
	_, _, err = New(Config{Ctx: w.ctx, Elem: 1})
	require.ErrorIs(t, err, engine.ErrRevoked)
	ms[1].e.Kill()
	_, _, err = New(Config{Ctx: ms[1].world, Elem: 1})
	require.ErrorIs(t, err, engine.ErrClosed)
}
