// Workqueue shares tasks of different length out to the ranks, who steal from
// each other when they run out, without the owner's help.
//
//	gorun -np 4 ./examples/workqueue -n 20000
//
// A task is a number, and its work to count its divisors, one by one: later
// tasks take longer. Every rank has a queue of consecutive tasks, which is one
// word in a window, first task and end, that is only ever changed by
// CompareSwap, or by its owner when it is empty:
//
//	owner takes the first   next│end ──► next+1│end
//	thief takes half        next│end ──► next│middle   and has middle … end itself
//
// Rank 0 does all tasks once more by itself and compares.
package main

import (
	"flag"
	"fmt"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/examples/internal/args"
)

func main() {
	n := flag.Int("n", 5000, "`tasks`")
	comm.Main(func(c *comm.Comm) error {
		args.Parse(c, "-n from 0 to 2147483647 and nothing else", func() bool {
			return flag.NArg() > 0 || *n < 0 || *n > 1<<31-1
		})
		return run(c, *n)
	})
}

// pack makes a queue's word of its first task and its end.
func pack(next, end int) uint64 { return uint64(next)<<32 | uint64(end) }

func unpack(q uint64) (next, end int) { return int(q >> 32), int(q & (1<<32 - 1)) }

// work is what a task does.
func work(task int) (divisors int) {
	for d := 1; d <= task+1; d++ {
		if (task+1)%d == 0 {
			divisors++
		}
	}
	return divisors
}

func run(c *comm.Comm, n int) error {
	rank, size := c.Rank(), c.Size()
	w, err := comm.NewWin[uint64](c, 1)
	if err != nil {
		return err
	}
	w.Local()[0] = pack(n*rank/size, n*(rank+1)/size)
	if err := comm.Barrier(c); err != nil { // all queues are there
		return err
	}
	if err := w.LockAll(); err != nil {
		return err
	}
	done := make([]int, 3) // tasks, divisors, thefts
	for victim := rank; ; {
		stolen, err := take(w, rank, victim, done)
		if err != nil {
			return err
		}
		if stolen {
			victim = rank // whose queue is full again
			continue
		}
		if victim = (victim + 1) % size; victim == rank {
			break // nothing is left anywhere, or somebody has just taken it
		}
	}
	if err := w.UnlockAll(); err != nil {
		return err
	}
	if err := comm.Reduce(c, done, done, comm.Sum, 0); err != nil {
		return err
	}
	if rank == 0 {
		want := 0
		for task := range n {
			want += work(task)
		}
		if done[0] != n || done[1] != want {
			return fmt.Errorf("%d tasks with %d divisors were done, not %d with %d", done[0], done[1], n, want)
		}
		fmt.Printf("%d tasks, %d divisors, %d ranks: correct, %d thefts\n", n, want, size, done[2])
	}
	return w.Free()
}

// take empties the rank's own queue, or steals half of a victim's, and says
// whether it got anything.
func take(w *comm.Win[uint64], rank, victim int, done []int) (bool, error) {
	took := false
	queue, err := w.FetchOp(0, victim, 0, comm.NoOp) // reads it
	for err == nil {
		next, end := unpack(queue)
		if next >= end {
			return took, nil
		}
		rest := pack(next+1, end)
		if victim != rank {
			rest = pack(next, next+(end-next)/2)
		}
		var was uint64
		if was, err = w.CompareSwap(queue, rest, victim, 0); err != nil {
			break
		}
		switch {
		case was != queue: // another was faster
			queue = was
		case victim != rank:
			_, middle := unpack(rest)
			done[2]++
			_, err = w.FetchOp(pack(middle, end), rank, 0, comm.Replace) // where others may steal of it
			return err == nil, err
		default:
			done[0]++
			done[1] += work(next)
			queue, took = rest, true
		}
	}
	return took, err
}
