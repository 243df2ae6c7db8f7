// Allreduce teaches Allreduce with a sum of vectors, and Reduce with the statistics of a CSV file
// that the ranks read in parallel.
//
//	gorun -np 4 ./examples/allreduce -n 1048576
//	gorun -np 4 ./examples/allreduce -file data.csv
//
// Without -file each rank contributes a vector of -n doubles. Every rank checks the sum. Rank 0
// prints the median time, and the bandwidth: bytes of one vector per second.
//
// With -file each rank reads a part of the file, and rank 0 prints count, mean, standard deviation,
// minimum and maximum of every numeric column. The sums are exact, so the output does not depend on
// the number of ranks.
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
	reps := flag.Int("reps", 7, "`number` of repetitions; the output is their median")
	file := flag.String("file", "", "print statistics of a CSV `file` instead")
	columns := flag.String("columns", "", "comma-separated `names` of the file's columns (default all)")
	header := flag.String("header", "auto", "`yes|no|auto`: whether the file's first row has the names of the columns; auto: yes if none of its cells is a number")
	comm.Main(func(c *comm.Comm) error {
		args.Parse(c, "-n >= 0, -reps >= 1, -header yes, no or auto, and no arguments", func() bool {
			return flag.NArg() > 0 || *n < 0 || *reps < 1 || !slices.Contains([]string{"yes", "no", "auto"}, *header)
		})
		if *file != "" {
			return statistics(c, *file, *header, *columns)
		}
		return vectors(c, *n, *reps)
	})
}

// vectors adds up the ranks' vectors of n doubles by Allreduce, reps times, and checks the sums. Rank 0 prints
// the median time and the bandwidth.
func vectors(c *comm.Comm, n, reps int) error {
	send, recv := make([]float64, n), make([]float64, n)
	for i := range send {
		send[i] = float64((c.Rank() + 1) * (i + 1))
	}
	times := make([]float64, reps+1) // the first repetition does not count, because it is a warm-up
	for r := range times {
		clear(recv)
		if err := c.Barrier(); err != nil {
			return err
		}
		start := time.Now()
		if err := comm.Allreduce(c, send, recv, comm.Sum); err != nil {
			return err
		}
		times[r] = time.Since(start).Seconds()
		// Element i is (1 + 2 + … + ranks)·(i+1), which a double holds exactly up to 2⁵³.
		ranks := c.Size() * (c.Size() + 1) / 2
		for i, got := range recv {
			if want := float64(ranks * (i + 1)); got != want {
				return fmt.Errorf("element %d is %v, want %v", i, got, want)
			}
		}
	}
	// The time of a repetition is that of its slowest rank.
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
