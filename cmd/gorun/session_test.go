package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSessions runs a program that uses sessions only, and one that calls Main after them.
func TestSessions(t *testing.T) {
	program := filepath.Join(t.TempDir(), "session")
	out, err := exec.Command("go", "build", "-o", program, "./testdata/session").CombinedOutput()
	require.NoError(t, err, string(out))
	for _, args := range [][]string{{}, {"main"}} {
		code, out, errs := gorun(t, append([]string{"-n", "4", "-timeout", "50s", program}, args...)...)
		require.Zero(t, code, errs)
		require.Equal(t, "0 [mpi://WORLD mpi://SELF weft://HOST weft://APP/0] 1 4\n1 [mpi://WORLD mpi://SELF weft://HOST weft://APP/0] 1 4\n", out, errs)
	}
	code, text, errs := gorun(t, "-timeout", "50s", "-n", "3", program, "apps", ":", "-n", "2", program, "apps")
	require.Zero(t, code, errs)
	require.Equal(t, "program 0 of 2: [3 2], sum 7\n", text)
}
