package rma

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestContendedCounter increments one element from all ranks with GetAccumulate. Each previous
// value must be fetched exactly once.
func TestContendedCounter(t *testing.T) {
	const times = 100
	for _, n := range []int{2, 5} {
		everyFlavour(t, n, 8, func(t *testing.T, ms []*member) {
			seen := make([]atomic.Bool, n*times)
			each(t, ms, func(m *member) error {
				if err := m.LockAll(background); err != nil {
					return err
				}
				old, one := make([]byte, 8), word(1)
				for range times {
					if err := m.GetAccumulate(background, 0, 0, one, old, Sum); err != nil {
						return err
					}
					if err := m.Flush(background, 0); err != nil {
						return err
					}
					if i := get(old); i < 0 || i >= int64(len(seen)) || seen[i].Swap(true) {
						return fmt.Errorf("fetched %d twice, or it is out of range", i)
					}
				}
				if err := m.UnlockAll(background); err != nil {
					return err
				}
				return m.barrier()
			})
			require.Equal(t, int64(n*times), get(ms[0].local))
		})
	}
}

// TestSpinLock uses CompareSwap as a spin lock that guards an element, which ranks increment by Get
// and Put. No increment may be lost.
func TestSpinLock(t *testing.T) {
	const n, times = 3, 20
	everyFlavour(t, n, 16, func(t *testing.T, ms []*member) {
		each(t, ms, func(m *member) error {
			if err := m.LockAll(background); err != nil {
				return err
			}
			me, old, value := word(int64(m.rank+1)), make([]byte, 8), make([]byte, 8)
			free := word(0)
			for range times {
				for old[0] = 1; get(old) != 0; {
					if err := m.CompareSwap(background, 1, 0, me, free, old); err != nil {
						return err
					}
					if err := m.FlushLocal(background, 1); err != nil {
						return err
					}
				}
				if err := m.Get(background, 1, 8, value); err != nil {
					return err
				}
				if err := m.Flush(background, 1); err != nil {
					return err
				}
				put(value, get(value)+1)
				if err := m.Put(background, 1, 8, value); err != nil {
					return err
				}
				if err := m.Flush(background, 1); err != nil {
					return err
				}
				if err := m.Accumulate(background, 1, 0, free, Replace); err != nil {
					return err
				}
				if err := m.Flush(background, 1); err != nil {
					return err
				}
			}
			if err := m.UnlockAll(background); err != nil {
				return err
			}
			return m.barrier()
		})
		require.Equal(t, int64(n*times), get(ms[1].local[8:]))
	})
}

// TestLocksExclude checks that a rank with an exclusive lock is the only holder, and that no rank
// with a shared lock is a holder beside an exclusive one. The test counts the holders itself.
func TestLocksExclude(t *testing.T) {
	const n, times = 4, 40
	everyFlavour(t, n, 16, func(t *testing.T, ms []*member) {
		var exclusives, sharers atomic.Int32
		each(t, ms, func(m *member) error {
			value := make([]byte, 8)
			for i := range times {
				exclusive := (i+m.rank)%2 == 0
				if err := m.Lock(background, 2, exclusive); err != nil {
					return err
				}
				if exclusive {
					if e, s := exclusives.Add(1), sharers.Load(); e != 1 || s != 0 {
						return fmt.Errorf("%d exclusive and %d shared holders", e, s)
					}
				} else {
					sharers.Add(1)
					if e := exclusives.Load(); e != 0 {
						return fmt.Errorf("%d exclusive holders beside a shared one", e)
					}
				}
				if err := m.Get(background, 2, 8, value); err != nil {
					return err
				}
				if err := m.Flush(background, 2); err != nil {
					return err
				}
				if exclusive {
					put(value, get(value)+1)
					if err := m.Put(background, 2, 8, value); err != nil {
						return err
					}
					exclusives.Add(-1)
				} else {
					sharers.Add(-1)
				}
				if err := m.Unlock(background, 2); err != nil {
					return err
				}
			}
			return m.barrier()
		})
		require.Equal(t, int64(n*times/2), get(ms[2].local[8:]))
	})
}

