//go:build linux

// Up makes the hosts of package testbed and keeps them until it is interrupted:
//
//	go run ./internal/testbed/up 4 --slurm
//
// It prints how to reach them. Only root can run it.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/weft-hpc/weft/internal/testbed"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	os.Exit(run(os.Stdout, os.Stderr, os.Args[1:], end))
}

func run(stdout, stderr io.Writer, args []string, end <-chan os.Signal) int {
	flags := flag.NewFlagSet("up", flag.ContinueOnError)
	flags.SetOutput(stderr)
	slurm := flags.Bool("slurm", false, "also start Slurm over the hosts")
	flags.Usage = func() {
		fmt.Fprintf(stderr, "usage: up [-slurm] [hosts, 1 to %d]\n", testbed.MaxHosts)
		flags.PrintDefaults()
	}
	n := 4
	if flags.Parse(args) != nil {
		return 2
	}
	if flags.NArg() > 0 { // flags may follow the number, too
		var err error
		if n, err = strconv.Atoi(flags.Arg(0)); err != nil || n < 1 || n > testbed.MaxHosts {
			flags.Usage()
			return 2
		}
		if flags.Parse(flags.Args()[1:]) != nil {
			return 2
		}
	}
	if flags.NArg() > 0 {
		flags.Usage()
		return 2
	}

	code := 0
	text, err := up(n, *slurm)
	if err == nil {
		fmt.Fprint(stdout, text)
		<-end
	}
	for _, err := range []error{err, testbed.Down()} {
		if err != nil {
			fmt.Fprintln(stderr, err)
			code = 1
		}
	}
	return code
}

// up makes n hosts and, if slurm is set, starts Slurm. It returns a text that says how to use them.
func up(n int, slurm bool) (string, error) {
	c, err := testbed.Open(n)
	if err != nil {
		return "", err
	}
	var s strings.Builder
	fmt.Fprintln(&s, "hosts    ", strings.Join(c.Names(), " "))
	fmt.Fprintln(&s, "enter    ", c.SSH(), c.Names()[0])
	fmt.Fprintln(&s, "private  ", c.Private(), "is a different directory in each host")
	fmt.Fprintln(&s, "for tests", c.Unused(), "does not exist,", c.BlackHole(), "never answers,", c.PasswordHost(), "requires a password")
	if slurm {
		env, err := c.StartSlurm()
		if err != nil {
			return "", err
		}
		fmt.Fprintln(&s, "Slurm    ", "export", strings.Join(env, " "))
	}
	fmt.Fprintln(&s, "^C removes them")
	return s.String(), nil
}
