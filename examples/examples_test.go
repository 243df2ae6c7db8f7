// Package examples_test runs the programs of this folder with gorun, as users do.
package examples_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testprog"
)

// bin is the directory with the built gorun and the built examples.
var bin string

func TestMain(m *testing.M) { os.Exit(run(m)) }

// hostsDown removes the simulated hosts that tests have made. Only files for Linux set it.
var hostsDown = func() error { return nil }

func run(m *testing.M) int {
	tests := func() int {
		code := m.Run()
		if err := hostsDown(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		return code
	}
	return testprog.Main(tests, "weft-examples-", &bin, []string{"..", "./cmd/gorun", "./examples/..."})
}

// gorun runs gorun with these arguments, in the top folder of the project.
func gorun(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "gorun"), args...)
	cmd.Dir = ".."
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "gorun %q: %v", args, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// example runs the example called name with this number of ranks. It must succeed, and example returns its
// output.
func example(t *testing.T, ranks int, name string, args ...string) string {
	t.Helper()
	all := append([]string{"-timeout", "1m", "-np", strconv.Itoa(ranks), filepath.Join(bin, name)}, args...)
	code, out, errs := gorun(t, all...)
	require.Zero(t, code, "gorun %q\n%s%s", all, out, errs)
	return out
}

// TestUsageIsPrintedOnce runs every example on several ranks with -h or a wrong flag. Only rank 0 prints the
// help or the error.
func TestUsageIsPrintedOnce(t *testing.T) {
	programs, err := filepath.Glob("*/main.go")
	require.NoError(t, err)
	programs = slices.DeleteFunc(programs, func(p string) bool {
		_, err := os.Stat(filepath.Join(filepath.Dir(p), "go.mod"))
		return err == nil // a module of its own, with tests of its own
	})
	require.Greater(t, len(programs), 6)
	for _, p := range programs {
		name := filepath.Base(filepath.Dir(p))
		require.Equal(t, 1, strings.Count(example(t, 3, name, "-h"), "Usage of "), name)
		for _, wrong := range []string{"-nosuch", "unexpected"} {
			code, out, errs := gorun(t, "-np", "3", filepath.Join(bin, name), wrong)
			require.Equal(t, 2, code)
			require.Empty(t, out)
			printed := 0
			for line := range strings.Lines(errs) {
				if strings.HasPrefix(line, name+": ") && strings.HasSuffix(line, "; -h lists the flags\n") {
					printed++
				}
			}
			require.Equal(t, 1, printed, errs)
		}
	}
}

