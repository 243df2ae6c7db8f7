package rma

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/engine"
)

func nobody(int) bool { return false }

// TestLockTableOrder checks that requests are granted in their order, and consecutive shared
// requests together.
func TestLockTableOrder(t *testing.T) {
	b := lockTableOf(alignedBytes(lockTableSize(6)), 6)
	b.request(0, true, false)
	require.True(t, b.holds(0))
	b.request(1, false, false)
	b.request(2, false, false)
	b.request(3, true, false)
	b.request(4, false, false)
	require.Empty(t, b.grant(nil))
	b.release(0)
	require.Equal(t, []int{1, 2}, b.grant(nil))
	b.request(5, false, false)
	require.False(t, b.holds(5), "rank 3 requested the lock before rank 5")
	b.release(1)
	require.Empty(t, b.grant(nil))
	b.release(2)
	require.Equal(t, []int{3}, b.grant(nil))
	b.release(3)
	require.Equal(t, []int{4, 5}, b.grant(nil))
	b.request(0, true, false)
	b.request(1, false, false)
	b.release(0) // withdraws its request, which then blocks no other rank
	require.Equal(t, []int{1}, b.grant(nil))
	for _, r := range []int{1, 4, 5, 5} {
		b.release(r)
	}
	require.Equal(t, [3]uint64{}, [3]uint64{b.waiting, b.sharing, b.owned})
}

// TestLockTablePasses checks that a shared request that passes the others is granted before them, and
// waits only for a rank that has the lock exclusively.
func TestLockTablePasses(t *testing.T) {
	b := lockTableOf(alignedBytes(lockTableSize(6)), 6)
	b.request(0, false, false)
	b.request(1, true, false)
	b.request(2, false, false)
	require.False(t, b.holds(2))
	b.request(3, false, true)
	require.True(t, b.holds(3))
	b.release(0)
	require.Empty(t, b.grant(nil))
	b.release(3)
	require.Equal(t, []int{1}, b.grant(nil))
	b.request(4, true, false)
	b.request(5, false, true)
	require.False(t, b.holds(5))
	b.release(1)
	require.Equal(t, []int{2, 5}, b.grant(nil), "rank 2 requested before 4, and rank 5 passes it")
}

// TestLockTableRepair checks that repair computes the counts from the states, without those of dead
// ranks.
func TestLockTableRepair(t *testing.T) {
	b := lockTableOf(alignedBytes(lockTableSize(5)), 5)
	b.request(0, false, false)
	b.request(1, false, false)
	b.request(2, true, false)
	b.request(3, false, false)
	b.states[4].Store(stateLeft)
	b.waiting, b.sharing, b.owned = 7, 8, 9
	b.repair(nobody)
	require.Equal(t, [3]uint64{2, 2, 0}, [3]uint64{b.waiting, b.sharing, b.owned})
	b.repair(func(r int) bool { return r != 3 })
	require.Equal(t, [3]uint64{1, 0, 0}, [3]uint64{b.waiting, b.sharing, b.owned})
	require.Equal(t, []int{3}, b.grant(nil))
	require.Equal(t, stateLeft, b.state(4), "repair keeps the state left, for which memory to be freed waits")
}

// TestDeadHolderOfLatch checks that a rank that needs the latch of a dead rank takes it over, and
// releases the dead rank's lock.
func TestDeadHolderOfLatch(t *testing.T) {
	for name, call := range map[string]func(m *member) error{
		"lock":   func(m *member) error { return m.Lock(background, 2, true) },
		"unlock": func(m *member) error { return m.Unlock(background, 2) },
		"elements": func(m *member) error {
			return m.Accumulate(background, 2, 0, make([]byte, 24), Replace)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, set := flavours()["shared"]()
			ms := openWindows(t, openEngines(t, 3, p, set), 240, Config{Elem: 24, Align: 8})
			m, dying := ms[0], ms[1]
			if name != "lock" {
				require.NoError(t, m.Lock(background, 2, false))
			}
			require.NoError(t, dying.Lock(background, 2, false))
			require.True(t, dying.targets[2].lockTable.tryLatch(dying.rank))
			m.targets[2].lockTable.sharing = 99 // a count that the dying rank left inconsistent
			done := make(chan error, 1)
			go func() { done <- call(m) }() // ends when it has the latch
			dying.e.Kill()
			each(t, ms[:1], func(*member) error { return <-done })
			b := m.targets[2].lockTable
			require.Zero(t, b.latch.Load())
			require.Equal(t, stateFree, b.state(1))
			require.Equal(t, name == "lock", b.state(0) == stateExclusive)
			require.LessOrEqual(t, b.sharing, uint64(1))
		})
	}
}

// TestTargetDiesWithLatch: a target dies while it holds the latch of its own lock table, for which
// Lock waits. Lock returns an error and leaves no lock or request, so later epochs with other targets
// work.
func TestTargetDiesWithLatch(t *testing.T) {
	for name, free := range map[string]bool{"free": true, "locked": false} {
		t.Run(name, func(t *testing.T) {
			p, set := flavours()["shared"]()
			ms := openWindows(t, openEngines(t, 3, p, set), 8, ofInt64())
			m, dying := ms[0], ms[1]
			if !free {
				require.NoError(t, ms[2].Lock(background, 1, true))
			}
			require.True(t, dying.targets[1].lockTable.tryLatch(dying.rank))
			done := make(chan error, 1)
			go func() { done <- m.Lock(background, 1, true) }() // ends when it has the latch
			for waiting := false; !waiting; {
				m.port.Lock()
				waiting = m.targets[1].lockWaiters > 0
				m.port.Unlock()
			}
			dying.e.Kill()
			each(t, ms[:1], func(*member) error { return wantErr(<-done, engine.ErrProcFailed) })
			require.Zero(t, m.targets[1].lockTable.latch.Load())
			require.Zero(t, m.requested)
			require.Zero(t, m.cfg.Locks.Load())
			each(t, ms[:1], func(m *member) error {
				return errors.Join(m.LockAll(background), m.Put(background, 2, 0, word(7)), m.UnlockAll(background))
			})
			require.Equal(t, int64(7), get(ms[2].local))
		})
	}
}

// TestLatchOfRevokedWindow checks that a call that waits for a latch ends when the window is
// revoked.
func TestLatchOfRevokedWindow(t *testing.T) {
	for name, call := range map[string]func(m *member) error{
		"lock":     func(m *member) error { return m.Lock(background, 0, true) },
		"elements": func(m *member) error { return m.Accumulate(background, 1, 0, make([]byte, 24), Replace) },
	} {
		t.Run(name, func(t *testing.T) {
			p, set := flavours()["shared"]()
			ms := openWindows(t, openEngines(t, 2, p, set), 240, Config{Elem: 24, Align: 8})
			m := ms[0]
			require.True(t, m.targets[0].lockTable.tryLatch(1))
			require.True(t, m.targets[1].lockTable.tryLatch(1))
			if name == "elements" {
				require.NoError(t, m.Fence(background, false))
			}
			done := make(chan error, 1)
			go func() { done <- call(m) }() // ends when the window is revoked
			m.ctx.Revoke(errPart)
			each(t, ms[:1], func(*member) error { return wantErr(<-done, engine.ErrRevoked) })
		})
	}
}