// TestSharersMeet checks that all ranks can hold a shared lock at the same time: each waits for all
// others while it holds the lock.
func TestSharersMeet(t *testing.T) {
	everyFlavour(t, 3, 8, func(t *testing.T, ms []*member) {
		each(t, ms, func(m *member) error {
			if err := m.Lock(background, 0, false); err != nil {
				return err
			}
			if err := m.barrier(); err != nil {
				return err
			}
			if err := m.Unlock(background, 0); err != nil {
				return err
			}
			return m.barrier()
		})
	})
}

// TestLocksAreFair checks that locks are granted in the order of the requests, so that shared
// requests cannot starve an exclusive one.
func TestLocksAreFair(t *testing.T) {
	everyFlavour(t, 3, 8, func(t *testing.T, ms []*member) {
		each(t, ms, func(m *member) error {
			switch m.rank {
			case 0: // the target, which first holds a shared lock of its own part
				if err := m.Lock(background, 0, false); err != nil {
					return err
				}
				if err := m.barrier(); err != nil {
					return err
				}
				for { // until rank 1 waits
					if err := m.Sync(); err != nil {
						return err
					}
					if len(m.lockQueue()) > 0 {
						break
					}
				}
				if err := m.barrier(); err != nil {
					return err
				}
				for { // until rank 2 waits behind rank 1
					if err := m.Sync(); err != nil {
						return err
					}
					if queue := m.lockQueue(); len(queue) == 2 {
						if queue[0] != (lockRequest{1, true}) || queue[1] != (lockRequest{2, false}) {
							return fmt.Errorf("queue %v", queue)
						}
						break
					}
				}
				if err := m.Unlock(background, 0); err != nil {
					return err
				}
			case 1:
				if err := m.barrier(); err != nil {
					return err
				}
				done := make(chan error, 1)
				// It ends with rank 0's barrier, which follows this rank's request.
				go func() { done <- m.barrier() }()
				if err := m.Lock(background, 0, true); err != nil {
					return err
				}
				if err := <-done; err != nil {
					return err
				}
				if err := m.Put(background, 0, 0, word(7)); err != nil {
					return err
				}
				if err := m.Unlock(background, 0); err != nil {
					return err
				}
			default:
				if err := m.barrier(); err != nil {
					return err
				}
				if err := m.barrier(); err != nil {
					return err
				}
				if err := m.Lock(background, 0, false); err != nil {
					return err
				}
				got := make([]byte, 8)
				if err := m.Get(background, 0, 0, got); err != nil {
					return err
				}
				if err := m.Unlock(background, 0); err != nil {
					return err
				}
				if err := same(got, word(7)); err != nil {
					return err
				}
			}
			return m.barrier()
		})
	})
}

// TestLockGivenUp checks that a rank that has stopped waiting for a lock may request it again, of
// the same or the other kind, and that the first request blocks no other rank.
func TestLockGivenUp(t *testing.T) {
	everyFlavour(t, 2, 8, func(t *testing.T, ms []*member) {
		for _, again := range []bool{true, false} {
			each(t, ms, func(m *member) error {
				if m.rank == 1 {
					if err := m.Lock(background, 1, true); err != nil {
						return err
					}
				}
				if err := m.barrier(); err != nil {
					return err
				}
				if m.rank == 1 {
					if err := m.barrier(); err != nil {
						return err
					}
					if err := m.Unlock(background, 1); err != nil {
						return err
					}
					if err := m.Lock(background, 1, true); err != nil {
						return err
					}
					if err := m.Unlock(background, 1); err != nil {
						return err
					}
					return m.barrier()
				}
				ctx, cancel := context.WithCancel(background)
				cancel()
				for range 2 {
					if err := wantErr(m.Lock(ctx, 1, true), context.Canceled); err != nil {
						return err
					}
				}
				if err := m.barrier(); err != nil {
					return err
				}
				if err := m.Lock(background, 1, again); err != nil {
					return err
				}
				if err := m.Unlock(background, 1); err != nil {
					return err
				}
				return m.barrier()
			})
		}
	})
}

