package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFailureIsReportedOnce: rank 1 fails, by an error, a panic, an exit or Abort, and the other
// ranks fail because of that. stderr must begin with what rank 1 wrote, end with gorun's line about
// rank 1, contain the cause only once, and contain nothing about the other ranks.
func TestFailureIsReportedOnce(t *testing.T) {
	program := filepath.Join(t.TempDir(), "fail")
	out, err := exec.Command("go", "build", "-o", program, "./testdata/fail").CombinedOutput()
	require.NoError(t, err, string(out))
	for mode, test := range map[string]struct {
		code        int    // gorun's exit code
		first, last string // text in the first and in the last line of stderr
		times       int    // how often stderr contains "no such mesh", the cause
	}{
		"error": {1, "rank 1: no such mesh\n", "gorun: rank 1 failed (exit code 1): ", 1},
		"panic": {2, "rank 1: panic: no such mesh\n", "gorun: rank 1 failed (exit code 2): ", 1},
		"exit":  {5, "no such mesh\n", "gorun: rank 1 exited with code 5: ", 1},
		"abort": {7, "gorun: rank 1 called Abort (exit code 7): ", "gorun: rank 1 called Abort (exit code 7): ", 0},
	} {
		for _, tag := range []bool{false, true} {
			args := []string{"-n", "3", "-ppn", "3", program, mode}
			if tag {
				args = append([]string{"-tag-output"}, args...)
			}
			code, _, errs := gorun(t, args...)
			require.Equal(t, test.code, code, errs)
			lines := strings.Split(strings.TrimSuffix(errs, "\n"), "\n")
			for strings.HasPrefix(lines[0], "gorun: warning: ") || strings.Contains(lines[0], "take turns") {
				lines = lines[1:]
			}
			require.Contains(t, lines[0]+"\n", test.first, errs)
			require.Contains(t, lines[len(lines)-1], test.last, errs)
			require.Equal(t, test.times, strings.Count(errs, "no such mesh"), errs)
			require.NotContains(t, errs, "process failed", errs)
			require.NotContains(t, errs, "the last lines that rank", errs)
		}
	}
}
