//go:build libfabric

package fi

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// children are the functions that a test can run in a child process, by name. The test starts this
// program with the name in the environment variable childVariable.
var children = map[string]func() error{
	"hooks": hooksChild,
}

const childVariable = "WEFT_FI_TEST_CHILD"

// TestMain removes libfabric's environment variables, except FI_LOG_LEVEL, and runs the tests. The
// run fails if the tests leave goroutines or files in /dev/shm behind.
func TestMain(m *testing.M) {
	if child, ok := children[os.Getenv(childVariable)]; ok {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "FI_") && name != "FI_LOG_LEVEL" {
			if err := os.Unsetenv(name); err != nil {
				panic(err)
			}
		}
	}
	before := runtime.NumGoroutine()
	code := m.Run()
	left := shmFiles()
	for _, f := range left {
		_ = os.Remove(filepath.Join(shmDir, f))
	}
	if code == 0 && len(left) > 0 {
		fmt.Fprintln(os.Stderr, "left in /dev/shm:", left)
		code = 1
	}
	if code == 0 && !settled(before) {
		stacks := make([]byte, 1<<20)
		fmt.Fprintf(os.Stderr, "goroutines left:\n%s\n", stacks[:runtime.Stack(stacks, true)])
		code = 1
	}
	os.Exit(code)
}

// settled waits until no more than before goroutines are left. It returns false after testTimeout.
func settled(before int) bool {
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if runtime.NumGoroutine() <= before {
			return true
		}
	}
	return false
}

const shmDir = "/dev/shm"

// shmFiles returns the names of the files in /dev/shm that shm has created in this process. Such a
// name has the process id, the user id and the number of an endpoint.
func shmFiles() (names []string) {
	files, err := os.ReadDir(shmDir)
	if err != nil {
		return nil
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), strconv.Itoa(os.Getpid())+":") {
			names = append(names, f.Name())
		}
	}
	return names
}