// TestLockAllPassesWaitingRanks: while ranks 2 and 3 wait for exclusive locks of their own parts, 0
// and 1 in LockAll, of which each has a lock that one of them waits for, must get the other's lock.
// In the order of the requests the four would wait for each other.
func TestLockAllPassesWaitingRanks(t *testing.T) {
	everyFlavour(t, 4, 8, func(t *testing.T, ms []*member) {
		get := func(m *member, target int) error {
			if err := m.Get(background, target, 0, make([]byte, 8)); err != nil {
				return err
			}
			return m.Flush(background, target)
		}
		turn := make([]chan struct{}, 3) // closed when the ranks have done a step
		var left [3]atomic.Int32
		for i := range turn {
			turn[i] = make(chan struct{})
			left[i].Store(2)
		}
		done := func(step int) {
			if left[step].Add(-1) == 0 {
				close(turn[step])
			}
		}
		each(t, ms, func(m *member) error {
			if m.rank >= 2 {
				for waiting := false; !waiting; { // serves the others
					select {
					case <-turn[0]:
						waiting = true
					default:
						if err := m.Sync(); err != nil {
							return err
						}
					}
				}
				locked := make(chan error, 1)
				go func() { locked <- m.Lock(background, m.rank, true) }()
				for requested := 0; requested == 0; {
					m.port.Lock()
					requested = m.requested
					m.port.Unlock()
				}
				done(1)
				if err := <-locked; err != nil {
					return err
				}
				if err := m.Unlock(background, m.rank); err != nil {
					return err
				}
				return m.barrier()
			}
			if err := m.LockAll(background); err != nil {
				return err
			}
			if err := get(m, 3-m.rank); err != nil {
				return err
			}
			done(0)
			<-turn[1]
			if err := get(m, 2+m.rank); err != nil {
				return err
			}
			if err := m.UnlockAll(background); err != nil {
				return err
			}
			return m.barrier()
		})
		for _, m := range ms {
			require.Zero(t, m.requested)
			require.Zero(t, m.cfg.Locks.Load())
		}
	})
}

// TestLockAllFirstRequest: an epoch of LockAll whose first request waits must not have or request
// another lock, because it would not pass the ranks that wait there.
func TestLockAllFirstRequest(t *testing.T) {
	everyFlavour(t, 3, 8, func(t *testing.T, ms []*member) {
		locked, tried := make(chan struct{}), make(chan struct{})
		each(t, ms, func(m *member) error {
			switch m.rank {
			case 1: // has its own lock until rank 0 has tried two operations
				if err := m.Lock(background, 1, true); err != nil {
					return err
				}
				close(locked)
				<-tried
				if err := m.Unlock(background, 1); err != nil {
					return err
				}
			case 0:
				<-locked
				if err := m.LockAll(background); err != nil {
					return err
				}
				results := make(chan error, 2)
				put := func(target int) { results <- m.Put(background, target, 0, word(7)) }
				go put(1)
				for requested := 0; requested == 0; {
					m.port.Lock()
					requested = m.requested
					m.port.Unlock()
				}
				go put(2)
				for waiters := 0; waiters == 0; {
					m.port.Lock()
					waiters = m.targets[2].lockWaiters
					state := m.targets[2].lock
					m.port.Unlock()
					if state != lockNone {
						return fmt.Errorf("the epoch has requested a second lock")
					}
				}
				close(tried)
				if err := firstOf(<-results, <-results, m.UnlockAll(background)); err != nil {
					return err
				}
			}
			return m.barrier()
		})
		require.Equal(t, int64(7), get(ms[1].local))
		require.Equal(t, int64(7), get(ms[2].local))
	})
}
