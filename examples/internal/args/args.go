// Package args parses the command lines of the examples.
package args

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/weft-hpc/weft/comm"
)

// Parse parses the command line into the flags that the program has defined. The command line is the same
// on all ranks. If it asks for help, rank 0 prints the help, and all processes end with exit code 0. If a
// flag is wrong, or wrong returns true, rank 0 prints an error that contains the text expected, and all
// processes end with exit code 2. All ranks must call Parse.
func Parse(c *comm.Comm, expected string, wrong func() bool) {
	f := flag.CommandLine
	f.Init(os.Args[0], flag.ContinueOnError)
	f.SetOutput(io.Discard)
	err := f.Parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		if c.Rank() == 0 {
			f.SetOutput(os.Stdout)
			flag.Usage()
		}
		end(c, 0)
	case err == nil && wrong():
		err = errors.New("expected " + expected)
	}
	if err != nil {
		if c.Rank() == 0 {
			fmt.Fprintf(os.Stderr, "%s: %v; -h lists the flags\n", filepath.Base(os.Args[0]), err)
		}
		end(c, 2)
	}
}

// end waits until all ranks have called end, and then ends the process.
func end(c *comm.Comm, code int) {
	if err := c.Finalize(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}
