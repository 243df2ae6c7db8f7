package rma

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGate runs goroutines that enter and leave a gate until it is closed. After gate.close no
// goroutine may be inside, and before it some calls of leave must have asked for a pause.
func TestGate(t *testing.T) {
	for range 200 {
		var g gate
		var open, pauses atomic.Int64
		memory := new(atomic.Int64)
		memory.Store(1)
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				for n := 0; ; n++ {
					p := g.enter()
					if p == passNone {
						return
					}
					if memory.Load() != 1 {
						t.Error("a call is inside a closed gate")
					}
					if g.leave(p, (n+i)%2 == 0) {
						pauses.Add(1)
					}
					open.Add(1)
				}
			})
		}
		for open.Load() < 3*pauseEvery {
			if g.leave(g.enter(), true) {
				pauses.Add(1)
			}
		}
		g.close()
		memory.Store(0)
		wg.Wait()
		require.Equal(t, passNone, g.enter())
		require.Positive(t, pauses.Load())
		g.close() // a second close is permitted
	}
}
