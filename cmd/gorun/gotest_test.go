package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGoTest runs a test binary whose TestMain calls commtest.Main, as go test -exec gorun does. Its
// tests must use gorun's ranks, only rank 0 must print what succeeds, and a failure on one rank must
// be one on all, with the error of that rank.
func TestGoTest(t *testing.T) {
	program := filepath.Join(t.TempDir(), "gotest.test")
	out, err := exec.Command("go", "test", "-c", "-o", program, "./testdata/gotest").CombinedOutput()
	require.NoError(t, err, string(out))
	run := func(args ...string) (code int, out, errs string) {
		return gorun(t, append([]string{"-n", "3", "-ppn", "3", program, "-test.v"}, args...)...)
	}

	code, stdout, errs := run("-test.skip", "Bad", "-test.shuffle", "on")
	require.Zero(t, code, stdout+errs)
	for _, name := range []string{"TestAll", "TestSome", "TestMore", "TestOption", "TestSubtests/3"} {
		require.Equal(t, 1, strings.Count(stdout, "--- PASS: "+name+" "), stdout)
	}
	require.Equal(t, 1, strings.Count(stdout, "--- SKIP: TestSkip"), stdout)

	for name, want := range map[string]string{
		"TestBadError": "rank 1: no such mesh", "TestBadPanic": "rank 2: panic: out of cheese",
		"TestBadFatal": "only here", "TestBadOrder": "the processes run different tests: rank",
	} {
		code, stdout, errs := run("-test.run", name+"|TestSome")
		require.NotZero(t, code, stdout+errs)
		require.Contains(t, stdout, want)
		require.Contains(t, stdout, "--- FAIL: "+name)
	}

	// Without a launcher, the ranks are goroutines.
	alone, err := exec.Command(program, "-test.run", "TestMore|TestOption").CombinedOutput()
	require.NoError(t, err, string(alone))
}
