package launcher

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestReadyForSignals: the inner gorun must write its process id and its exit code to the pipe
// whose descriptor the environment names. If the descriptor belongs to another kind of file, or the
// variable is invalid, it must write nothing.
func TestReadyForSignals(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	inherited, err := unix.Dup(int(w.Fd()))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	t.Setenv(envAllocated, strconv.Itoa(inherited))
	readyForSignals().ended(7)
	lines := bufio.NewReader(r)
	for _, want := range []int{os.Getpid(), 7} {
		number, ok := readNumber(lines)
		require.True(t, ok)
		require.Equal(t, want, number)
	}
	_, ok := readNumber(lines)
	require.False(t, ok, "the pipe has ended")

	f, err := os.Create(t.TempDir() + "/f")
	require.NoError(t, err)
	t.Setenv(envAllocated, strconv.Itoa(int(f.Fd())))
	readyForSignals().ended(7)
	info, err := f.Stat()
	require.NoError(t, err)
	require.Zero(t, info.Size())
	require.NoError(t, f.Close())
	for _, text := range []string{"", "x", "-1", "1000000"} {
		t.Setenv(envAllocated, text)
		readyForSignals().ended(7)
	}
}

// TestRunSalloc: the outer gorun must return the exit code that the inner gorun reports by the
// pipe. If the inner gorun reports none, the exit code follows from how salloc ended. The outer
// gorun must kill a salloc that hangs. Shell scripts take the places of salloc and the inner gorun.
func TestRunSalloc(t *testing.T) {
	defer func(was int) { sallocTime = was }(sallocTime)
	sallocTime = 1
	const inner = `sh -c 'echo $$ >&3; `
	for _, test := range []struct {
		name, salloc string
		code         int
	}{
		{"no allocation", `exit 3`, 3},
		{"killed", `kill -KILL $$`, 137},
		{"as the job", inner + `echo 7 >&3'; exit 1`, 7},
		{"the inner gorun is killed early", `exit 0`, 137},
		{"the inner gorun is killed", inner + `kill -KILL $$'; exit 0`, 137},
		{"salloc fails after the job", inner + `echo 0 >&3'; exit 1`, 0},
		{"the pipe stays open", inner + `echo 7 >&3'; exec sh -c 'sleep 3 & exit 0'`, 7},
		{"salloc stays", inner + `echo 7 >&3'; while :; do sleep 0.1; done`, 7},
		{"salloc leaves a zombie", `(` + inner + `echo 7 >&3') & exec sleep 100`, 7},
		{"salloc stays after a kill", inner + `kill -KILL $$'; while :; do sleep 0.1; done`, 137},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", test.salloc)
			cmd.Stderr = os.Stderr
			code, early, err := runSalloc(t.Context(), cmd)
			require.NoError(t, err)
			require.Zero(t, early)
			require.Equal(t, test.code, code)
		})
	}
}
