// Rank is a rank of a random job. It draws operations from a seed that all ranks share, and
// compares the result of each operation with a result that it computes by itself.
//
//	gorun -np 5 ./bench/stress/rank -seed 7 -ops 30
//
// The operations depend only on the seed and the number of ranks. What a rank may choose for itself
// (the order in which it waits, where its buffers lie, how it probes) depends on its rank, too. An
// error reports the seed, the operation and the difference, and ends the job. On SIGUSR1 a rank
// prints its current operation.
//
// With -ops 0 the job runs until a failure, and each rank prints its process id. With -survive a rank
// ignores SIGTERM; if a call fails, the rank prints the time and the error, stops, and exits with 0.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/weft-hpc/weft/comm"
)

// options are the command line.
type options struct {
	seed    uint64
	first   int // the first operation; earlier ones are skipped
	end     int // the operation to stop before; 0: run until a failure
	bytes   int // about the most that an operation may transfer
	survive bool
	crowds  bool
}

func main() {
	var o options
	flag.Uint64Var(&o.seed, "seed", 1, "`seed` of the random operations")
	flag.IntVar(&o.first, "first", 0, "the `operation` to start with")
	flag.IntVar(&o.end, "ops", 30, "the `operation` to stop before; 0: run until a failure")
	flag.IntVar(&o.bytes, "bytes", 8<<20, "`bytes` that an operation may transfer between all ranks, approximately")
	flag.BoolVar(&o.survive, "survive", false, "ignore SIGTERM, and print the error of a failed call")
	flag.BoolVar(&o.crowds, "crowds", false, "make most operations run in many goroutines at the same time")
	flag.Parse()
	if flag.NArg() > 0 || o.first < 0 || o.end < 0 || o.bytes < 1 {
		fmt.Fprintln(os.Stderr, "rank: arguments out of range; -h lists them")
		os.Exit(2)
	}
	if o.survive {
		survive(o)
		return
	}
	if o.end == 0 {
		printLine(fmt.Sprint("ready ", os.Getpid()))
	}
	comm.Main(func(c *comm.Comm) error { return newJob(c, o).run() })
}
