package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/inproc"
)

// TestATaskPanicsWithTheLock: a function of Engine.Go panics while its goroutine holds the engine's
// lock. The panic propagates, so it ends the process, instead of waiting for the lock.
func TestATaskPanicsWithTheLock(t *testing.T) {
	e := openJob(t, 1, inproc.NewFabric(), nil)[0]
	e.Kill() // from now on Go runs its function on the calling goroutine, so the test can recover
	got := make(chan any, 1)
	go func() { // ends when Go panics; the deferred function recovers the panic
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
