//go:build linux && !portable

package shm

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestHeldUntilThreadEnds checks that the kernel sets the bit ownerDied in a word on the robust
// futex list of a thread when that thread ends.
func TestHeldUntilThreadEnds(t *testing.T) {
	if !robustFutexes() {
		t.Skip("the kernel has no robust futexes")
	}
	var word atomic.Uint32
	list := newRobustList(&word)
	ready, end := make(chan error), make(chan struct{})
	var hold func()
	hold = func() { // its thread ends when it returns, because it does not call UnlockOSThread
		runtime.LockOSThread()
		// The main thread does not end with its goroutine, so use another thread.
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			go hold()
			<-end
			return
		}
		word.Store(uint32(unix.Gettid()))
		ready <- setRobustList(list.head())
		<-end
	}
	go hold()
	require.NoError(t, <-ready)
	require.Zero(t, word.Load()&ownerDied)
	close(end)
	require.Eventually(t, func() bool { return word.Load()&ownerDied != 0 }, deadline, time.Millisecond)
	runtime.KeepAlive(list)
}

// TestLiveness checks the word by which peers detect that a process has ended: begin sets it to a
// value that says that the process lives, and end to ownerDied, with and without robust futexes.
func TestLiveness(t *testing.T) {
	for _, robust := range []bool{false, robustFutexes()} {
		var l liveness
		var word atomic.Uint32
		l.end() // before begin, it has no effect
		require.NoError(t, l.begin(&word, robust))
		require.NotZero(t, word.Load())
		require.Zero(t, word.Load()&ownerDied)
		for range 2 {
			l.end()
			require.EqualValues(t, ownerDied, word.Load())
		}
	}
}
