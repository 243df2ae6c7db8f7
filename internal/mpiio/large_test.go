package mpiio_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/pio"
)

// TestLarge writes and reads blocks of several lengths, which interleave, with the default hints:
// long blocks, which each rank accesses itself, and short ones, with and without gaps between them.
func TestLarge(t *testing.T) {
	overFabrics(t, []int{2, 3}, func(c *comm.Comm, name string) error {
		n, me := c.Size(), c.Rank()
		for _, x := range []struct{ block, gap, count int }{
			{300 << 8, 0, 3}, {300 << 8, 1000, 2}, {1 << 8, 0, 700}, {1 << 8, 3, 500}, {1, 0, 90_000}, {1, 1, 50_000}, {3000, 3000, 40},
		} {
			err := withFile(c, name, func(f *pio.File) error {
				period := n * (x.block + x.gap)
				v, err := pio.NewView[int32](f, 0, comm.Contiguous(x.block).Shift(me*(x.block+x.gap)).Resized(0, period))
				if err != nil {
					return err
				}
				own := make([]int32, x.block*x.count)
				for i := range own {
					own[i] = int32(n*i + me + 1)
				}
				if k, err := pio.WriteAll(v, own); k != len(own) || err != nil {
					return fmt.Errorf("%d of %d elements written: %w", k, len(own), err)
				}
				got := make([]int32, len(own)+5)
				if k, err := pio.ReadAtAll(v, got, 0); k != len(own) || err != nil || !slices.Equal(got[:k], own) {
					return fmt.Errorf("%d of %d elements read: %w", k, len(own), err)
				}
				if me > 0 {
					return nil
				}
				want := make([]int32, period*x.count-x.gap) // the gap after the last block is not in the file
				for r := range n {
					for i := range len(own) {
						want[i/x.block*period+r*(x.block+x.gap)+i%x.block] = int32(n*i + r + 1)
					}
				}
				return compareFile(name, want)
			})
			if err != nil {
				return fmt.Errorf("blocks of %d elements, gaps of %d: %w", x.block, x.gap, err)
			}
			if me == 0 {
				if err := os.Remove(name); err != nil {
					return err
				}
			}
			if err := c.Barrier(); err != nil {
				return err
			}
		}
		return nil
	})
}
