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

// TestHeldUntilThreadEnds has the kernel mark the word of a thread that ends.
func TestHeldUntilThreadEnds(t *testing.T) {
	if !robustFutexes() {
		t.Skip("the kernel has no robust futexes")
	}
	var word atomic.Uint32
	list := newRobustList(&word)
	ready, end := make(chan error), make(chan struct{})
	var hold func()
	hold = func() { // the thread ends with it, as it is not unlocked
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() { // but for the first one
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

// TestLiveness shows its end by itself, with and without the kernel's help.
func TestLiveness(t *testing.T) {
	for _, robust := range []bool{false, robustFutexes()} {
		var l liveness
		var word atomic.Uint32
		l.end() // before it began
		require.NoError(t, l.begin(&word, robust))
		require.NotZero(t, word.Load())
		require.Zero(t, word.Load()&ownerDied)
		for range 2 {
			l.end()
			require.EqualValues(t, ownerDied, word.Load())
		}
	}
}
