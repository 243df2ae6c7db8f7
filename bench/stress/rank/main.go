// Rank is the program of a rank in a random job. It does random operations, which follow from a seed
// that all ranks have in common, and compares the result of each operation with a result that it
// computes without weft.
//
//	gorun -np 5 ./bench/stress/rank -seed 7 -ops 30
//
// The operations depend only on the seed and the number of ranks. What a rank may choose for itself
// (for example the order in which it waits, where its buffers lie, how it probes) also depends on its
// rank. If a result is wrong, the rank prints the seed, the operation and the difference, and the job
// ends. On SIGUSR1 a rank prints its current operation.
//
// With -ops 0 the job runs until a failure, and each rank prints its process id when it starts. With
// -survive a rank ignores SIGTERM; if a call fails, the rank prints the time and the error, and exits
// with 0.
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
	first   int  // number of the first operation to do
	end     int  // number of the operation to stop before; 0: run until a failure
	bytes   int  // about the largest number of bytes that an operation transfers between all ranks
	survive bool // a failure of another rank is expected: report the first error, and exit with 0
	crowds  bool // most operations run in many goroutines
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
