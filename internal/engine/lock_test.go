package engine

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Goroutines take the lock in turns, beside one that holds it most of the time
// and breathes, as a leader does; nobody is let in twice or passed by for good.
func TestMutexExcludesAndLetsIn(t *testing.T) {
	const goroutines, turns = 8, 2000
	var m mutex
	m.init()
	var wg sync.WaitGroup
	inside, done := 0, 0
	for range goroutines {
		wg.Go(func() {
			for range turns {
				m.lock()
				inside++
				if inside != 1 {
					panic("two hold the lock")
				}
				inside--
				done++
				m.unlock()
			}
		})
	}
	m.lock()
	for done < goroutines*turns {
		m.breathe()
	}
	m.unlock()
	wg.Wait()
	require.Zero(t, m.state.Load())
	require.True(t, m.TryLock())
	require.False(t, m.TryLock())
	require.False(t, m.contended())
}
