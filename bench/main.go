// Bench measures weft in the manner of the OSU micro-benchmarks:
//
//	gorun -np 2 ./bench latency -sizes 8,4096 -json
//	gorun -np 4 ./bench allreduce -sizes 8..1m
//
// For each size, most benchmarks first verify the data and warm up. Then rank 0 chooses the number
// of iterations, either that of -iters or as many as fit the time of -time, and sends the number to
// the other ranks. The benchmark times the iterations in batches, and rank 0 prints, for example,
// the minimum, the median and the 99th percentile over the batches.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// options are the command line.
type options struct {
	bench *benchmark
	sizes []int
	iters int           // number of iterations per size; 0: as many as fit in time
	time  time.Duration // time budget per size
	json  bool          // print JSON; false: print a table
	check bool          // only verify the data
}

var benchmarks = []*benchmark{
	&latency, &allocLatency, &valueLatency, &bw, &bibw, &mr, &vector, &face, &partitioned, &joined,
	&barrier, &allreduce, &allreduceStart, &bcast, &reduce, &alltoall, &allgather, &neighbor, &haloByHand,
	&fileWrite, &fileRead, &filePlain,
	&putBW, &getBW, &putLatency, &getLatency, &fetchOp,
	&overlap, &initialize, &dup, &dupUsed, &spawn, &idle,
	&threads, &waiters, &besideIbarrier, &besideStream, &computeExchange, &jacobi, &cg, &bsends, &testAny, &revoke,
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == spawned {
		runSpawned()
		return
	}
	o, err := parse(os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		fmt.Fprintf(os.Stderr, "bench: %v; run bench -h for help\n", err)
		os.Exit(2)
	}
	if o.bench == &initialize {
		err = runInit(o)
	} else {
		comm.Main(func(c *comm.Comm) error { return runSizes(c, o) })
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// parse parses the command line. With -h it prints the help.
func parse(args []string, help io.Writer) (*options, error) {
	o := new(options)
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	sizes := flags.String("sizes", "", "`bytes` of a message or of a rank's part in a collective, or a number of goroutines, microseconds or rows: a list such as 8,4096, or a range such as 1..4m, which doubles; k, m and g are powers of 1024")
	flags.IntVar(&o.iters, "iters", 0, "`iterations` per size; 0: as many as -time allows")
	flags.DurationVar(&o.time, "time", 500*time.Millisecond, "`time` per size")
	flags.BoolVar(&o.json, "json", false, "print a JSON object per size instead of a table")
	flags.BoolVar(&o.check, "check", false, "only verify the data")
	var err error
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		i := slices.IndexFunc(benchmarks, func(b *benchmark) bool { return b.name == args[0] })
		if i < 0 {
			return nil, fmt.Errorf("no benchmark %q", args[0])
		}
		o.bench, args = benchmarks[i], args[1:]
	}
	if err = flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		usage(help, flags)
		return nil, err
	}
	switch {
	case err != nil:
		return nil, err
	case o.bench == nil:
		return nil, errors.New("expected the name of a benchmark first")
	case flags.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.iters < 0:
		return nil, errors.New("-iters: expected 0 or more")
	case o.time <= 0:
		return nil, errors.New("-time: expected more than 0")
	case *sizes != "" && o.bench.sizes == "":
		return nil, fmt.Errorf("-sizes: %s takes no sizes", o.bench.name)
	case *sizes == "":
		*sizes = o.bench.sizes
	}
	o.sizes, err = parseSizes(*sizes)
	if err == nil {
		err = o.bench.checkSizes(o.sizes)
	}
	if err != nil {
		return nil, fmt.Errorf("-sizes: %w", err)
	}
	return o, nil
}

func usage(w io.Writer, flags *flag.FlagSet) {
	fmt.Fprintln(w, "gorun -np N ./bench NAME [flags]")
	fmt.Fprintln(w)
	for _, b := range benchmarks {
		fmt.Fprintf(w, "  %-20s %s\n", b.name, b.help)
	}
	fmt.Fprintln(w)
	flags.SetOutput(w)
	flags.PrintDefaults()
}
