//go:build unix

// Package testprog builds the programs that the tests of a package run.
package testprog

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/weft-hpc/weft/internal/tempdir"
)

// Main builds programs into a temporary directory, runs the tests, and removes the directory. It stores the path of
// the directory in dir. Each build has the arguments of a go build, without the flag -o: first the directory in which go runs,
// then flags and packages. Main returns the exit code of the process.
func Main(m *testing.M, prefix string, dir *string, builds ...[]string) int {
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
	return m.Run()
}
