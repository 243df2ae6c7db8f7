package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/inproc"
)

// TestATaskPanicsWithTheLock: a panic in a task whose goroutine holds the engine's lock
// propagates, so it ends the process.
func TestATaskPanicsWithTheLock(t *testing.T) {
	e := openJob(t, 1, inproc.NewFabric(), nil)[0]
	e.Kill() // Go runs f on the calling goroutine now
	got := make(chan any, 1)
	go func() { // ends with the panic
		defer func() {
			e.mu.Unlock()
			got <- recover()
		}()
		e.Go(func() error {
			e.mu.Lock()
			panic("out of cheese")
		})
	}()
	select {
	case p := <-got:
		require.Equal(t, "out of cheese", p)
	case <-time.After(time.Minute):
		t.Fatal("the panic waits for the engine's lock")
	}
}