func TestExamples(t *testing.T) {
	saved, matrix := filepath.Join(t.TempDir(), "pi.state"), filepath.Join(t.TempDir(), "matrix")
	for _, e := range []struct {
		args []string
		want string
	}{
		{[]string{"allreduce", "-n", "1000", "-reps", "2"}, `^allreduce of 1000 doubles over %d ranks: correct, [0-9.]+ us, [0-9.]+ MB/s\n$`},
		{[]string{"allreduce", "-n", "0"}, `^allreduce of 0 doubles over %d ranks: correct`},
		{[]string{"allreduce", "-n", "300001", "-reps", "1"}, `over %d ranks: correct`},
		{[]string{"pi", "-n", "100000"}, `^pi is about 3\.14159265.*, %d ranks, `},
		{[]string{"pi", "-n", "1"}, `^pi is about 3\.2`},
		{[]string{"ring", "-rounds", "50"}, `^\d+ hops over %d ranks: correct, [0-9.]+ us per hop\n$`},
		{[]string{"heat2d", "-nx", "37", "-ny", "23", "-steps", "20"}, `^37 x 23 cells, 20 steps on .*: equal to the serial solution`},
		{[]string{"heat2d", "-nx", "2", "-ny", "5", "-steps", "3"}, `equal to the serial solution`},
		{[]string{"heat2d", "-nx", "500", "-ny", "4", "-steps", "3"}, `equal to the serial solution`},
		{[]string{"histogram", "-n", "2000"}, `^\d+ numbers of %d ranks in 64 bins: correct, \d+ hits found by FetchOp, `},
		{[]string{"histogram", "-n", "301", "-bins", "2", "-seed", "5"}, `of %d ranks in 2 bins: correct`},
		{[]string{"workqueue", "-n", "3000"}, `^3000 tasks, 24496 divisors, %d ranks: correct, \d+ thefts\n$`},
		{[]string{"survive", "-rounds", "3", "-n", "5000"}, `^pi is about 3\.1415926.*, 3 rounds, %[1]d of %[1]d ranks\n$`},
		{[]string{"restart", "-rounds", "3", "-n", "5000", "-file", saved}, `^epoch 0: %d ranks begin after round 0\npi is about 3\.1415926.*, 3 rounds, epoch 0\n$`},
		{[]string{"matrix", "-rows", "70", "-cols", "41", "-block", "8", "-file", matrix}, `^70 x 41 matrix, blocks of 8 on \d+ x \d+ ranks: read by rows and correct, `},
		{[]string{"matrix", "-rows", "2", "-cols", "3", "-block", "4", "-file", matrix, "-keep"}, `^2 x 3 matrix, .* correct, `},
		{[]string{"elastic", "-n", "20000", "-part", "700"}, `^wave 0: 2 workers found 1229 primes from 0 to 9999\nwave 1: 3 workers found 1033 primes from 10000 to 19999\n2262 primes below 20000\n$`},
		{[]string{"elastic", "-n", "1", "-waves", "1", "-workers", "1"}, `^wave 0: 1 workers found 0 primes from 0 to 0\n0 primes below 1\n$`},
		{[]string{"workqueue", "-n", "1"}, `^1 tasks, 1 divisors, %d ranks: correct`},
	} {
		for ranks := 1; ranks <= 4; ranks++ {
			t.Run(fmt.Sprintf("%s/%d", strings.Join(e.args, " "), ranks), func(t *testing.T) {
				want := e.want
				if strings.Contains(want, "%") {
					want = fmt.Sprintf(want, ranks)
				}
				require.Regexp(t, want, example(t, ranks, e.args[0], e.args[1:]...))
			})
		}
	}
}

// TestTransports runs examples with several values of -transport, and checks which transport connects the
// ranks. In some jobs each rank is a shell that runs two weft programs. The second program cannot use the
// memory file and the port that gorun has made for the rank, and must still work.
func TestTransports(t *testing.T) {
	twice := fmt.Sprintf("%[1]s -n 5000 -reps 2 && %[1]s -n 3 -reps 2", filepath.Join(bin, "allreduce"))
	for _, c := range []struct {
		flags []string
		says  string
	}{
		{nil, "joined by shm (memory of this host) to 2\n"},
		{[]string{"-transport", "shm"}, "joined by shm (memory of this host) to 2\n"},
		{[]string{"-p", "transport.shm.single_copy=off"}, "joined by shm (memory of this host) to 2\n"},
		{[]string{"-transport", "tcp"}, "joined by tcp ("},
		{[]string{"-transport", "tcp,shm"}, "joined by tcp ("},
		{[]string{"-transport", "tcp", "-iface", "lo"}, "joined by tcp ("},
	} {
		for _, program := range [][]string{
			{filepath.Join(bin, "allreduce"), "-n", "100001"}, {filepath.Join(bin, "workqueue"), "-n", "500"},
			{filepath.Join(bin, "heat2d"), "-nx", "37", "-ny", "23", "-steps", "9"}, {"sh", "-c", twice},
		} {
			code, out, errs := gorun(t, slices.Concat(c.flags, []string{"-v", "-timeout", "1m", "-np", "3"}, program)...)
			require.Zero(t, code, "%q: %s%s", program, out, errs)
			times := 1
			if program[0] == "sh" {
				times = 2
			}
			require.Equal(t, times, strings.Count(errs, c.says), errs)
		}
	}
}

