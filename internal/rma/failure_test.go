package rma

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport/inproc"
)

// withoutProgress returns a job of two ranks that use messages and make progress only during calls.
// So a call that needs an idle rank blocks.
func withoutProgress(t *testing.T) []*member {
	f := inproc.NewFabric(inproc.WithoutRMA(), inproc.WithMaxMsgSize(1<<10))
	return openWindows(t, openEngines(t, 2, f, map[string]string{"engine.async_progress": "false"}), 1<<12, ofInt64())
}

// waits are calls of rank 0 that wait for rank 1, which is idle. All except "lock" begin in an
// epoch of LockAll in which rank 0 already has the lock of rank 1's part.
var waits = map[string]func(m *member) error{
	"put": func(m *member) error {
		if err := m.Put(background, 1, 0, word(1)); err != nil {
			return err
		}
		return m.Flush(background, 1)
	},
	"long put": func(m *member) error {
		if err := m.Put(background, 1, 0, make([]byte, 1<<12)); err != nil {
			return err
		}
		return m.FlushAll(background)
	},
	"get": func(m *member) error {
		if err := m.Get(background, 1, 0, make([]byte, 1<<12)); err != nil {
			return err
		}
		return m.FlushLocal(background, 1)
	},
	"fetch": func(m *member) error {
		if err := m.GetAccumulate(background, 1, 0, word(1), make([]byte, 8), Sum); err != nil {
			return err
		}
		return m.UnlockAll(background)
	},
	"request": func(m *member) error {
		q, err := m.RAccumulate(background, 1, 0, word(1), Sum)
		if err != nil {
			return err
		}
		_, err = q.Wait(background)
		return err
	},
	"too many": func(m *member) error {
		for {
			if err := m.Accumulate(background, 1, 0, word(1), Sum); err != nil {
				return err
			}
		}
	},
	"lock": func(m *member) error {
		if err := m.UnlockAll(background); err != nil {
			return err
		}
		return m.Lock(background, 1, true)
	},
}

// endDuring starts each call of waits, calls end while it waits, and checks that the call returns
// want.
func endDuring(t *testing.T, want error, end func(ms []*member)) {
	for name, call := range waits {
		t.Run(name, func(t *testing.T) {
			ms := withoutProgress(t)
			each(t, ms, func(m *member) error {
				if m.rank == 0 {
					if err := m.LockAll(background); err != nil {
						return err
					}
					if err := m.Put(background, 1, 0, word(0)); err != nil {
						return err
					}
					if err := m.Flush(background, 1); err != nil {
						return err
					}
				}
				return m.barrier()
			})
			done := make(chan error, 1)
			go func() { done <- call(ms[0]) }() // ends with the call
			m := ms[0]
			for waiting := false; !waiting; { // until the call waits
				m.port.Lock()
				waiting = m.targets[1].pending > 0 || m.targets[1].lock == lockRequested
				m.port.Unlock()
			}
			end(ms)
			each(t, ms[:1], func(*member) error { return wantErr(<-done, want) })
			// Later calls return the same error.
			each(t, ms[:1], func(m *member) error {
				if err := m.Lock(background, 1, true); !errors.Is(err, ErrEpoch) {
					return wantErr(err, want)
				}
				return wantErr(m.Put(background, 1, 0, word(1)), want)
			})
		})
	}
}

func TestTargetDies(t *testing.T) {
	endDuring(t, engine.ErrProcFailed, func(ms []*member) { ms[1].e.Kill() })
}

func TestEngineCloses(t *testing.T) {
	endDuring(t, engine.ErrClosed, func(ms []*member) { ms[0].e.Kill() })
}

func TestRevoke(t *testing.T) {
	endDuring(t, engine.ErrRevoked, func(ms []*member) { ms[0].ctx.Revoke(errors.New("enough")) })
	t.Run("by the other", func(t *testing.T) {
		endDuring(t, engine.ErrRevoked, func(ms []*member) { ms[1].ctx.Revoke(errors.New("enough")) })
	})
}

func TestWindowCloses(t *testing.T) {
	endDuring(t, engine.ErrClosed, func(ms []*member) { require.NoError(t, ms[0].Close()) })
}

// TestTargetCloses checks that pending operations fail with ErrClosed if the target closes its
// window before they are complete.
func TestTargetCloses(t *testing.T) {
	endDuring(t, engine.ErrClosed, func(ms []*member) {
		require.NoError(t, ms[1].Close())
		_, _, err := ms[1].world.Iprobe(engine.Env{Peer: 0, Tag: 0}) // makes progress
		require.NoError(t, err)
	})
}

