//go:build linux

// Rank is a program of weft whose ranks do what the first argument says, for tests
// of gorun.
//
//	hello           rank, size, host, epoch and world, when all have been heard of
//	work            collectives and a ring, checked
//	wait            nothing for ever, after saying "up"
//	until EPOCH     as wait, but well ended in that epoch
//	exit R CODE     rank R leaves so, the others wait for it
//	leave R         rank R leaves with 0 and without Finalize, the others wait
//	kill R          rank R gets SIGKILL from itself, the others wait
//	abort R CODE    rank R aborts, the others wait
//	notify N        goes on until N ranks have failed
//	lines N         N lines to stdout and N/10 to stderr, without Init
//	heed            says "up", and then which signal has come, and leaves with 0; without Init
//	heedless        says so of each that comes, and stays; without Init
//	once R          rank R gets SIGKILL in the first run; in the next all is well
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/test/cluster/run/line"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "lines":
			lines(number(2))
			return
		case "heed", "heedless":
			heed(os.Args[1] == "heed")
			return
		}
	}
	c, err := comm.Init(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "rank: init:", err)
		os.Exit(90)
	}
	if err := act(c); err != nil {
		fmt.Fprintln(os.Stderr, "rank:", err)
		os.Exit(91)
	}
	if err := c.Finalize(); err != nil {
		fmt.Fprintln(os.Stderr, "rank: finalize:", err)
		os.Exit(92)
	}
}

// number is argument i; -1: there is none.
func number(i int) int {
	if i >= len(os.Args) {
		return -1
	}
	n, err := strconv.Atoi(os.Args[i])
	if err != nil {
		return -1
	}
	return n
}

func act(c *comm.Comm) error {
	what := "hello"
	if len(os.Args) > 1 {
		what = os.Args[1]
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	switch what {
	case "hello":
		sum := []int{0}
		if err := comm.Allreduce(c, []int{c.Rank()}, sum, comm.Sum); err != nil {
			return err
		}
		fmt.Printf("rank %d of %d on %s epoch %d sum %d\n", c.Rank(), c.Size(), host, c.Epoch(), sum[0])
		return nil
	case "work":
		return work(c)
	case "notify":
		return survive(c, number(2))
	}
	if err := comm.Barrier(c); err != nil {
		return heard(err)
	}
	if what == "until" {
		fmt.Printf("rank %d up on %s epoch %d\n", c.Rank(), host, c.Epoch())
		if c.Epoch() < number(2) {
			time.Sleep(time.Hour)
		}
		return comm.Barrier(c)
	}
	if c.Rank() != number(2) || what == "once" && c.Epoch() > 0 {
		fmt.Printf("rank %d up on %s epoch %d\n", c.Rank(), host, c.Epoch())
		if what == "once" && c.Epoch() > 0 {
			return nil
		}
		if what == "wait" {
			time.Sleep(time.Hour)
		}
		return heard(comm.Barrier(c)) // which does not end well
	}
	for i := range 12 {
		fmt.Fprintf(os.Stderr, "rank %d: last words %d\n", c.Rank(), i)
	}
	switch what {
	case "exit":
		os.Exit(number(3))
	case "leave":
		os.Exit(0)
	case "kill", "once":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "abort":
		c.Abort(number(3))
	}
	return fmt.Errorf("no act %q", what)
}

// heard stays when another rank has failed: it is for gorun to end this, and to say
// why. In "once" it does not.
func heard(err error) error {
	if err != nil && os.Args[1] != "once" {
		fmt.Fprintln(os.Stderr, "rank: heard of it:", err)
		time.Sleep(time.Hour)
	}
	return err
}

// work runs collectives and sends around a ring, and checks what comes.
func work(c *comm.Comm) error {
	r, n := c.Rank(), c.Size()
	for _, length := range []int{1, 1000, 100_000} {
		send, sum := make([]int, length), make([]int, length)
		for i := range send {
			send[i] = r*i + 1
		}
		if err := comm.Allreduce(c, send, sum, comm.Sum); err != nil {
			return err
		}
		for i, v := range sum {
			if want := n*(n-1)/2*i + n; v != want {
				return fmt.Errorf("allreduce: element %d is %d and not %d", i, v, want)
			}
		}
		next, prev := (r+1)%n, (r+n-1)%n
		req := comm.Isend(c, send, next, 7)
		if _, err := comm.Recv(c, sum, prev, 7); err != nil {
			return err
		}
		if err := comm.WaitAll([]comm.Request{req}); err != nil {
			return err
		}
		for i, v := range sum {
			if want := prev*i + 1; v != want {
				return fmt.Errorf("ring: element %d is %d and not %d", i, v, want)
			}
		}
	}
	all, mine := make([]int, n), make([]int, n)
	for i := range mine {
		mine[i] = r*n + i
	}
	if err := comm.Alltoall(c, mine, all); err != nil {
		return err
	}
	for i, v := range all {
		if v != i*n+r {
			return fmt.Errorf("alltoall: element %d is %d and not %d", i, v, i*n+r)
		}
	}
	if err := comm.Barrier(c); err != nil {
		return err
	}
	fmt.Printf("rank %d worked\n", r)
	return nil
}

// survive goes on until n ranks have failed.
func survive(c *comm.Comm, n int) error {
	world := c
	fmt.Printf("rank %d up\n", c.Rank())
	for world.Size()-c.Size() < n {
		for {
			err := comm.Barrier(c)
			if err == nil {
				time.Sleep(time.Millisecond)
				continue
			}
			if !errors.Is(err, comm.ErrProcFailed) && !errors.Is(err, comm.ErrRevoked) {
				return err
			}
			if err := c.Revoke(); err != nil {
				return err
			}
			break
		}
		next, err := c.Shrink()
		if err != nil {
			return err
		}
		c = next
	}
	fmt.Printf("rank %d goes on as %d of %d\n", world.Rank(), c.Rank(), c.Size())
	return nil
}

// heed says which signals come.
func heed(leave bool) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	fmt.Println("up")
	for s := range signals {
		fmt.Println("heard", s)
		if leave {
			return
		}
	}
}

// lines writes lines that say which they are.
func lines(n int) {
	rank := os.Getenv("PMI_RANK")
	out := bufio.NewWriter(os.Stdout)
	for i := range n {
		fmt.Fprintf(out, "out %s %d %s\n", rank, i, strings.Repeat("x", line.Length(i)))
		if i%10 == 0 {
			fmt.Fprintf(os.Stderr, "err %s %d %s\n", rank, i/10, strings.Repeat("x", line.Length(i/10)))
		}
	}
	if err := out.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, "rank:", err)
		os.Exit(93)
	}
}
