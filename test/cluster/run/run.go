//go:build linux

// Package run has gorun run jobs on the hosts of a testbed, for tests of several
// packages: it builds gorun and programs, runs them with a limit of time, and looks
// for what they leave.
//
//	func TestMain(m *testing.M) { run.Main(m) }
//
//	func TestHello(t *testing.T) {
//		c := testbed.Up(t, 2)
//		run.NothingLeft(t, c) // looks when the test ends
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

	"github.com/weft-hpc/weft/internal/testbed"
)

// module is the path that all packages of the module begin with.
const module = "github.com/weft-hpc/weft/"

// dir has the programs, for as long as the tests of the package run. All hosts see
// it.
var dir string

// Main is for TestMain: it builds gorun, the program of [Rank] and packages of this
// module, as "examples/survive", runs the tests, removes all and exits.
func Main(m *testing.M, packages ...string) { os.Exit(mainCode(m, packages)) }

func mainCode(m *testing.M, packages []string) (code int) {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		if signal.Ignored(s) { // as under nohup: what is started here is to begin as from a shell
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	if os.Geteuid() != 0 { // every test is skipped
		return m.Run()
	}
	var err error
	if dir, err = os.MkdirTemp("", "weft-cluster-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := errors.Join(testbed.Down(), os.RemoveAll(dir)); err != nil {
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
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // as the tests may run with -race
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// Program is the path of a program that Main has built, by the last word of its
// package's path.
func Program(name string) string { return filepath.Join(dir, name) }

// Rank is the path of a program whose ranks do what their first argument says: see
// the directory rank.
func Rank() string { return Program("rank") }

// Copy copies a program to a path, as one that no host sees.
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