// TestFailures has a rank of a job kill itself. With -on-failure notify the others go on, and with -on-failure
// restart gorun starts the job again. The result is right in both cases.
func TestFailures(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		for _, die := range []string{"0", "2"} {
			code, out, errs := gorun(t, "-timeout", "1m", "-transport", transport, "-on-failure", "notify", "-np", "3",
				filepath.Join(bin, "survive"), "-n", "5000", "-die", die)
			require.Zero(t, code, errs)
			require.Regexp(t, `^comm: .*fail.*: 2 of 3 ranks go on\npi is about 3\.1415926.*, 20 rounds, 2 of 3 ranks\n$`, out, errs)
			require.Contains(t, errs, "rank "+die+" was killed by signal 9")
		}
	}
	file := filepath.Join(t.TempDir(), "pi.state")
	code, out, errs := gorun(t, "-timeout", "1m", "-on-failure", "restart", "-np", "3",
		filepath.Join(bin, "restart"), "-n", "5000", "-file", file, "-die", "1")
	require.Zero(t, code, errs)
	require.Regexp(t, `epoch 1: 3 ranks begin after round [67]\npi is about 3\.1415926.*, 20 rounds, epoch 1\n$`, out, errs)
}

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{
		{"allreduce", "-n", "-1"}, {"allreduce", "-n", "many"}, {"allreduce", "data.csv"},
		{"pi", "-n", "0"}, {"ring", "-rounds", "0"}, {"heat2d", "-nx", "0"},
		{"histogram", "-bins", "0"}, {"histogram", "-n", "-1"}, {"workqueue", "-n", "-1"}, {"workqueue", "more"},
		{"survive", "-rounds", "0"}, {"survive", "more"}, {"restart", "-n", "1"}, {"restart", "-file", "x", "-n", "0"},
	} {
		code, out, errs := gorun(t, append([]string{"-np", "2", filepath.Join(bin, args[0])}, args[1:]...)...)
		require.Equal(t, 2, code, "%q: %s", args, errs)
		require.Empty(t, out)
	}
	code, _, errs := gorun(t, "-np", "3", filepath.Join(bin, "heat2d"), "-nx", "2", "-ny", "2")
	require.Equal(t, 1, code)
	require.Contains(t, errs, "cannot divide a plate of 2 x 2 cells among 3 ranks")
}

// TestConfigs runs the jobs that the files in the folder configs describe, libfabric.toml only with
// the build tag libfabric.
func TestConfigs(t *testing.T) {
	files, err := filepath.Glob("../configs/*.toml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		if filepath.Base(file) == "libfabric.toml" && !withLibfabric {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			code, out, errs := gorun(t, "-config", filepath.Join("configs", filepath.Base(file)))
			require.Zero(t, code, errs)
			require.Contains(t, out, "over 4 ranks: correct")
		})
	}
}

