package contest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ours is the beginning of the marks of all commands that this process runs by Output.
var ours = fmt.Sprintf("%s%d.", marker, os.Getpid())

// TestOutputLeavesNothing ends the context of a command that ignores SIGTERM, and has a child which
// also ignores it and is in a session of its own. Output returns the error of the context and what the
// command has printed, and no process is left.
func TestOutputLeavesNothing(t *testing.T) {
	const script = `trap '' TERM; setsid sh -c 'trap "" TERM; sleep 1000' & echo begun; echo odd >&2; sleep 1000`
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	out, err := Output(ctx, "sh", "-c", script)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "odd")
	require.Equal(t, "begun\n", out)
	require.Empty(t, marked(ours))
}

func TestOutputOfOneThatFails(t *testing.T) {
	out, err := Output(t.Context(), "sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo half; exit 3")
	require.ErrorContains(t, err, "exit status 3")
	require.Equal(t, "half\n", out)
	require.Empty(t, marked(ours))
	_, err = Output(t.Context(), filepath.Join(t.TempDir(), "none"))
	require.Error(t, err)
}

func TestObjects(t *testing.T) {
	objects, err := Objects("{\"x\":1.5}\n{\"x\":3,\"y\":2}\n")
	require.NoError(t, err)
	xs, err := Numbers(objects, "x", 2)
	require.NoError(t, err)
	require.Equal(t, []float64{3, 6}, xs)
	xs, err = Numbers(objects, "y", 1)
	require.Error(t, err)
	require.Empty(t, xs)
	objects, err = Objects("{\"x\":1}\n{\"x\":")
	require.Error(t, err)
	require.Len(t, objects, 1)
}

// TestPrograms builds programs as bench/compare and bench/peers do, and describes the machine.
func TestPrograms(t *testing.T) {
	p, err := NewPrograms(t.Context(), "./bench/peers/hello")
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	require.NotEmpty(t, p.Path("gorun"))
	require.NotEmpty(t, p.Path("hello"))
	require.Empty(t, p.Path("bench"))
	require.NoError(t, p.C(t.Context(), "no-such-compiler", "x", []string{"c/cacheline.c"}))
	require.Equal(t, []string{"no-such-compiler"}, p.Missing)
	require.False(t, p.Has("no-such-compiler"))
	require.Len(t, p.Missing, 1)
	m := p.Machine(t.Context()).String()
	require.Regexp(t, `^.+, \d+ cores, Linux .+; Go 1\..*; \d{4}-\d\d-\d\d$`, m)
	if _, err := exec.LookPath("mpichversion"); err == nil {
		require.Regexp(t, `MPICH \d`, m)
	}
	require.False(t, strings.Contains(m, "\n"))
}
