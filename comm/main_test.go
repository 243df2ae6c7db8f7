package comm_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
)

// programVar tells the test binary to be one of programs instead.
const programVar = "WEFT_COMM_TEST_PROGRAM"

var programs = map[string]func(c *comm.Comm) error{
	"good": func(c *comm.Comm) error {
		dir, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return err
		}
		for _, fd := range dir { // a world of one opens no socket
			if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(to, "socket:") {
				return fmt.Errorf("%s is %s", fd.Name(), to)
			}
		}
		return comm.Barrier(c)
	},
	"ended":  func(c *comm.Comm) error { return c.Finalize() },
	"error":  func(*comm.Comm) error { return errors.New("no such grid") },
	"panic":  func(*comm.Comm) error { panic("out of cheese") },
	"goexit": func(*comm.Comm) error { runtime.Goexit(); return nil },
	"abort":  func(c *comm.Comm) error { c.Abort(77); return nil },
	"abort0": func(c *comm.Comm) error { c.Abort(0); return nil },
}

// TestMain fails the package where goroutines are left over.
func TestMain(m *testing.M) {
	if p, ok := programs[os.Getenv(programVar)]; ok {
		comm.Main(p)
		os.Exit(0)
	}
	before := runtime.NumGoroutine()
	code := m.Run()
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(end); {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); code == 0 && n > before {
		buf := make([]byte, 1<<20)
		fmt.Fprintf(os.Stderr, "%d goroutines are left, from %d:\n%s\n", n, before, buf[:runtime.Stack(buf, true)])
		code = 1
	}
	os.Exit(code)
}

func TestPrograms(t *testing.T) {
	for name, want := range map[string]struct {
		code   int
		stderr []string
	}{
		"good":   {0, nil},
		"ended":  {0, nil},
		"error":  {1, []string{"rank 0: no such grid"}},
		"panic":  {2, []string{"rank 0: panic: out of cheese", "main_test.go"}},
		"goexit": {1, []string{"rank 0: the program ended its main goroutine"}},
		"abort":  {77, nil},
		"abort0": {1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			self, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Env = append(os.Environ(), programVar+"="+name)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			err = cmd.Run()
			code := 0
			if exit := new(exec.ExitError); errors.As(err, &exit) {
				code = exit.ExitCode()
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, want.code, code, stderr.String())
			for _, text := range want.stderr {
				require.Contains(t, stderr.String(), text)
			}
			if want.stderr == nil {
				require.Empty(t, stderr.String())
			}
		})
	}
}