// write writes a text to a new temporary file, and returns the path of the file.
func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "data.csv")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// table returns the text of a CSV file with rows of every kind that the example allreduce can read:
// this number of rows, and a long row after each 97th of them.
func table(rows int) string {
	rng := rand.New(rand.NewPCG(3, 4))
	var b strings.Builder
	b.WriteString("name,value,\"wide, quoted\",sparse,huge\r\n")
	for i := range rows {
		fmt.Fprintf(&b, `"n, ""%s""",%v,"%v"`, strings.Repeat("x", i%50), rng.NormFloat64(),
			math.Ldexp(rng.NormFloat64(), rng.IntN(600)-300))
		switch i % 7 {
		case 0:
			b.WriteString(",,-0\n")
		case 1:
			b.WriteString("\n") // a row with fewer cells than columns
		case 2:
			b.WriteString(", NaN , 1e308 \r\n\n") // followed by an empty line, which is not a row
		case 3:
			b.WriteString(",n/a,1e999\n")
		default:
			fmt.Fprintf(&b, ",%d,%v\n", rng.IntN(1000), rng.Float64()*1e-300)
		}
		if i%97 == 0 {
			fmt.Fprintf(&b, "%s,1,2,3,4\n", strings.Repeat("long ", 2000))
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func TestFile(t *testing.T) {
	file := write(t, table(2000))
	alone := example(t, 1, "allreduce", "-file", file)
	require.Regexp(t, `(?m)^column +count +mean +stddev +min +max +missing +not numeric$`, alone)
	require.Regexp(t, `(?m)^value +2021 `, alone)
	require.Regexp(t, `(?m)^wide, quoted +2021 `, alone)
	require.Regexp(t, `(?m)^2021 rows$`, alone)
	require.Contains(t, alone, `without a number: "name"`)
	for _, ranks := range []int{2, 3, 5} {
		require.Equal(t, alone, example(t, ranks, "allreduce", "-file", file), "%d ranks", ranks)
	}
}

func TestSmallFiles(t *testing.T) {
	for _, test := range []struct {
		name, text string
		args       []string
		want       string
	}{
		{"header", "x\n1\n2\n3\n", nil, "x       3      2     1       1    3    0        0\n3 rows\n"},
		{"no header", "1\n2", nil, "1       2      1.5   0.7071067811865476  1    2    0        0\n2 rows\n"},
		{"header said", "1\n2", []string{"-header", "yes"}, "1       1      2     -       2    2    0        0\n1 rows\n"},
		{"header denied", "x\n2", []string{"-header", "no"}, "1       1      2     -       2    2    0        1\n2 rows\n"},
		{"cancel", "x\n1e100\n1\n-1e100\n", nil, "x       3      0.3333333333333333  1e+100  -1e+100  1e+100  0        0\n3 rows\n"},
		{"mark", "\ufeff\"x\"\n5\n", nil, "x       1      5     -       5    5    0        0\n1 rows\n"},
		{"names only", "x,y\n", nil, "0 rows\nwithout a number: \"x\" (0 cells, 0 missing), \"y\" (0 cells, 0 missing)\n"},
		{"columns", "x,y,z\n1,2,3\n", []string{"-columns", "z, x"}, "z       1      3     -       3    3    0        0\nx       1      1     -       1    1    0        0\n1 rows\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			args := append([]string{"-file", write(t, test.text)}, test.args...)
			alone := example(t, 1, "allreduce", args...)
			require.True(t, strings.HasSuffix(alone, test.want), "%s\nnot\n%s", alone, test.want)
			for _, ranks := range []int{2, 3, 5} {
				require.Equal(t, alone, example(t, ranks, "allreduce", args...), "%d ranks", ranks)
			}
		})
	}
}

func TestBadFiles(t *testing.T) {
	rows := strings.Repeat("1,2\n", 1000)
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"missing", []string{"-file", "/no/such/file.csv"}, "open /no/such/file.csv: no such file or directory"},
		{"directory", []string{"-file", t.TempDir()}, "is not a regular file"},
		{"empty", []string{"-file", write(t, "")}, "the file has no rows"},
		{"column", []string{"-file", write(t, "x,y\n1,2\n"), "-columns", "w"}, `no column "w"; the columns are ["x" "y"]`},
		{"wide", []string{"-file", write(t, rows+"1,2,3\n")}, "row at byte 4000 has 3 cells, but the first row has 2"},
		{"open quote", []string{"-file", write(t, rows+"\"1,2\n"+rows)}, "quote"},
		{"line break", []string{"-file", write(t, rows+"1,\"a\nb\"\n"+rows)}, "line break"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, ranks := range []int{1, 2, 3} {
				code, out, errs := gorun(t, append([]string{"-timeout", "1m", "-np", strconv.Itoa(ranks), filepath.Join(bin, "allreduce")}, test.args...)...)
				require.Equal(t, 1, code, errs)
				require.Empty(t, out)
				require.Contains(t, errs, test.want)
			}
		})
	}
}
