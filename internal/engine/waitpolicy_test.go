package engine

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/inproc"
)

// TestFailedTestsLetOthersRun: a goroutine that calls Test or Iprobe in a loop lets the goroutine
// run that completes the request, also with one processor for both.
func TestFailedTestsLetOthersRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c := world(openJob(t, 2, inproc.NewFabric(), nil))[0]
	const few = 100 // calls that take a fraction of the runtime's time slice
	for name, ask := range map[string]func(task Request) (bool, error){
		"Test": func(task Request) (bool, error) {
			_, done, err := task.Test()
			return done, err
		},
		"Iprobe": func(Request) (bool, error) {
			_, there, err := c.Iprobe(Env{Peer: 0, Tag: 3})
			return there, err
		},
	} {
		task := c.e.Go(func() error { return c.Send(background, nil, Env{Peer: 0, Tag: 3}) })
		done, err := false, error(nil)
		for i := 0; i < few && !done; i++ {
			c.e.mu.Lock()
			c.e.noYieldUntil = 0 // so that the load of the machine has no influence
			c.e.mu.Unlock()
			done, err = ask(task)
			require.NoError(t, err)
		}
		require.True(t, done, name)
		_, err = c.Recv(background, nil, Env{Peer: 0, Tag: 3})
		require.NoError(t, err)
		_, err = task.Wait(background)
		require.NoError(t, err)
	}
}

// TestWakeWhileTheLeaderIsInTheScheduler: a leader that calls enterScheduler right before it
// sleeps releases the lock, and another goroutine may cause the leader's event meanwhile. No
// transport would end the leader's sleep.
func TestWakeWhileTheLeaderIsInTheScheduler(t *testing.T) {
	e := openJob(t, 1, inproc.NewFabric(), map[string]string{"engine.poll": "0s", "engine.yield": "0s"})[0]
	over := make(chan error, 1)
	go func() { // ends with the last round, or after the test has failed with the engine
		for i := range 5000 {
			e.mu.Lock()
			w := e.newWaiter()
			e.polls = 255 - fewPolls                      // the leader calls enterScheduler at the poll after the one that yields,
			e.lastGosched = e.clock() - schedulerInterval // at which it would begin to sleep
			told := make(chan struct{})
			go func() { // ends with the round
				defer close(told)
				for begun := time.Now(); time.Since(begun) < time.Duration(i%200)*50*time.Nanosecond; {
				}
				e.mu.Lock()
				e.wake(w)
				e.mu.Unlock()
			}()
			err := e.await(t.Context(), w)
			e.mu.Unlock()
			<-told
			if err != nil {
				over <- err
				return
			}
			e.mu.Lock()
			e.freeWaiter(w)
			e.mu.Unlock()
		}
		over <- nil
	}()
	select {
	case err := <-over:
		require.NoError(t, err)
	case <-time.After(testTimeout):
		t.Fatal("the leader sleeps, although its event has happened")
	}
}
