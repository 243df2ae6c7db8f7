//go:build linux

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStress is a short version of make stress. Its own -timeout is shorter than the timeout of go
// test, because that timeout would leave processes and files behind.
func TestStress(t *testing.T) {
	for _, args := range [][]string{
		{"-jobs", "40", "-kills", "25", "-ops", "40", "-seed", "1", "-first", "-timeout", "7m"},
	} {
		var out bytes.Buffer
		require.Zero(t, run(&out, &out, args), &out)
	}
}

// TestKilledBeforeInit has rank 1 kill itself before it has called Init, and so before it has opened
// the shared memory. Rank 0, which ignores SIGTERM, must report the failure.
func TestKilledBeforeInit(t *testing.T) {
	r, err := newRunner(t.Context(), 0, false, nil)
	require.NoError(t, err)
	defer r.close()
	dir := t.TempDir()
	script := `[ $PMI_RANK = 0 ] && exec "$0" -seed 1 -ops 0 -survive; until grep -qs ready "$1/0.out"; do sleep 0.01; done; kill -9 $$`
	j := job{ranks: 2, flags: []string{"-p", "transport.use=shm", "-grace", jobLimit.String(), "-output", dir}, gorun: r.program("gorun"),
		program: "sh", args: []string{"-c", script, r.program("rank"), dir}, kill: &kill{rank: 1, survive: true}}
	p, err := r.start(j)
	require.NoError(t, err)
	if !p.wait(jobLimit / 2) {
		p.dump()
		require.Fail(t, "the job hangs", p.said())
	}
	out, err := os.ReadFile(filepath.Join(dir, "0.out"))
	require.NoError(t, err)
	_, _ = p.stdout.Write(out)
	require.NoError(t, p.survivors(j, time.Time{}), p.said())
}

func TestBadUsage(t *testing.T) {
	for _, args := range [][]string{{"-jobs", "many"}, {"7"}} {
		var out bytes.Buffer
		require.Equal(t, 2, run(&out, &out, args))
	}
}
