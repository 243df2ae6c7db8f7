//go:build linux

// Rank is a weft program for tests of gorun. Its first argument selects what the ranks do:
//
//	hello           print rank, size, host, epoch and the sum of all ranks
//	work            run collectives and a ring, and check the results
//	wait            print "up" and sleep until a signal ends the rank
//	until EPOCH     like wait, but exit with 0 in that epoch
//	exit R CODE     rank R exits with CODE, the others wait for it
//	leave R         rank R exits with 0 and without Finalize, the others wait
//	kill R          rank R sends itself SIGKILL, the others wait
//	abort R CODE    rank R aborts, the others wait
//	notify N        survive failures until N ranks have failed
//	lines N         write N lines to stdout and N/10 to stderr, without Init
//	catch           print "up", then the first signal, and exit with 0; without Init
//	catch-all       print "up", then every signal; without Init
//	once R          rank R sends itself SIGKILL in the first run; the next run succeeds
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
		case "catch", "catch-all":
			catch(os.Args[1] == "catch")
			return
		}
	}
	c, err := comm.Init(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "rank: init:", err)
		os.Exit(90)
	}
	if err := perform(c); err != nil {
		fmt.Fprintln(os.Stderr, "rank:", err)
		os.Exit(91)
	}
	if err := c.Finalize(); err != nil {
		fmt.Fprintln(os.Stderr, "rank: finalize:", err)
		os.Exit(92)
	}
}

// number returns the i-th argument as a number. If there is no such argument, number returns -1.
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

// perform does what the first argument of the program says.
func perform(c *comm.Comm) error {
	action := "hello"
	if len(os.Args) > 1 {
		action = os.Args[1]
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	switch action {
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
	if err := c.Barrier(); err != nil {
		return awaitKill(err)
	}
	if action == "until" {
		fmt.Printf("rank %d up on %s epoch %d\n", c.Rank(), host, c.Epoch())
		if c.Epoch() < number(2) {
			time.Sleep(time.Hour)
		}
		return c.Barrier()
	}
	if c.Rank() != number(2) || action == "once" && c.Epoch() > 0 {
		fmt.Printf("rank %d up on %s epoch %d\n", c.Rank(), host, c.Epoch())
		if action == "once" && c.Epoch() > 0 {
			return nil
		}
		if action == "wait" {
			time.Sleep(time.Hour)
		}
		return awaitKill(c.Barrier()) // the Barrier returns an error when rank R has failed
	}
	for i := range 12 {
		fmt.Fprintf(os.Stderr, "rank %d: last words %d\n", c.Rank(), i)
	}
	switch action {
	case "exit":
		os.Exit(number(3))
	case "leave":
		os.Exit(0)
	case "kill", "once":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "stay":
		time.Sleep(time.Hour)
	case "abort":
		c.Abort(number(3))
	}
	return fmt.Errorf("unknown action %q", action)
}

// awaitKill handles err, the result of a call. If err is not nil, another rank has failed. Then
// awaitKill sleeps, so that gorun ends this rank; with the argument "once" it returns err instead.
func awaitKill(err error) error {
	if err != nil && os.Args[1] != "once" {
		fmt.Fprintln(os.Stderr, "rank: wait for gorun to end this rank:", err)
		time.Sleep(time.Hour)
	}
	return err
}

// work runs collectives, sends messages around a ring, and checks the results.
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
				return fmt.Errorf("allreduce: element %d is %d, want %d", i, v, want)
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
				return fmt.Errorf("ring: element %d is %d, want %d", i, v, want)
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
			return fmt.Errorf("alltoall: element %d is %d, want %d", i, v, i*n+r)
		}
	}
	if err := c.Barrier(); err != nil {
		return err
	}
	fmt.Printf("rank %d worked\n", r)
	return nil
}

// survive calls Barrier on the ranks that have not failed, again and again, until n ranks have failed.
func survive(c *comm.Comm, n int) error {
	world := c
	fmt.Printf("rank %d up\n", c.Rank())
	for world.Size()-c.Size() < n {
		for {
			err := c.Barrier()
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

// catch prints the signals that this process gets. If once is set, it returns after the first signal.
func catch(once bool) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	fmt.Println("up")
	for s := range signals {
		fmt.Println("caught", s)
		if once {
			return
		}
	}
}

// lines writes n numbered lines to stdout, and n/10 to stderr.
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
