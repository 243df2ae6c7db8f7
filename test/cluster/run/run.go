//go:build linux

// Package run runs gorun on the hosts of a testbed, for the tests of several packages. It builds
// gorun and other programs, runs them with a time limit, and checks that they leave nothing behind.
//
//	func TestMain(m *testing.M) { run.Main(m) }
//
//	func TestHello(t *testing.T) {
//		c := testbed.Up(t, 2)
//		run.NothingLeft(t, c) // checks at the end of the test
//		r := run.Gorun(t, "-ssh", c.SSH(), "-host", strings.Join(c.Names(), ","), "-np", "2", run.Rank(), "hello")
//		require.Zero(t, r.Code, r.Stderr)
//	}
package run

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/weft-hpc/weft/internal/tempdir"
	"github.com/weft-hpc/weft/internal/testbed"
)

// module is the prefix of the paths of this module's packages.
const module = "github.com/weft-hpc/weft/"

// dir is the directory of the programs that Main has built. All hosts see it.
var dir string

// Main builds gorun, the program of [Rank], and the given packages of this module, such as
// "examples/survive". Then it runs the tests, removes the programs and the hosts, and exits. A test
// package must call Main in its TestMain.
func Main(m *testing.M, packages ...string) { os.Exit(mainCode(m, packages)) }

func mainCode(m *testing.M, packages []string) (code int) {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		// A signal is ignored for example under nohup. A signal that this process catches is not
		// ignored in child processes.
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	if os.Geteuid() != 0 { // without root every test is skipped, so no program is needed
		return m.Run()
	}
	made, err := tempdir.Make("weft-cluster-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir = made.Path
	defer func() {
		if err := errors.Join(testbed.Down(), made.Remove()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}()
	if err := build(append([]string{"cmd/gorun", "test/cluster/run/rank"}, packages...)...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func build(packages ...string) error {
	args := []string{"build", "-o", dir + "/"}
	for _, p := range packages {
		args = append(args, module+p)
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // for programs without cgo, also if the tests run with -race
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// Program returns the path of a program that Main has built. name is the last element of the path of the
// program's package.
func Program(name string) string { return filepath.Join(dir, name) }

// Rank returns the path of the weft program in the directory rank. The program's first argument selects
// what the ranks do.
func Rank() string { return Program("rank") }

// Copy copies a program to the path to, for example one that no host sees, and returns that path. The
// test's cleanup removes the copy.
func Copy(t testing.TB, from, to string) string {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(to) })
	return to
}
