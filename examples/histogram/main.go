// Histogram teaches one-sided updates with Accumulate and FetchOp. The ranks count random numbers
// in bins. Each rank owns some of the bins, in a window that all ranks may update. No rank has to
// receive a message or to know which ranks update its bins.
//
//	gorun -np 4 ./examples/histogram -n 100000 -bins 64
//
// Every rank counts half of its numbers with Accumulate, with many updates in flight. It counts the
// other half with FetchOp, which also returns the former count. At the end rank 0 counts all
// numbers by itself and compares.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/examples/internal/args"
)

func main() {
	n := flag.Int("n", 20_000, "`numbers` per rank")
	bins := flag.Int("bins", 64, "`bins` of the histogram")
	seed := flag.Uint64("seed", 1, "`seed` of the random numbers")
	comm.Main(func(c *comm.Comm) error {
		args.Parse(c, "-n >= 0, -bins >= 1 and no arguments", func() bool {
			return flag.NArg() > 0 || *n < 0 || *bins < 1
		})
		return histogram(c, *n, *bins, *seed)
	})
}

// draw returns the bins of a rank's random numbers. Low bins are more frequent than high ones.
func draw(rank, n, bins int, seed uint64) []int {
	rng := rand.New(rand.NewPCG(seed, uint64(rank)))
	drawn := make([]int, n)
	for i := range drawn {
		drawn[i] = min(int(rng.Float64()*rng.Float64()*float64(bins)), bins-1)
	}
	return drawn
}

func histogram(c *comm.Comm, n, bins int, seed uint64) error {
	// Bin b is element b/size of rank b%size.
	size := c.Size()
	w, err := comm.NewWin[int64](c, (bins+size-1-c.Rank())/size)
	if err != nil {
		return err
	}
	drawn := draw(c.Rank(), n, bins, seed)
	start := time.Now()
	if err := w.LockAll(); err != nil {
		return err
	}
	one := []int64{1} // all updates may use this buffer, because it never changes
	for _, b := range drawn[:n/2] {
		if err := w.Accumulate(one, b%size, b/size, comm.Sum); err != nil {
			return err
		}
	}
	if err := w.FlushAll(); err != nil { // returns when the updates are done in the memory of their targets
		return err
	}
	seen := make([]int64, 1) // sum of the counts that FetchOp returns
	for _, b := range drawn[n/2:] {
		before, err := w.FetchOp(1, b%size, b/size, comm.Sum)
		if err != nil {
			return err
		}
		seen[0] += before
	}
	if err := w.UnlockAll(); err != nil {
		return err
	}
	// After this Barrier all ranks have completed their updates, so the window has the final counts.
	if err := c.Barrier(); err != nil {
		return err
	}
	elapsed := time.Since(start)
	if err := comm.Reduce(c, seen, seen, comm.Sum, 0); err != nil {
		return err
	}
	if err := check(c, w, n, bins, seed); err != nil {
		return err
	}
	if c.Rank() == 0 {
		fmt.Printf("%d numbers of %d ranks in %d bins: correct, %d hits found by FetchOp, %v\n",
			n*size, size, bins, seen[0], elapsed.Round(time.Microsecond))
	}
	return w.Free()
}

// check has rank 0 read the window of each rank with one Get, count all numbers by itself, and
// compare.
func check(c *comm.Comm, w *comm.Win[int64], n, bins int, seed uint64) error {
	if err := w.Fence(); err != nil {
		return err
	}
	parts := make([][]int64, c.Size())
	if c.Rank() == 0 {
		for r := range parts {
			parts[r] = make([]int64, w.Len(r))
			if err := w.Get(parts[r], r, 0); err != nil {
				return err
			}
		}
	}
	if err := w.Fence(); err != nil { // completes the Gets
		return err
	}
	if c.Rank() != 0 {
		return nil
	}
	want := make([]int64, bins)
	for r := range parts {
		for _, b := range draw(r, n, bins, seed) {
			want[b]++
		}
	}
	for b, h := range want {
		if got := parts[b%c.Size()][b/c.Size()]; got != h {
			return fmt.Errorf("bin %d has the count %d, want %d", b, got, h)
		}
	}
	return nil
}
