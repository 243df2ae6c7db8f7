package rma

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/engine"
)

func nobody(int) bool { return false }

// Who asks first gets the lock first; those who would share it go together.
func TestBoardOrder(t *testing.T) {
	b := boardOf(alignedBytes(boardSize(6)), 6)
	b.ask(0, true)
	require.True(t, b.holds(0))
	b.ask(1, false)
	b.ask(2, false)
	b.ask(3, true)
	b.ask(4, false)
	require.Empty(t, b.grant(nil))
	b.drop(0)
	require.Equal(t, []int{1, 2}, b.grant(nil))
	b.ask(5, false)
	require.False(t, b.holds(5), "rank 3 is before it")
	b.drop(1)
	require.Empty(t, b.grant(nil))
	b.drop(2)
	require.Equal(t, []int{3}, b.grant(nil))
	b.drop(3)
	require.Equal(t, []int{4, 5}, b.grant(nil))
	b.ask(0, true)
	b.ask(1, false)
	b.drop(0) // gives up, and keeps it from nobody
	require.Equal(t, []int{1}, b.grant(nil))
	for _, r := range []int{1, 4, 5, 5} {
		b.drop(r)
	}
	require.Equal(t, [3]uint64{}, [3]uint64{b.waiting, b.sharing, b.owned})
}

// The counts can be had from the stands, without those of the dead.
func TestBoardRepair(t *testing.T) {
	b := boardOf(alignedBytes(boardSize(5)), 5)
	b.ask(0, false)
	b.ask(1, false)
	b.ask(2, true)
	b.ask(3, false)
	b.stands[4].Store(standLeft)
	b.waiting, b.sharing, b.owned = 7, 8, 9
	b.repair(nobody)
	require.Equal(t, [3]uint64{2, 2, 0}, [3]uint64{b.waiting, b.sharing, b.owned})
	b.repair(func(r int) bool { return r != 3 })
	require.Equal(t, [3]uint64{1, 0, 0}, [3]uint64{b.waiting, b.sharing, b.owned})
	require.Equal(t, []int{3}, b.grant(nil))
	require.Equal(t, standLeft, b.stand(4), "so that its memory is not waited for")
}

// A latch that a dead rank has is taken from it by who needs it, and so is what
// that rank had of the lock.
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
			require.True(t, dying.targets[2].board.try(dying.rank))
			m.targets[2].board.sharing = 99 // as it may leave it
			done := make(chan error, 1)
			go func() { done <- call(m) }() // ends when it has the latch
			dying.e.Kill()
			each(t, ms[:1], func(*member) error { return <-done })
			b := m.targets[2].board
			require.Zero(t, b.latch.Load())
			require.Equal(t, standFree, b.stand(1))
			require.Equal(t, name == "lock", b.stand(0) == standOwns)
			require.LessOrEqual(t, b.sharing, uint64(1))
		})
	}
}

// Who waits for a latch does not outlive the window.
func TestLatchOfRevokedWindow(t *testing.T) {
	for name, call := range map[string]func(m *member) error{
		"lock":     func(m *member) error { return m.Lock(background, 0, true) },
		"elements": func(m *member) error { return m.Accumulate(background, 1, 0, make([]byte, 24), Replace) },
	} {
		t.Run(name, func(t *testing.T) {
			p, set := flavours()["shared"]()
			ms := openWindows(t, openEngines(t, 2, p, set), 240, Config{Elem: 24, Align: 8})
			m := ms[0]
			require.True(t, m.targets[0].board.try(1))
			require.True(t, m.targets[1].board.try(1))
			if name == "elements" {
				require.NoError(t, m.Fence(background, false))
			}
			done := make(chan error, 1)
			go func() { done <- call(m) }() // ends with the window
			m.ctx.Revoke(errPart)
			each(t, ms[:1], func(*member) error { return wantErr(<-done, engine.ErrRevoked) })
		})
	}
}
