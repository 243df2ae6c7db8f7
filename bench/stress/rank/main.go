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
// The operation spawn starts processes of the same program, with -spawned.
//
// With -ops 0 the job runs until a failure, and each rank prints its process id when it starts. With
// -survive a rank ignores SIGTERM; if a call fails, the rank prints the time and the error, and exits
// with 0. With -recover the ranks that are left then do further operations without the failed rank.
// With -abort a rank calls Abort on SIGUSR2. With -context SIGTERM ends the context of the rank's calls; then
// the rank prints a line and ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/weft-hpc/weft/comm"
)

// options are the command line.
type options struct {
	seed    uint64
	first   int  // number of the first operation to do
	end     int  // number of the operation to stop before; 0: run until a failure
	bytes   int  // about the largest number of bytes that an operation transfers between all ranks
	survive bool // a failure of another rank is expected: report the first error, and exit with 0
	recover bool // with survive: go on with the other ranks after the first failure
	crowds  bool // most operations run in many goroutines
	abort   int  // if not 0: call Abort with this exit code on SIGUSR2
	context bool // start by MainContext instead of Main

	only     names  // the operations to do besides job.regroup; empty: all
	sessions bool   // the process starts by Open instead of Init
	endless  bool   // the operation spawn goes on until a failure
	spawned  uint64 // seed of the processes that the operation spawn has started; 0: it has not started this one
	depth    int    // number of Spawns by which the process was started
	app      int    // number of the process's program in the Spawn
}

func main() {
	var o options
	flag.Uint64Var(&o.seed, "seed", 1, "`seed` of the random operations")
	flag.IntVar(&o.first, "first", 0, "the `operation` to start with")
	flag.IntVar(&o.end, "ops", 30, "the `operation` to stop before; 0: run until a failure")
	flag.IntVar(&o.bytes, "bytes", 8<<20, "`bytes` that an operation may transfer between all ranks, approximately")
	flag.BoolVar(&o.survive, "survive", false, "ignore SIGTERM, and print the error of a failed call")
	flag.BoolVar(&o.recover, "recover", false, "with -survive: after the first failure do operations with the ranks that are left")
	flag.BoolVar(&o.crowds, "crowds", false, "make most operations run in many goroutines at the same time")
	flag.IntVar(&o.abort, "abort", 0, "call Abort with this exit `code` on SIGUSR2")
	flag.BoolVar(&o.context, "context", false, "start by MainContext, so that SIGTERM ends the calls")
	flag.Var(&o.only, "only", "`names` of the operations to do, with commas between them; empty: all")
	flag.BoolVar(&o.sessions, "sessions", false, "start by Open, and do all operations several times, with a session each")
	flag.BoolVar(&o.endless, "endless", false, "make the first operation spawn go on until a failure")
	flag.Uint64Var(&o.spawned, "spawned", 0, "`seed` of the operation spawn that has started this process")
	flag.IntVar(&o.depth, "depth", 0, "`number` of Spawns by which this process was started")
	flag.IntVar(&o.app, "app", 0, "`number` of this program in its Spawn")
	flag.Parse()
	if flag.NArg() > 0 || o.first < 0 || o.end < 0 || o.bytes < 1 || !o.only.exist() {
		fmt.Fprintln(os.Stderr, "rank: arguments out of range; -h lists them")
		os.Exit(2)
	}
	if (o.abort != 0 || o.context) && (o.survive || o.sessions) {
		fmt.Fprintln(os.Stderr, "rank: -abort and -context exclude -survive and -sessions")
		os.Exit(2)
	}
	if o.survive {
		survive(o)
		return
	}
	if o.context {
		comm.MainContext(context.Background(), o.untilCanceled)
		return
	}
	run := o.run
	if o.abort != 0 {
		run = o.abortOnSignal()
	}
	if o.end == 0 {
		printLine(fmt.Sprint("ready ", os.Getpid()))
	}
	if o.sessions {
		times := 2
		if o.spawned != 0 {
			times = 1 // the parent is there only once
		}
		if err := withSession(times, o.run); err != nil {
			fmt.Fprintln(os.Stderr, "with a session:", err)
			os.Exit(1)
		}
		return
	}
	comm.Main(run)
}

// untilCanceled is run with lines for bench/stress: one when the rank begins, and one when it ends. The latter says
// whether the rank's context has ended, or which error a call has returned before.
func (o options) untilCanceled(ctx context.Context, c *comm.Comm) error {
	printLine(fmt.Sprint("ready ", os.Getpid()))
	err := o.run(c)
	if ctx.Err() != nil {
		printLine("canceled")
	} else {
		report(err)
	}
	return err
}

// abortOnSignal returns o.run with a goroutine that calls Abort on SIGUSR2. If the signal arrives earlier, the
// goroutine calls Abort when it starts.
func (o options) abortOnSignal() func(*comm.Comm) error {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2)
	return func(c *comm.Comm) error {
		go func() { // ends with the process
			<-asked
			c.Abort(o.abort)
		}()
		return o.run(c)
	}
}

// run does what this process has to do. c has all processes of the job.
func (o options) run(c *comm.Comm) error {
	if o.spawned != 0 {
		return newJob(c, o).runSpawned()
	}
	j := newJob(c, o)
	if o.recover {
		j.only = recoverable
	}
	err := j.run()
	if err != nil && o.recover {
		j.failed, j.only = sync.Once{}, o.only
		if rerr := j.goOn(); rerr != nil {
			report(fmt.Errorf("after the failure: %w", rerr))
			return errors.Join(err, rerr)
		}
	}
	return err
}

// names are names of operations. They implement flag.Value.
type names []string

func (n *names) String() string { return strings.Join(*n, ",") }

func (n *names) Set(list string) error {
	*n = nil
	if list != "" {
		*n = strings.Split(list, ",")
	}
	return nil
}

// exist reports whether all names are those of operations.
func (n names) exist() bool {
	for _, name := range n {
		if !slices.ContainsFunc(operations, func(o choice) bool { return o.name == name }) {
			return false
		}
	}
	return true
}
