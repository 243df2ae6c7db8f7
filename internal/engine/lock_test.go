package engine

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMutexExcludesAndLetsIn: goroutines take the lock repeatedly beside a holder that keeps it
// most of the time and calls yield, as a leader does. No two hold the lock at once, and every
// goroutine gets it.
func TestMutexExcludesAndLetsIn(t *testing.T) {
	const goroutines, turns = 8, 2000
	var m mutex
	m.init()
	var wg sync.WaitGroup
	inside, done := 0, 0
	for range goroutines {
		wg.Go(func() {
			for range turns {
				m.Lock()
				inside++
				if inside != 1 {
					panic("two hold the lock")
				}
				inside--
				done++
				m.Unlock()
			}
		})
	}
	m.Lock()
	for done < goroutines*turns {
		m.yield()
	}
	m.Unlock()
	wg.Wait()
	require.Zero(t, m.state.Load())
	require.True(t, m.TryLock())
	require.False(t, m.TryLock())
	require.False(t, m.contended())
}

// TestMutexHandsOver: a holder that takes the lock again at once keeps it from a waiter that
// sleeps. A waiter that was woken and found the lock taken owns it after the next unlock.
func TestMutexHandsOver(t *testing.T) {
	var m mutex
	m.init()
	m.Lock()
	got := make(chan struct{})
	go func() { // ends with the lock
		m.Lock()
		close(got)
	}()
	require.Eventually(t, func() bool { return m.state.Load() == lockTaken+lockWaiter }, testTimeout, time.Millisecond)
	m.wake <- struct{}{} // wakes the waiter, which finds the lock still taken
	require.Eventually(t, func() bool { return m.state.Load()&lockStarving != 0 }, testTimeout, time.Millisecond)
	m.Unlock()
	require.False(t, m.TryLock(), "the lock belongs to the waiter")
	<-got
	require.EqualValues(t, lockTaken, m.state.Load())
	m.Unlock()
	require.Zero(t, m.state.Load())
}

// TestMutexUnderAHolderThatRetakesIt: many goroutines get the lock, on one processor and on
// several, beside a holder that releases it only for an instant.
func TestMutexUnderAHolderThatRetakesIt(t *testing.T) {
	const goroutines, turns = 30, 50
	for _, processors := range []int{1, 2, 4} {
		func() {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
			var m mutex
			m.init()
			var wg sync.WaitGroup
			inside, taken := false, 0
			enter := func() {
				m.Lock()
				if inside {
					panic("two hold the lock")
				}
				inside = true
			}
			leave := func() {
				inside = false
				m.Unlock()
			}
			for range goroutines {
				wg.Go(func() {
					for range turns {
						enter()
						taken++
						leave()
					}
				})
			}
			for over := false; !over; {
				enter()
				over = taken == goroutines*turns
				leave()
			}
			wg.Wait()
			require.Zero(t, m.state.Load())
		}()
	}
}
