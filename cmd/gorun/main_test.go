package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// gorun calls run with no input and returns what it does.
func gorun(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer func() { require.NoError(t, null.Close()) }()
	var out, errs bytes.Buffer
	code = run(t.Context(), null, &out, &errs, args, os.Environ())
	return code, out.String(), errs.String()
}

func TestHelp(t *testing.T) {
	for _, flag := range []string{"-h", "-help", "--help"} {
		code, out, errs := gorun(t, flag)
		require.Zero(t, code)
		require.Contains(t, out, "-n, -np N")
		require.Empty(t, errs)
	}
}

func TestVersion(t *testing.T) {
	code, out, _ := gorun(t, "-version")
	require.Zero(t, code)
	require.Regexp(t, `^gorun \S+ go1\.\S+ linux/\w+\n$`, out)
}

func TestInfo(t *testing.T) {
	code, out, errs := gorun(t, "-info")
	require.Zero(t, code)
	require.Contains(t, out, "WEFT_TRANSPORT_USE")
	require.Contains(t, out, "\n\nLIBFABRIC")
	require.Empty(t, errs)
}

// TestDryRun starts nothing: the program does not exist.
func TestDryRun(t *testing.T) {
	code, out, errs := gorun(t, "-dry-run", "-n", "3", "/no/such/program", "-v")
	require.Zero(t, code)
	require.Regexp(t, `(?m)^0-2 +0 +/no/such/program +-v +3 `, out)
	require.Empty(t, errs)
}

func TestBadUsage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.toml")
	require.NoError(t, os.WriteFile(file, []byte("[job]\nnq = 4\n"), 0o600))
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "gorun: expected a program or -config, found neither\n"},
		{[]string{"-n", "0", "true"}, "gorun: -n: expected a number of ranks from 1 to 65536, found \"0\"\n"},
		{[]string{"-config", file}, "gorun: " + file + ":2:1: job.nq: unknown key; did you mean \"np\"?\n"},
	} {
		code, out, errs := gorun(t, test.args...)
		require.Equal(t, exitUsage, code, test.args)
		require.Empty(t, out)
		require.Equal(t, test.want+"gorun -h lists the flags\n", errs)
	}
}

// broken is a pipe whose reader has gone.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestBrokenOutput(t *testing.T) {
	var errs strings.Builder
	for _, flag := range []string{"-h", "-version", "-info"} {
		errs.Reset()
		require.Equal(t, 1, run(t.Context(), nil, broken{}, &errs, []string{flag}, nil), flag)
		require.Contains(t, errs.String(), "gorun: print: ")
	}
}
