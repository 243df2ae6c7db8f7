package rma

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/wire"
)

// try calls TryLock, and returns an error unless the result is want. It releases the lock if it has it.
func (m *member) try(target int, exclusive, want bool) error {
	got, err := m.TryLock(background, target, exclusive)
	if err == nil && got {
		err = m.Unlock(background, target)
	}
	if err == nil && got != want {
		err = fmt.Errorf("TryLock of rank %d, exclusive %v: %v, want %v", target, exclusive, got, want)
	}
	return err
}

// tryUntil calls TryLock until this rank has the lock, and releases it: the message by which the last
// holder releases the lock may still be on its way.
func (m *member) tryUntil(target int, exclusive bool) error {
	for {
		if got, err := m.TryLock(background, target, exclusive); err != nil {
			return err
		} else if got {
			return m.Unlock(background, target)
		}
	}
}

// TestTryLock checks which requests TryLock grants beside the locks of other ranks, and that a request
// that it refuses blocks no rank.
func TestTryLock(t *testing.T) {
	everyFlavour(t, 3, 8, func(t *testing.T, ms []*member) {
		each(t, ms, func(m *member) error {
			for _, exclusive := range []bool{true, false} { // rank 1 has the lock of rank 2's part
				if m.rank == 1 {
					if err := m.Lock(background, 2, exclusive); err != nil {
						return err
					}
					if _, err := m.TryLock(background, 2, false); !errors.Is(err, ErrEpoch) {
						return fmt.Errorf("TryLock of a part that this rank has locked: %w", err)
					}
				}
				if err := m.barrier(); err != nil {
					return err
				}
				if m.rank == 0 {
					if err := firstOf(m.try(2, true, false), m.try(2, false, !exclusive), m.try(1, true, true)); err != nil {
						return err
					}
				}
				if err := m.barrier(); err != nil {
					return err
				}
				if m.rank == 1 {
					if err := m.Unlock(background, 2); err != nil {
						return err
					}
				}
				if err := m.barrier(); err != nil {
					return err
				}
				if m.rank == 0 { // the lock is free
					if err := firstOf(m.tryUntil(2, true), m.try(2, false, true), m.try(2, true, true)); err != nil {
						return err
					}
				}
				if err := m.barrier(); err != nil {
					return err
				}
			}
			if m.rank == 2 { // its own part
				if err := firstOf(m.tryUntil(2, true), m.try(2, false, true)); err != nil {
					return err
				}
			}
			return m.barrier()
		})
		for _, m := range ms {
			require.Zero(t, m.locked)
			require.Zero(t, m.requested)
			require.Zero(t, m.cfg.Locks.Load())
		}
	})
}

// TestTryLockBehindWaitingRank: a shared request of TryLock does not overtake a rank that waits for an
// exclusive lock, unless the process has another lock.
func TestTryLockBehindWaitingRank(t *testing.T) {
	everyFlavour(t, 4, 8, func(t *testing.T, ms []*member) {
		waits, tried := make(chan struct{}), make(chan struct{})
		each(t, ms, func(m *member) error {
			switch m.rank {
			case 1: // has a shared lock of its part until rank 0 has tried
				if err := m.Lock(background, 1, false); err != nil {
					return err
				}
				if err := m.barrier(); err != nil {
					return err
				}
				for len(m.lockQueue()) == 0 { // until rank 2 waits
					if err := m.Sync(); err != nil {
						return err
					}
				}
				close(waits)
				if err := progressUntil(m, func() error { <-tried; return nil }); err != nil {
					return err
				}
				if err := m.Unlock(background, 1); err != nil {
					return err
				}
			case 2:
				if err := m.barrier(); err != nil {
					return err
				}
				if err := firstOf(m.Lock(background, 1, true), m.Unlock(background, 1)); err != nil {
					return err
				}
			case 3:
				if err := m.barrier(); err != nil {
					return err
				}
				if err := progressUntil(m, func() error { <-tried; return nil }); err != nil { // serves rank 0
					return err
				}
			default:
				if err := m.barrier(); err != nil {
					return err
				}
				<-waits
				err := firstOf(m.try(1, false, false), m.Lock(background, 3, true), m.try(1, false, true), m.try(1, true, false))
				if err := firstOf(err, m.Unlock(background, 3)); err != nil {
					return err
				}
				close(tried)
			}
			return m.barrier()
		})
	})
}

// TestTryLockExcludes: ranks that call TryLock until it succeeds, and ranks that call Lock, lose no
// increment of an element by Get and Put.
func TestTryLockExcludes(t *testing.T) {
	const n, times = 4, 25
	everyFlavour(t, n, 8, func(t *testing.T, ms []*member) {
		var holders atomic.Int32
		each(t, ms, func(m *member) error {
			value := make([]byte, 8)
			for range times {
				got := m.rank%2 == 0
				if got {
					if err := m.Lock(background, 1, true); err != nil {
						return err
					}
				}
				for !got {
					var err error
					if got, err = m.TryLock(background, 1, true); err != nil {
						return err
					}
				}
				if holders.Add(1) != 1 {
					return errors.New("two ranks have the lock")
				}
				if err := firstOf(m.Get(background, 1, 0, value), m.Flush(background, 1)); err != nil {
					return err
				}
				put(value, get(value)+1)
				if err := m.Put(background, 1, 0, value); err != nil {
					return err
				}
				holders.Add(-1)
				if err := m.Unlock(background, 1); err != nil {
					return err
				}
			}
			return m.barrier()
		})
		require.Equal(t, int64(n*times), get(ms[1].local))
	})
}

