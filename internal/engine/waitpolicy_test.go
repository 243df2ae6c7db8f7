package engine

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/inproc"
)

// TestFailedTestsLetOthersRun: a goroutine calls Test or Iprobe in a loop, and a second goroutine
// completes what the first one waits for. The second goroutine runs soon, also if the Go scheduler
// has one processor.
func TestFailedTestsLetOthersRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	c := world(openJob(t, 2, inproc.NewFabric(), nil))[0]
	const few = 100 // calls, which together take a fraction of the scheduler's time slice
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
			c.e.noYieldUntil = 0 // so that a yield that took long, because of the load of the machine, has no effect
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

// TestWakeWhileTheLeaderIsInTheScheduler: a leader calls enterScheduler right before it would
// sleep. enterScheduler releases the lock, and another goroutine causes the leader's event
// meanwhile. The leader must notice this, because no transport would end its sleep.
func TestWakeWhileTheLeaderIsInTheScheduler(t *testing.T) {
	e := openJob(t, 1, inproc.NewFabric(), map[string]string{"engine.poll": "0s", "engine.yield": "0s"})[0]
	over := make(chan error, 1)
	go func() { // ends after the last round or, if the test fails, when the engine closes
		for i := range 5000 {
			e.mu.Lock()
			w := e.newWaiter()
			// The leader calls enterScheduler at every 256th poll, if schedulerInterval has passed.
			// Here this is the poll after its first yield, at which it would begin to sleep.
			e.polls = 255 - fewPolls
			e.lastGosched = e.clock() - schedulerInterval
			told := make(chan struct{})
			go func() { // ends in the same round of the loop, which receives from told
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
