package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// gorun calls run with the arguments args and with empty standard input. It returns the exit code,
// stdout and stderr.
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
	require.Regexp(t, `^gorun \S+ go1\.\S+ linux/\w+ sha256:[0-9a-f]{64}\n$`, out)
	code, hash, _ := gorun(t, "-agent", "-hash")
	require.Zero(t, code)
	if hash != "" { // usually empty, because -agent writes to os.Stdout and not to the stdout that run gets
		require.Contains(t, out, strings.TrimSpace(hash))
	}
}

func TestInfo(t *testing.T) {
	code, out, errs := gorun(t, "-info")
	require.Zero(t, code)
	require.Contains(t, out, "WEFT_TRANSPORT_USE")
	require.Contains(t, out, "\n\nLIBFABRIC")
	require.Empty(t, errs)
}

// TestInfoOf: -info with words must print only the entries whose names contain one of the words,
// and fail if there are none. Without words, its lines before the part about libfabric must have at
// most 101 characters with the newline, except for the longest list of algorithms.
func TestInfoOf(t *testing.T) {
	_, all, _ := gorun(t, "-info")
	for line := range strings.Lines(all[:strings.Index(all, "\n\nLIBFABRIC")]) {
		if !strings.HasPrefix(line, "bcast ") { // Bcast has the longest list of algorithms
			require.LessOrEqual(t, utf8.RuneCountInString(line), 101, line)
		}
	}
	for words, want := range map[string][]string{
		"tcp":            {"TRANSPORT  BETWEEN\ntcp ", "transport.tcp.interface = - (default)\n    WEFT_TRANSPORT_TCP_INTERFACE\n    network interface"},
		"COLL":           {"COLLECTIVE  ", "\nscan ", "coll.shared_memory = 1m bytes (default)"},
		"job.np timeout": {"job.timeout = 0s (default)", "transport.tcp.connect_timeout = 30s (default)"},
		"WEFT_JOB_GRACE": {"job.grace = 1s (default)"},
		"providers":      {"LIBFABRIC"},
	} {
		code, out, errs := gorun(t, append([]string{"-info"}, strings.Fields(words)...)...)
		require.Zero(t, code, errs)
		for _, w := range want {
			require.Contains(t, out, w)
		}
		require.NotContains(t, out, "job.report")
		require.Less(t, len(out), len(all)/2)
	}
	_, out, _ := gorun(t, "-info", "-timeout", "1m", "job.timeout")
	require.Contains(t, out, "job.timeout = 1m0s (flag; default 0s)\n")
	code, out, errs := gorun(t, "-info", "nosuch", "none")
	require.Equal(t, exitUsage, code)
	require.Empty(t, out)
	require.Equal(t, "gorun: -info: nothing has \"nosuch none\" in its name; gorun -info alone lists all\n", errs)
}

// TestDryRun: -dry-run must print the ranks and the program, and must not run the program.
func TestDryRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	code, out, errs := gorun(t, "-dry-run", "-n", "3", "touch", file)
	require.Zero(t, code)
	require.Regexp(t, `(?m)^0-2 +0 +touch +\S+ +3 `, out)
	require.Empty(t, errs)
	require.NoFileExists(t, file)
}

// TestDryRunOfAMissingProgram: if a program is missing or cannot be executed, -dry-run must still
// print the job, and then fail with the exit code and message of the job itself.
func TestDryRunOfAMissingProgram(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "text"), nil, 0o600))
	for name, want := range map[string]struct {
		code int
		says string
	}{
		"/no/such/program": {127, "gorun: /no/such/program: no such file or directory\n"},
		"no-such-program":  {127, "gorun: no-such-program: command not found\n"},
		dir + "/text":      {126, "gorun: " + dir + "/text: permission denied\n"},
		dir:                {126, "gorun: " + dir + ": is a directory without Go files\n"},
	} {
		code, out, errs := gorun(t, "-dry-run", "true", ":", name)
		require.Equal(t, want.code, code, name)
		require.Contains(t, out, "launcher: local")
		require.Equal(t, want.says, errs)
	}
}

// TestPlacementComesFirst: -dry-run must print where the ranks run, and after that only the
// settings that are not at their defaults.
func TestPlacementComesFirst(t *testing.T) {
	_, out, _ := gorun(t, "-dry-run", "-n", "3", "-host", "localhost:3", "-timeout", "1m", "true")
	before, settings, ok := strings.Cut(out, "\nSETTING")
	require.True(t, ok, out)
	require.Contains(t, before, "PER HOST")
	require.Contains(t, settings, "job.timeout  1m0s   flag")
	require.NotContains(t, out, "default ")
	require.Less(t, strings.Count(out, "\n"), 18)
}

