package engine

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport/inproc"
)

// The ranks of a host have homes of their own among the cores that they may use,
// and none where there are too few.
func TestHomes(t *testing.T) {
	var allowed unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &allowed))
	n := allowed.Count()
	if n < 2 {
		require.Negative(t, newHome(0, 2).cpu)
		t.Skip("this process may use one core only")
	}
	taken := map[int]bool{}
	for rank := range n {
		h := newHome(rank, n)
		require.True(t, allowed.IsSet(h.cpu))
		require.False(t, taken[h.cpu], "two ranks on one core")
		taken[h.cpu] = true
	}
	require.NotEqual(t, newHome(0, 2).cpu, newHome(1, 2).cpu)
	require.Negative(t, newHome(0, n+1).cpu)
	require.Negative(t, newHome(0, 1).cpu)
}

// Who shares its core for some yields moves home, and may go anywhere afterwards
// as before.
func TestGoesHome(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after, other unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &before))
	if before.Count() < 2 {
		t.Skip("this process may use one core only")
	}
	h := newHome(1, 2)
	other.Set(newHome(0, 2).cpu)
	require.NoError(t, unix.SchedSetaffinity(0, &other))
	require.NoError(t, unix.SchedSetaffinity(0, &before))
	now := time.Second
	for range usesToMove - 1 {
		require.False(t, h.used(true, now))
	}
	require.False(t, h.used(false, now), "although a yield was of no use to anybody")
	for range usesToMove - 1 {
		require.False(t, h.used(true, now))
	}
	require.True(t, h.used(true, now))
	for range usesToMove {
		require.False(t, h.used(true, now), "so soon")
	}
	h.goThere()
	require.NoError(t, unix.SchedGetaffinity(0, &after))
	require.Equal(t, before, after)

	require.NoError(t, unix.SchedSetaffinity(0, &other)) // bound elsewhere: it stays
	h.goThere()
	require.NoError(t, unix.SchedGetaffinity(0, &after))
	require.Equal(t, other, after)
	require.NoError(t, unix.SchedSetaffinity(0, &before))
}

// TestLeaderHearsWhileItShowsUp: a leader that goes through Go's scheduler right
// before it sleeps opens the lock, and another goroutine may have what it waits
// for meanwhile; no transport would wake it.
func TestLeaderHearsWhileItShowsUp(t *testing.T) {
	e := openJob(t, 1, inproc.NewFabric(), map[string]string{"engine.poll": "0s", "engine.yield": "0s"})[0]
	over := make(chan error, 1)
	go func() { // ends with the last round, or after the test has failed with the engine
		for i := range 5000 {
			e.mu.lock()
			w := e.newWaiter()
			e.polls = 255 - fewPolls           // it shows up at the poll after that which yields,
			e.shownUp = e.clock() - showUpTime // where its patience is over
			told := make(chan struct{})
			go func() { // ends with the round
				defer close(told)
				for begun := time.Now(); time.Since(begun) < time.Duration(i%200)*50*time.Nanosecond; {
				}
				e.mu.lock()
				e.tell(w)
				e.mu.unlock()
			}()
			err := e.await(t.Context(), w)
			e.mu.unlock()
			<-told
			if err != nil {
				over <- err
				return
			}
			e.mu.lock()
			e.freeWaiter(w)
			e.mu.unlock()
		}
		over <- nil
	}()
	select {
	case err := <-over:
		require.NoError(t, err)
	case <-time.After(patienceOfTests):
		t.Fatal("the leader sleeps, though what it waits for has happened")
	}
}
