// Up keeps a cluster of package testbed until it is interrupted:
//
//	go run ./internal/testbed/up -n 4 -slurm
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/weft-hpc/weft/internal/testbed"
)

func main() {
	n := flag.Int("n", 4, fmt.Sprintf("how many hosts, 1 to %d", testbed.MaxHosts))
	slurm := flag.Bool("slurm", false, "with Slurm over them")
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := up(*n, *slurm)
	if err == nil {
		<-end
	}
	for _, err := range []error{err, testbed.Down()} {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			defer os.Exit(1)
		}
	}
}

func up(n int, slurm bool) error {
	c, err := testbed.Open(n)
	if err != nil {
		return err
	}
	fmt.Println("hosts   ", strings.Join(c.Names(), " "))
	fmt.Println("ssh     ", c.SSH(), c.Names()[0])
	fmt.Println("private ", c.Private(), "in each host")
	fmt.Println("none    ", c.Unused(), "(no host),", c.BlackHole(), "(never answers),", c.PasswordHost(), "(wants a password)")
	if slurm {
		env, err := c.StartSlurm()
		if err != nil {
			return err
		}
		fmt.Println("Slurm   ", "export", strings.Join(env, " "))
	}
	fmt.Println("^C removes it all")
	return nil
}
