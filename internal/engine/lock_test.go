package engine

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMutexExcludesAndLetsIn: goroutines take the lock many times. Meanwhile one holder keeps it
// most of the time and calls yield, as a leader does. No two hold the lock at once, and every
// goroutine gets it as often as it wants.
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

// TestMutexHandsOver: a waiter was woken and found the lock still taken. The next Unlock makes this
// waiter the owner, so a TryLock right after the Unlock fails.
func TestMutexHandsOver(t *testing.T) {
	var m mutex
	m.init()
	m.Lock()
	got := make(chan struct{})
	go func() { // ends when it has the lock
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

// TestMutexUnderAHolderThatRetakesIt: one goroutine releases the lock and takes it again at once,
// in a loop. Thirty other goroutines still get the lock, with one processor of the Go scheduler and
// with several.
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