// TestHostsAreFilled: if the user gives hosts, one program and no number of ranks, gorun must start
// one rank for each slot of the hosts, and must print a note about that. Otherwise it must start as
// many ranks as -np says, or one rank of each program.
func TestHostsAreFilled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts")
	require.NoError(t, os.WriteFile(file, []byte("localhost slots=3\n"), 0o600))
	jobFile := filepath.Join(t.TempDir(), "job.toml")
	require.NoError(t, os.WriteFile(jobFile, []byte("[[host]]\nname=\"localhost\"\nslots=3\n[[app]]\nprogram=\"echo\"\nargs=[\"x\"]\n"), 0o600))
	const note = "gorun: note: no number of ranks is given: 3 ranks on 1 host; -n N sets another number\n"
	for _, test := range []struct {
		args  []string
		ranks int
		says  string
	}{
		{[]string{"-hostfile", file, "echo", "x"}, 3, note}, {[]string{"-host", "localhost:3", "echo", "x"}, 3, note}, {[]string{"-config", jobFile}, 3, note},
		{[]string{"-hostfile", file, "-map-by", "ppr:3:node", "echo", "x"}, 3, note},
		{[]string{"-hostfile", file, "-np", "1", "echo", "x"}, 1, ""}, {[]string{"echo", "x"}, 1, ""},
		{[]string{"-hostfile", file, "echo", "x", ":", "echo", "x"}, 2, ""},
	} {
		code, out, errs := gorun(t, test.args...)
		require.Zero(t, code, errs)
		require.Equal(t, strings.Repeat("x\n", test.ranks), out, "%v", test.args)
		require.Equal(t, test.says, errs)
	}
	code, out, _ := gorun(t, "-dry-run", "-hostfile", file, "echo", "x")
	require.Zero(t, code)
	require.Regexp(t, `(?m)^0-2 +0 +echo +x +3 `, out)
	require.Contains(t, out, strings.TrimPrefix(note, "gorun: "))
}

// TestWarnings: gorun must warn about variables named WEFT_... that have no effect, in its own
// environment and in those of the ranks. It must also warn about -np with a number after the name
// of the only program, unless gorun itself has got -np.
func TestWarnings(t *testing.T) {
	for _, v := range []string{"WEFT_JOB_TIMOUT", "WEFT_TRANSPORT", "WEFT_IFACE", "WEFT_JOB_GRACE"} {
		t.Setenv(v, "9s")
	}
	const read = "gorun: warning: %s is set, and nothing reads it; did you mean %s?\n"
	want := fmt.Sprintf(read, "WEFT_IFACE", "WEFT_TRANSPORT_TCP_INTERFACE") + fmt.Sprintf(read, "WEFT_JOB_TIMOUT", "WEFT_JOB_TIMEOUT") +
		fmt.Sprintf(read, "WEFT_TRANSPORT", "WEFT_TRANSPORT_USE") +
		"gorun: warning: WEFT_ENGINE_EAGER_LIMIT has no effect as a variable of ranks, because ranks get tunables from gorun; use -p engine.eager_limit=VALUE\n" +
		"gorun: warning: WEFT_JOB_STDIN has no effect as a variable of ranks, because gorun reads it from its own environment\n" +
		fmt.Sprintf(read, "WEFT_VERBOS", "WEFT_VERBOSE") +
		"gorun: warning: -np 4 is an argument of true here, because gorun's flags come before the program: gorun -np 4 true\n"
	args := []string{"-x", "WEFT_ENGINE_EAGER_LIMIT=1", "-x", "WEFT_JOB_STDIN=1", "-x", "WEFT_VERBOS=1", "-x", "WEFT_VERBOSE=0", "true", "-np", "4"}
	for _, action := range [][]string{nil, {"-dry-run"}} {
		code, _, errs := gorun(t, append(action, args...)...)
		require.Zero(t, code)
		require.Equal(t, want, errs)
	}
	for _, args := range [][]string{{"-np", "1", "true", "-np", "4"}, {"true", "-np"}, {"true", "-np", "x"}, {"true", ":", "true", "-np", "4"}} {
		_, _, errs := gorun(t, args...)
		require.NotContains(t, errs, "-np")
	}
}

// TestInterfaceIsChecked: if the host does not have the interface, address or subnet of -iface,
// gorun must exit with 2 and start no rank, even if the ranks share memory. If an environment
// variable has a wrong name instead, gorun must exit with 2 only if the ranks use tcp.
func TestInterfaceIsChecked(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	for iface, says := range map[string]string{
		"nosuch0": "\"nosuch0\" is no interface, address or subnet of this host", "240.0.0.0/24": "no address of this host is in 240.0.0.0/24",
		"240.0.0.1": "cannot assign requested address",
	} {
		for _, use := range []string{"tcp", "shm,tcp"} {
			code, _, errs := gorun(t, "-n", "2", "-transport", use, "-iface", iface, "touch", file)
			require.Equal(t, exitUsage, code, errs)
			require.Contains(t, errs, "gorun: -iface (transport.tcp.interface): ")
			require.Contains(t, errs, says)
			require.NoFileExists(t, file)
		}
	}
	code, _, errs := gorun(t, "-n", "2", "-transport", "tcp", "-iface", "lo", "touch", file)
	require.Zero(t, code, errs)
	require.FileExists(t, file)
	t.Setenv("WEFT_TRANSPORT_TCP_INTERFACE", "nosuch0")
	code, _, errs = gorun(t, "-n", "2", "true")
	require.Zero(t, code, errs)
	code, _, _ = gorun(t, "-n", "2", "-transport", "tcp", "true")
	require.Equal(t, exitUsage, code)
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

// broken is a writer whose Write always fails.
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
