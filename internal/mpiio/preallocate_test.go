package mpiio_test

import (
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/pio"
	"github.com/weft-hpc/weft/internal/mpiio"
)

// TestPreallocateRewrites lets each rank write bytes of its own while rank 0 allocates storage on a
// file system without a call for it. No write may be lost.
func TestPreallocateRewrites(t *testing.T) {
	defer mpiio.WithoutAllocate()()
	const size, calls = 1 << 20, 30
	overFabrics(t, []int{1, 2, 3}, func(c *comm.Comm, name string) error {
		return withFile(c, name, func(f *pio.File) error {
			stop, done := make(chan struct{}), make(chan error, 1)
			go func() { done <- writeAgain(f, int64(c.Rank()), int64(c.Size()), stop) }() // ends after stop is closed
			var err error
			for i := 0; i < calls && err == nil; i++ {
				err = f.Preallocate(size)
			}
			close(stop)
			if werr := <-done; err == nil {
				err = werr
			}
			if n, serr := f.Size(); err == nil && (n != size || serr != nil) {
				err = fmt.Errorf("the file has %d bytes: %w", n, serr)
			}
			return err
		})
	})
}

// writeAgain writes bytes of this rank, and reads them back, until stop is closed.
func writeAgain(f *pio.File, rank, ranks int64, stop <-chan struct{}) error {
	for i := int64(0); ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		at, b := rank+i*8191%1000*ranks, []byte{byte(i)}
		if _, err := f.WriteAt(b, at); err != nil {
			return err
		}
		for range 3 {
			got := []byte{0}
			if _, err := f.ReadAt(got, at); err != nil || got[0] != b[0] {
				return fmt.Errorf("byte %d is %d, want %d: %w", at, got[0], b[0], err)
			}
		}
	}
}