// TestContextEnds checks that a call whose context ends leaves its operations pending and its epoch
// open.
func TestContextEnds(t *testing.T) {
	ms := withoutProgress(t)
	w := ms[0]
	ctx, cancel := context.WithCancel(background)
	cancel()
	require.NoError(t, w.Fence(background, false))
	require.NoError(t, w.Put(ctx, 1, 0, word(5)))
	require.ErrorIs(t, w.Flush(ctx, 1), context.Canceled)
	require.ErrorIs(t, w.Fence(ctx, true), context.Canceled)
	each(t, ms, func(m *member) error { return m.fence() })
	require.Equal(t, int64(5), get(ms[1].local))
}

// TestDirectTargetDies checks on every fabric that operations with a rank that dies return an
// error, and that the other ranks can continue.
func TestDirectTargetDies(t *testing.T) {
	for name, open := range flavours() {
		t.Run(name, func(t *testing.T) {
			p, set := open()
			ms := openWindows(t, openEngines(t, 3, p, set), 1<<12, ofInt64())
			each(t, ms, func(m *member) error { return m.fence() })
			go ms[1].e.Kill() // ends when Kill returns
			each(t, []*member{ms[0], ms[2]}, func(m *member) error {
				buf := make([]byte, 1000)
				for {
					err := func() error {
						if err := m.Put(background, 1, 8+1000*m.rank, buf); err != nil {
							return err
						}
						if err := m.Accumulate(background, 1, 0, word(1), Sum); err != nil {
							return err
						}
						return m.FlushAll(background)
					}()
					if err != nil {
						return wantErr(err, engine.ErrProcFailed)
					}
				}
			})
			// The other ranks continue.
			other := ms[2]
			ms[0].port.Lock()
			ms[0].targets[1].err = nil
			ms[0].port.Unlock()
			require.NoError(t, ms[0].Put(background, 2, 8, pattern(1000, 3)))
			each(t, []*member{ms[0], other}, func(m *member) error {
				if m.rank == 0 {
					if err := m.Flush(background, 2); err != nil {
						return err
					}
					return m.world.Send(background, nil, engine.Env{Peer: 2})
				}
				_, err := m.world.Recv(background, nil, engine.Env{Peer: 0})
				return err
			})
			require.Equal(t, pattern(1000, 3), other.local[8:1008])
		})
	}
}

// TestMappedTargetDies: a target dies after this rank has stored to its mapped part. The calls that
// flush the epoch and end it report that, as those for one target do, if the epoch had operations
// with the target. The next epoch works.
func TestMappedTargetDies(t *testing.T) {
	for name, x := range map[string]struct {
		begin func(m *member) error
		put   int // the target of the operation
		flush func(m *member) error
		end   func(m *member) error
		want  error
	}{
		"LockAll": {
			func(m *member) error { return m.LockAll(background) }, 1,
			func(m *member) error { return m.FlushAll(background) },
			func(m *member) error { return m.UnlockAll(background) }, engine.ErrProcFailed,
		},
		"LockAll, another target": {
			func(m *member) error { return m.LockAll(background) }, 2,
			func(m *member) error { return m.FlushAll(background) },
			func(m *member) error { return m.UnlockAll(background) }, nil,
		},
		"LockAllUnchecked": {
			func(m *member) error { return m.LockAllUnchecked() }, 1,
			func(m *member) error { return m.FlushLocalAll(background) },
			func(m *member) error { return m.UnlockAll(background) }, engine.ErrProcFailed,
		},
		"Lock": {
			func(m *member) error { return m.Lock(background, 1, true) }, 1,
			func(m *member) error { return m.FlushAll(background) },
			func(m *member) error { return m.Unlock(background, 1) }, engine.ErrProcFailed,
		},
		"Start": {
			func(m *member) error { return m.Start([]int{1, 2}) }, 1,
			func(*member) error { return engine.ErrProcFailed },
			func(m *member) error { return m.Complete(background) }, engine.ErrProcFailed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, set := flavours()["shared"]()
			ms := openWindows(t, openEngines(t, 3, p, set), 8, ofInt64())
			each(t, ms[:1], func(m *member) error {
				if err := errors.Join(x.begin(m), m.Put(background, x.put, 0, word(1))); err != nil {
					return err
				}
				ms[1].e.Kill()
				for down := false; !down; {
					if err := m.Sync(); err != nil {
						return err
					}
					m.port.Lock()
					down = m.targets[1].down != nil
					m.port.Unlock()
				}
				for _, call := range []func(m *member) error{x.flush, x.flush, x.end} {
					if err := call(m); !errors.Is(err, x.want) {
						return fmt.Errorf("got error %w, want %w", err, x.want)
					}
				}
				return errors.Join(m.LockAll(background), m.Put(background, 2, 0, word(7)), m.FlushAll(background), m.UnlockAll(background))
			})
			require.Equal(t, int64(7), get(ms[2].local))
		})
	}
}

