//go:build unix

// Package testprog builds the programs that the tests of a package run.
package testprog

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/weft-hpc/weft/internal/tempdir"
)

// Main builds programs into a temporary directory, calls run, which runs the tests (testing.M.Run), and removes the
// directory. It stores the path of the directory in dir. Each element of builds has the directory in which go build
// runs, and then its flags and packages, without -o. Main returns the exit code of the process: the result of run, or 1.
func Main(run func() int, prefix string, dir *string, builds ...[]string) int {
	d, err := tempdir.Make(prefix)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = d.Remove() }() // if this fails, a temporary directory is left
	*dir = d.Path
	for _, b := range builds {
		cmd := exec.Command("go", append([]string{"build", "-o", d.Path}, b[1:]...)...)
		cmd.Dir = b[0]
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v in %s: %v\n%s", cmd.Args, b[0], err, out)
			return 1
		}
	}
	return run()
}