// TestTryLockGivenUp: if the context ends before the target has answered, the request ends by itself,
// and Lock of the same rank takes it over.
func TestTryLockGivenUp(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprintf("busy %v", busy), func(t *testing.T) {
			ms := withoutProgress(t)
			m, keeper := ms[0], ms[1]
			if busy {
				require.NoError(t, keeper.Lock(background, 1, true))
			}
			ctx, cancel := context.WithCancel(background)
			cancel()
			_, err := m.TryLock(ctx, 1, true)
			require.ErrorIs(t, err, context.Canceled)
			require.NoError(t, m.try(1, true, false), "the request is pending")
			done := make(chan error, 1)
			go func() { done <- m.Lock(background, 1, true) }() // ends when it has the lock
			m.until(func() bool { return m.targets[1].lockWaiters == 1 })
			if busy {
				progressUntilQueued(keeper, 1) // the request was refused, and Lock has made another one
				require.NoError(t, keeper.Unlock(background, 1))
			}
			require.NoError(t, progressUntil(keeper, func() error { return <-done }))
			require.False(t, m.targets[1].trying)
			require.NoError(t, progressUntil(keeper, func() error { return m.Unlock(background, 1) }))

			// Without a later call, the lock is released when it is granted.
			_, err = m.TryLock(ctx, 1, true)
			require.ErrorIs(t, err, context.Canceled)
			each(t, ms[1:], func(keeper *member) error {
				for granted := false; !granted; {
					if err := firstOf(keeper.Sync(), m.Sync()); err != nil {
						return err
					}
					m.port.Lock()
					granted = m.targets[1].lock == lockNone
					m.port.Unlock()
				}
				return firstOf(keeper.Lock(background, 1, true), keeper.Unlock(background, 1))
			})
		})
	}
}

// TestTryLockAfterDeath: a rank that dies while it has the lock does not keep TryLock from getting it.
func TestTryLockAfterDeath(t *testing.T) {
	everyFlavour(t, 3, 8, func(t *testing.T, ms []*member) {
		var locked, done atomic.Bool
		each(t, ms, func(m *member) error {
			switch m.rank {
			case 1:
				err := m.Lock(background, 2, true)
				m.e.Kill()
				locked.Store(true)
				return err
			case 2: // serves the others
				for !done.Load() {
					if err := m.Sync(); err != nil {
						return err
					}
					if locked.Load() { // a rank learns of a death when it sends
						_ = m.world.Send(background, nil, engine.Env{Peer: 1, Tag: 99})
					}
				}
				return nil
			}
			defer done.Store(true)
			for !locked.Load() {
				if err := m.Sync(); err != nil {
					return err
				}
			}
			for {
				_ = m.world.Send(background, nil, engine.Env{Peer: 1, Tag: 99})
				if got, err := m.TryLock(background, 2, true); err != nil {
					return err
				} else if got {
					return m.Unlock(background, 2)
				}
			}
		})
	})
}

// TestTryLockOfDeadTarget: TryLock returns the failure of the target.
func TestTryLockOfDeadTarget(t *testing.T) {
	ms := withoutProgress(t)
	done := make(chan error, 1)
	go func() { _, err := ms[0].TryLock(background, 1, true); done <- err }() // ends when rank 1 dies
	ms[0].until(func() bool { return ms[0].targets[1].trying })
	ms[1].e.Kill()
	require.ErrorIs(t, <-done, engine.ErrProcFailed)
	_, err := ms[0].TryLock(background, 1, false)
	require.ErrorIs(t, err, engine.ErrProcFailed)
	_, err = ms[0].TryLock(background, 2, false)
	require.ErrorIs(t, err, ErrRange)
}

// TestStrangeRefusals checks that a refusal is a protocol error unless it answers TryLock.
func TestStrangeRefusals(t *testing.T) {
	t.Run("nothing requested", func(t *testing.T) {
		m, _, s := againstStranger(t)
		require.NoError(t, s.sendNumbered(wire.Window{Kind: wire.WinBusy}))
		m.drainMessages(t, s)
		require.Equal(t, []int{1}, m.e.Failed())
	})
	t.Run("Lock", func(t *testing.T) {
		m, _, s := againstStranger(t)
		require.NoError(t, s.sendNumbered(wire.Window{Kind: wire.WinBusy}))
		require.ErrorIs(t, m.Lock(background, 1, true), engine.ErrProcFailed)
	})
	t.Run("try twice", func(t *testing.T) {
		m, _, s := againstStranger(t)
		require.NoError(t, s.sendNumbered(wire.Window{Kind: wire.WinLock, Try: true}))
		require.NoError(t, s.sendNumbered(wire.Window{Kind: wire.WinLock, Try: true, Flag: true}))
		m.drainMessages(t, s)
		require.Equal(t, []int{1}, m.e.Failed())
	})
}
