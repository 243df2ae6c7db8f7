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

// Parse parses the flags, which are the same on all ranks. If the user asks for help, Parse prints
// the help and ends the process of every rank with exit code 0. If a flag is wrong, or if wrong
// returns true, Parse prints an error that says what was expected, and ends the processes with exit
// code 2. Only rank 0 prints.
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

// end waits until all ranks have called it, and ends the process.
func end(c *comm.Comm, code int) {
	if err := c.Finalize(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}
