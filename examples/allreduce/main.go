// Allreduce sums vectors over all ranks, and, given a CSV file, its columns.
//
//	gorun -np 4 ./examples/allreduce -n 1048576
//	gorun -np 4 ./examples/allreduce -file data.csv
//
// Without -file each rank contributes -n doubles; the sum is checked against
// its closed form on every rank, and rank 0 prints the median time and the
// bandwidth, which is bytes of the vector per second.
//
// With -file each rank reads its own part of the file, and rank 0 prints count,
// mean, standard deviation, minimum and maximum of every numeric column. Sums
// are exact, so any number of ranks prints the same text.
package main

import (
	"flag"
	"fmt"
	"slices"
	"time"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/examples/internal/args"
)

func main() {
	n := flag.Int("n", 1<<20, "`doubles` per rank")
	reps := flag.Int("reps", 7, "`repetitions` whose median is told")
	file := flag.String("file", "", "CSV `file` to take statistics of instead")
	columns := flag.String("columns", "", "comma separated `names` of the file's columns; all by default")
	header := flag.String("header", "auto", "whether the file's first row holds names, `yes|no|auto`; auto: where none of its cells is a number")
	comm.Main(func(c *comm.Comm) error {
		args.Parse(c, "-n of 0 or more, -reps of 1 or more, -header yes, no or auto, and nothing else", func() bool {
			return flag.NArg() > 0 || *n < 0 || *reps < 1 || !slices.Contains([]string{"yes", "no", "auto"}, *header)
		})
		if *file != "" {
			return statistics(c, *file, *header, *columns)
		}
		return vectors(c, *n, *reps)
	})
}

// vectors reduces n doubles of each rank.
func vectors(c *comm.Comm, n, reps int) error {
	send, recv := make([]float64, n), make([]float64, n)
	for i := range send {
		send[i] = float64((c.Rank() + 1) * (i + 1))
	}
	times := make([]float64, reps+1) // the first one warms up
	for r := range times {
		clear(recv)
		if err := comm.Barrier(c); err != nil {
			return err
		}
		start := time.Now()
		if err := comm.Allreduce(c, send, recv, comm.Sum); err != nil {
			return err
		}
		times[r] = time.Since(start).Seconds()
		// 1 + 2 + … + ranks times the element: exact, as far as 2⁵³.
		ranks := c.Size() * (c.Size() + 1) / 2
		for i, got := range recv {
			if want := float64(ranks * (i + 1)); got != want {
				return fmt.Errorf("element %d is %v, not %v", i, got, want)
			}
		}
	}
	// A repetition took as long as its slowest rank.
	if err := comm.Allreduce(c, times, times, comm.Max); err != nil {
		return err
	}
	if c.Rank() == 0 {
		times = times[1:]
		slices.Sort(times)
		median := times[len(times)/2]
		fmt.Printf("allreduce of %d doubles over %d ranks: correct, %.1f us, %.1f MB/s\n",
			n, c.Size(), median*1e6, float64(8*n)/median/1e6)
	}
	return nil
}
