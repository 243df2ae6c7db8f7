package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSpawn runs a program that starts copies of itself by comm.Spawn.
func TestSpawn(t *testing.T) {
	program := filepath.Join(t.TempDir(), "spawn")
	out, err := exec.Command("go", "build", "-o", program, "./testdata/spawn").CombinedOutput()
	require.NoError(t, err, string(out))
	for mode, test := range map[string]struct {
		code           int    // gorun's exit code
		stdout, stderr string // regular expressions
	}{
		"groups":       {0, `^\["0 \[a b \]first kindfalse" "0 \[a b \]first kindfalse" "1 \[second\]true"\]\nsum 10 of 5\n$`, ``},
		"missing":      {0, `^comm: Spawn \(world\): the processes were not started: .*/no/such/program`, ``},
		"many":         {0, `^$`, ``},
		"nested":       {0, `^depth 3\n$`, ``},
		"child fails":  {1, `^$`, `no such mesh`},
		"child dies":   {137, `^$`, `killed by signal 9`},
		"child aborts": {9, `^$`, `Abort`},
		"parent dies":  {137, `^$`, `rank 0 .*killed by signal 9`},
		"early":        {3, `^$`, `code 3`},
	} {
		t.Run(mode, func(t *testing.T) {
			code, out, errs := gorun(t, "-n", "2", "-timeout", "50s", program, mode)
			require.Equal(t, test.code, code, errs)
			require.Regexp(t, test.stdout, out)
			require.Regexp(t, test.stderr, errs)
		})
	}
}
