// Rank is a rank of a random job: it draws operations from a seed that all ranks
// have, and checks what each has done against what it computes by itself.
//
//	gorun -np 5 ./bench/stress/rank -seed 7 -ops 30
//
// The operations depend on the seed and on the number of ranks only; what one
// rank may do in its own way (in which order it waits, where its buffers lie,
// how it probes) depends on its rank too. An error names seed, operation and
// what differs, and ends the job. SIGUSR1 makes a rank tell what it is doing.
//
// With -ops 0 there is no end but a failure, and a rank tells its process id.
// With -survive a rank outlives others: it ignores SIGTERM, and where a call
// fails it says when and with what, gives up, and ends with 0.
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
	first   int // operations before it are not done
	end     int // the operation to end before; 0: only a failure ends it
	bytes   int // that an operation may move, at most
	survive bool
	crowds  bool
}

func main() {
	var o options
	flag.Uint64Var(&o.seed, "seed", 1, "`number` that operations are drawn from")
	flag.IntVar(&o.first, "first", 0, "the `operation` to begin with")
	flag.IntVar(&o.end, "ops", 30, "the `operation` to end before; 0: none")
	flag.IntVar(&o.bytes, "bytes", 8<<20, "`bytes` that an operation may move between all ranks, about")
	flag.BoolVar(&o.survive, "survive", false, "outlive other ranks, and tell what calls return")
	flag.BoolVar(&o.crowds, "crowds", false, "let most operations be of many goroutines at once")
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
		tell(fmt.Sprint("ready ", os.Getpid()))
	}
	comm.Main(func(c *comm.Comm) error { return newJob(c, o).run() })
}
