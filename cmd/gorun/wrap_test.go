package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWrap starts some ranks by a command, in whose arguments the rank is replaced.
func TestWrap(t *testing.T) {
	code, out, errs := gorun(t, "-np", "4", "-wrap", "1,3:env TOOL='of %r'", "sh", "-c", "echo ${TOOL-none}")
	require.Zero(t, code, errs)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	require.Equal(t, []string{"none", "none", "of 1", "of 3"}, lines)

	code, _, errs = gorun(t, "-np", "2", "-wrap", "1:nosuchtool", "true")
	require.Equal(t, 127, code)
	require.Contains(t, errs, "gorun: -wrap (job.wrap): no such program: nosuchtool\n")
	code, _, errs = gorun(t, "-np", "2", "-wrap", "5:nosuchtool", "true") // there is no rank 5
	require.Zero(t, code, errs)
	code, _, errs = gorun(t, "-np", "2", "-wrap", "/", "true")
	require.Equal(t, 126, code)
	require.Contains(t, errs, "-wrap (job.wrap): ")
}

// TestWrapOfWeft: ranks of a weft program must find each other although a tool starts them.
func TestWrapOfWeft(t *testing.T) {
	code, out, errs := gorun(t, "-np", "3", "-wrap", "nice -n 1", "../../examples/allreduce", "-n", "100")
	require.Zero(t, code, errs)
	require.Contains(t, out, "correct")
}

// TestDebug: with -debug, gdb must find the rank stopped at its start, and continue it to the end of the
// job.
func TestDebug(t *testing.T) {
	program := filepath.Join(t.TempDir(), "allreduce")
	out, err := exec.Command("go", "build", "-o", program, "../../examples/allreduce").CombinedOutput()
	require.NoError(t, err, string(out))
	cmd := exec.Command(os.Args[0], "-np", "2", "-timeout", "90s", "-debug", "1:gdb", program, "-n", "100")
	cmd.Env = append(os.Environ(), asGorun+"=1")
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	var stdout strings.Builder
	cmd.Stdout = &stdout
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // for a test that fails before the job has ended
	ports, rest := make(chan string, 1), make(chan string, 1)
	go func() { // ends with gorun's stderr
		var all strings.Builder
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			fmt.Fprintln(&all, lines.Text())
			if _, after, ok := strings.Cut(lines.Text(), "Listening on port "); ok {
				ports <- after
			}
		}
		close(ports)
		rest <- all.String()
	}()
	port, ok := <-ports
	if !ok {
		t.Fatal("gdbserver does not listen: ", <-rest)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	said, err := exec.CommandContext(ctx, "gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex", "set auto-load off",
		"-ex", "target remote 127.0.0.1:"+port, "-ex", "info threads", "-ex", "continue", program).CombinedOutput()
	text := <-rest
	require.NoError(t, err, "%s%s", said, text)
	require.Contains(t, string(said), "exited normally")
	require.NoError(t, cmd.Wait(), text)
	require.Contains(t, stdout.String(), "correct")
}
