// Workqueue teaches CompareSwap and FetchOp: ranks steal work from each other. Each rank has a
// queue of tasks. A rank whose queue is empty takes half of another rank's tasks, without any call by
// that other rank.
//
//	gorun -np 4 ./examples/workqueue -n 20000
//
// A task is a number, and its work is to count the number's divisors, so later tasks take longer. A
// queue is a range of consecutive tasks. One word of a window holds both its first task (next) and its
// end. Ranks change a word only by CompareSwap, so no task is taken twice. There is one exception: a rank
// that has stolen tasks sets the word of its own queue, which is empty, by FetchOp.
//
//	the owner takes the first task   next│end ──► next+1│end
//	another rank steals half         next│end ──► next│middle   and sets its own word to middle│end
//
// At the end rank 0 does all tasks by itself and compares.
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
		args.Parse(c, "-n from 0 to 2147483647 and no arguments", func() bool {
			return flag.NArg() > 0 || *n < 0 || *n > 1<<31-1
		})
		return run(c, *n)
	})
}

// pack returns the word of the queue with the first task next and the end end.
func pack(next, end int) uint64 { return uint64(next)<<32 | uint64(end) }

func unpack(q uint64) (next, end int) { return int(q >> 32), int(q & (1<<32 - 1)) }

// work does a task: it counts the divisors of task+1.
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
	if err := c.Barrier(); err != nil { // returns when all ranks have filled their queues
		return err
	}
	if err := w.LockAll(); err != nil {
		return err
	}
	done := make([]int, 3) // what this rank has done: tasks, divisors counted, thefts
	for victim := rank; ; {
		stolen, err := take(w, rank, victim, done)
		if err != nil {
			return err
		}
		if stolen {
			victim = rank // the rank's own queue has tasks again
			continue
		}
		if victim = (victim + 1) % size; victim == rank {
			break // all queues are empty; tasks that a rank has just stolen are done by that rank
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
			return fmt.Errorf("the ranks have done %d tasks with %d divisors, want %d with %d", done[0], done[1], n, want)
		}
		fmt.Printf("%d tasks, %d divisors, %d ranks: correct, %d thefts\n", n, want, size, done[2])
	}
	return w.Free()
}

// take gets tasks from the queue of the rank victim. If victim is this rank, take takes and does
// one task after another until the queue is empty. If victim is another rank, take moves half of
// its tasks to this rank's queue. take reports whether it got any task.
func take(w *comm.Win[uint64], rank, victim int, done []int) (bool, error) {
	took := false
	queue, err := w.FetchOp(0, victim, 0, comm.NoOp) // with NoOp, FetchOp only reads the word
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
		case was != queue: // another rank has changed the queue
			queue = was
		case victim != rank:
			_, middle := unpack(rest)
			done[2]++
			_, err = w.FetchOp(pack(middle, end), rank, 0, comm.Replace) // other ranks may now steal these tasks
			return err == nil, err
		default:
			done[0]++
			done[1] += work(next)
			queue, took = rest, true
		}
	}
	return took, err
}
