//go:build linux && !portable

package bootstrap

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// coresEnv is a variable that makes the test binary print the result of coresOfHost.
const coresEnv = "BOOTSTRAP_TEST_CORES"

// TestCoresOfHost checks that coresOfHost returns the number of the parent's hardware threads in a
// process that was bound to fewer, and the number that the process may use if it was not bound.
func TestCoresOfHost(t *testing.T) {
	if os.Getenv(coresEnv) != "" {
		fmt.Printf("cores=%d\n", coresOfHost(os.Getenv))
		return
	}
	cores := func() string {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestCoresOfHost$", "-test.v")
		cmd.Env = append(os.Environ(), coresEnv+"=1", "GOMAXPROCS=1")
		out, err := cmd.Output()
		require.NoError(t, err)
		_, text, _ := strings.Cut(string(out), "cores=")
		text, _, _ = strings.Cut(text, "\n")
		return text
	}
	want := fmt.Sprint(runtime.NumCPU())
	require.Equal(t, want, cores())
	besideMain(func() { // a child inherits the processors of the thread that forks it
		var all, one unix.CPUSet
		require.NoError(t, unix.SchedGetaffinity(0, &all))
		defer func() { require.NoError(t, unix.SchedSetaffinity(0, &all)) }()
		cpu := 0
		for !all.IsSet(cpu) {
			cpu++
		}
		one.Set(cpu)
		require.NoError(t, unix.SchedSetaffinity(0, &one))
		require.Equal(t, want, cores())
	})
}

// besideMain runs f locked to a thread other than the process's first, because the processors of
// the first thread count as those of the process.
func besideMain(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Gettid() != os.Getpid() {
		f()
		return
	}
	done := make(chan struct{})
	go func() { // besideMain waits for it
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		f()
	}()
	<-done
}