// TestLockHolderDies checks that the next rank in the queue gets the lock if a rank dies while it
// holds the lock or waits for it.
func TestLockHolderDies(t *testing.T) {
	for _, holds := range []bool{true, false} {
		everyFlavour(t, 4, 8, func(t *testing.T, ms []*member) {
			m := ms[0]
			owner, dying, next := ms[3], ms[1], ms[2]
			if holds {
				require.NoError(t, progressUntil(m, func() error { return dying.Lock(background, 0, true) }))
			} else {
				require.NoError(t, progressUntil(m, func() error { return owner.Lock(background, 0, true) }))
				go func() { _ = dying.Lock(background, 0, true) }() // ends with the rank
				progressUntilQueued(m, 1)
			}
			done := make(chan error, 1)
			go func() { done <- next.Lock(background, 0, true) }() // ends when it has the lock
			queue := 1
			if !holds {
				queue = 2
			}
			progressUntilQueued(m, queue)
			dying.e.Kill()
			if !holds {
				require.NoError(t, progressUntil(m, func() error { return owner.Unlock(background, 0) }))
			}
			require.NoError(t, progressUntil(m, func() error { return <-done }))
			require.NoError(t, progressUntil(m, func() error { return next.Unlock(background, 0) }))
		})
	}
}

// progressUntil makes progress on m until f has returned, and returns its error.
func progressUntil(m *member, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }() // ends with f
	for {
		if err := m.Sync(); err != nil {
			return err
		}
		select {
		case err := <-done:
			return err
		default:
		}
	}
}

// progressUntilQueued makes progress on m until at least n requests wait for its lock.
func progressUntilQueued(m *member, n int) {
	for {
		_ = m.Sync()
		if len(m.lockQueue()) >= n {
			return
		}
	}
}

// lockQueue returns the requests that wait for m's lock, in their order.
func (m *member) lockQueue() []lockRequest {
	m.port.Lock()
	defer m.port.Unlock()
	if !m.tableLocks {
		return slices.Clone(m.queue)
	}
	var states []uint64
	ranks := map[uint64]int{}
	b := m.targets[m.rank].lockTable
	for r := range b.states {
		if s := b.states[r].Load(); s&stateMask == stateWaitsShared || s&stateMask == stateWaitsExclusive {
			states = append(states, s)
			ranks[s] = r
		}
	}
	slices.Sort(states) // by ticket, which is in the high bits
	var all []lockRequest
	for _, s := range states {
		all = append(all, lockRequest{ranks[s], s&stateMask == stateWaitsExclusive})
	}
	return all
}

// TestNothingIsTouchedAfterClose checks that no operation of a peer changes a byte after Close.
func TestNothingIsTouchedAfterClose(t *testing.T) {
	for name, open := range flavours() {
		if name == "shared" || name == "shm" {
			continue // peers may still store into mapped memory; see TestMemoryRemains
		}
		t.Run(name, func(t *testing.T) {
			p, set := open()
			ms := openWindows(t, openEngines(t, 2, p, set), 64, ofInt64())
			for _, m := range ms {
				require.NoError(t, m.Fence(background, false)) // so that operations need no lock
			}
			require.NoError(t, ms[1].Close())
			each(t, ms, func(m *member) error {
				if m.rank == 1 { // makes progress during this call
					_, err := m.world.Recv(background, nil, engine.Env{Peer: 0})
					return err
				}
				err := errors.Join(m.Put(background, 1, 0, word(1)), m.Accumulate(background, 1, 8, word(1), Sum), m.FlushAll(background))
				if err := m.world.Send(background, nil, engine.Env{Peer: 1}); err != nil {
					return err
				}
				return wantErr(err, engine.ErrClosed)
			})
			require.Equal(t, make([]byte, 64), ms[1].local)
		})
	}
}

// TestFailureDuringCreation checks that a window handles a failure or a revocation that its port
// reports before New has finished.
func TestFailureDuringCreation(t *testing.T) {
	for name, fail := range map[string]func(es []*engine.Engine, c *engine.Context){
		"died":    func(es []*engine.Engine, _ *engine.Context) { es[1].Kill() },
		"revoked": func(_ []*engine.Engine, c *engine.Context) { c.Revoke(errors.New("enough")) },
	} {
		t.Run(name, func(t *testing.T) {
			es := openEngines(t, 2, inproc.NewFabric(), nil)
			w := &Window{cfg: Config{Ctx: es[0].OpenContext(2, []int{0, 1}), DeferredFrees: new(DeferredFrees)}}
			_, err := w.cfg.Ctx.OpenPort(w.attach)
			require.NoError(t, err)
			fail(es, w.cfg.Ctx)
			require.Eventually(t, func() bool {
				w.port.Lock()
				defer w.port.Unlock()
				w.port.Poll()
				return w.targets[1].down != nil
			}, 10*time.Second, time.Millisecond)
			require.NoError(t, w.Close())
		})
	}
}
