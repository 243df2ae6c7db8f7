// Trace is a program for tests of gorun -trace. Its first argument says what the ranks do:
//
//	work      send messages around from two goroutines, and call collectives
//	kill R    the same; then rank R sends itself 1000 messages and kills itself
//	spawn     start two more ranks, which work
//	flood N   rank 0 sends itself N messages
//	waits     wait in calls of windows, of recovery and of partitioned operations; 2 ranks
package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/weft-hpc/weft/comm"
)

const rounds = 20

// work makes each rank send rounds messages with each of the tags 1 and 2 to the next rank.
func work(c *comm.Comm) error {
	errs := make(chan error)
	next, last := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
	for tag := 1; tag <= 2; tag++ {
		go func() { // ends after rounds messages, or with the job
			send, recv := []int64{1}, []int64{0}
			for range rounds {
				if _, err := comm.Sendrecv(c, send, next, tag, recv, last, tag); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range 2 {
		if err := <-errs; err != nil {
			return err
		}
	}
	sum := []float64{1}
	for range rounds {
		if err := comm.Allreduce(c, sum, sum, comm.Max); err != nil {
			return err
		}
	}
	return nil
}

// flood makes the rank send itself n messages.
func flood(c *comm.Comm, n int) error {
	send, recv := []int64{1}, []int64{0}
	for range n {
		r := comm.Irecv(c, recv, c.Rank(), 3)
		if err := comm.Send(c, send, c.Rank(), 3); err != nil {
			return err
		}
		if _, err := r.Wait(); err != nil {
			return err
		}
	}
	return nil
}

// waits makes each of two ranks wait in calls of windows, of recovery and of partitioned operations.
func waits(c *comm.Comm) error {
	other := 1 - c.Rank()
	w, err := comm.NewWin[int](c, 1)
	if err != nil {
		return err
	}
	for _, call := range []func() error{
		func() error { return w.Post([]int{other}) }, func() error { return w.Start([]int{other}) }, w.Complete, w.Wait,
		func() error {
			if got, err := w.TryLock(c.Rank(), comm.LockShared); err != nil || !got {
				return fmt.Errorf("TryLock: %v, %w", got, err)
			}
			return w.Unlock(c.Rank())
		},
		w.Free,
		func() error { _, err := c.Agree(1); return err },
		func() error {
			d, err := c.Shrink()
			if err != nil {
				return err
			}
			return d.Free()
		},
		func() error {
			p, err := comm.PsendInit(c, []int{1, 2}, 2, other, 4)
			if err != nil {
				return err
			}
			q, err := comm.PrecvInit(c, []int{0, 0}, 2, other, 4)
			if err != nil {
				return err
			}
			if err := errors.Join(p.Start(), q.Start(), p.ReadyRange(0, 2), p.Wait(), q.Wait()); err != nil {
				return err
			}
			return errors.Join(p.Free(), q.Free())
		},
	} {
		if err := call(); err != nil {
			return err
		}
	}
	return nil
}

func number(i int) int {
	n, err := strconv.Atoi(os.Args[i])
	if err != nil {
		panic(err)
	}
	return n
}

func main() {
	comm.Main(func(c *comm.Comm) error {
		switch os.Args[1] {
		case "kill":
			if err := work(c); err != nil {
				return err
			}
			if c.Rank() == number(2) {
				if err := flood(c, 1000); err != nil {
					return err
				}
				return syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			_, err := comm.Recv(c, []int64{0}, number(2), 9)
			return err
		case "spawn":
			if c.Parent() == nil {
				children, err := c.Spawn(0, comm.Proc{Path: os.Args[0], Args: os.Args[1:], N: 2})
				if err != nil {
					return err
				}
				defer func() { _ = children.Free() }()
			}
			return work(c)
		case "flood":
			if c.Rank() == 0 {
				return flood(c, number(2))
			}
			return nil
		case "work":
			return work(c)
		case "waits":
			return waits(c)
		}
		return fmt.Errorf("%q is none of the modes", os.Args[1])
	})
}
