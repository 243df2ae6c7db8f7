package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestExitCodes runs jobs that end in different ways, and checks gorun's exit code and stderr.
func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	require.NoError(t, os.WriteFile(plain, []byte("text\n"), 0o600))
	for _, test := range []struct {
		name string
		args []string
		code int
		says string // text that stderr must contain
	}{
		{"well", []string{"-n", "2", "true"}, 0, ""},
		{"code", []string{"-n", "2", "sh", "-c", "exit 3"}, 3, "3"},
		{"first failure", []string{"sh", "-c", "exit 5", ":", "sh", "-c", "sleep 60"}, 5, "rank 0"},
		{"signal", []string{"-n", "1", "sh", "-c", "kill -TERM $$"}, 143, ""},
		{"kill", []string{"-n", "2", "sh", "-c", "kill -KILL $$"}, 137, ""},
		{"timeout", []string{"-timeout", "200ms", "-n", "2", "sleep", "60"}, 124, "200ms"},
		{"no such program", []string{"-n", "2", filepath.Join(dir, "none")}, 127, "none"},
		{"not in PATH", []string{"no-such-program-anywhere"}, 127, "no-such-program-anywhere"},
		{"not executable", []string{plain}, 126, "plain"},
		{"last stderr", []string{"sh", "-c", "echo the cause >&2; exit 9"}, 9, "the cause"},
	} {
		t.Run(test.name, func(t *testing.T) {
			start := time.Now()
			code, _, errs := gorun(t, test.args...)
			require.Equal(t, test.code, code, errs)
			require.Contains(t, errs, test.says)
			require.Less(t, time.Since(start), 10*time.Second)
		})
	}
}

// TestJobFile runs the job of a job file, and then the same job with flags that must override the
// number of ranks and the value of a variable in the file.
func TestJobFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "job.toml")
	require.NoError(t, os.WriteFile(file, []byte(`
[job]
np = 3
[env]
WORD = "file"
[[app]]
program = "sh"
args = ["-c", "echo $WORD $1", "sh", "tail"]
`), 0o600))
	code, out, errs := gorun(t, "-config", file)
	require.Zero(t, code, errs)
	require.Equal(t, strings.Repeat("file tail\n", 3), out)

	code, out, errs = gorun(t, "-config", file, "-n", "2", "-x", "WORD=flag")
	require.Zero(t, code, errs)
	require.Equal(t, strings.Repeat("flag tail\n", 2), out)
}

// TestPrograms runs two programs in one job. With -tag-output, the lines of the first must have the
// ranks 0 and 1, and the line of the second rank 2. Each program must have its own variables and
// directory.
func TestPrograms(t *testing.T) {
	code, out, errs := gorun(t, "-tag-output", "-n", "2", "-x", "A=1", "sh", "-c", "echo a$A", ":", "-wdir", "/", "pwd")
	require.Zero(t, code, errs)
	require.Len(t, strings.Split(strings.TrimSpace(out), "\n"), 3, out)
	require.Regexp(t, `(?m)^\[0.*a1$`, out)
	require.Regexp(t, `(?m)^\[1.*a1$`, out)
	require.Regexp(t, `(?m)^\[2.* /$`, out)
}
