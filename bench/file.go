package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/pio"
)

// The array of the benchmarks of files has a number of planes of fileRows × fileCols float64, two
// for each MiB. Each rank has a block of it. The ranks form a grid of three dimensions, of which the
// last one has the most ranks, so a block consists of many short ranges of the file.
const (
	fileRows = 256
	fileCols = 256
)

// fileWrite times collective writes of an array in blocks to one file.
var fileWrite = benchmark{
	name:   "file_write",
	help:   "WriteAtAll of an array of float64 in three dimensions, in blocks, mean over ranks; MB/s of the whole array",
	sizes:  "16,256",
	counts: "MiB",
	alone:  true,
	prepare: func(c *comm.Comm, size int) (*part, error) {
		return filePart(c, size, fileBlock, func(v *pio.View[float64], buf []float64) error {
			_, err := pio.WriteAtAll(v, buf, 0)
			return err
		})
	},
}

// fileRead times collective reads of the same array.
var fileRead = benchmark{
	name:   "file_read",
	help:   "ReadAtAll of the same array",
	sizes:  "16,256",
	counts: "MiB",
	alone:  true,
	prepare: func(c *comm.Comm, size int) (*part, error) {
		return filePart(c, size, fileBlock, func(v *pio.View[float64], buf []float64) error {
			_, err := pio.ReadAtAll(v, buf, 0)
			return err
		})
	},
}

// filePlain times writes of as many bytes, in which each rank has one range of the file.
var filePlain = benchmark{
	name:   "file_write_plain",
	help:   "the same as file_write, except that each rank writes one range of the file by WriteAt",
	sizes:  "16,256",
	counts: "MiB",
	alone:  true,
	prepare: func(c *comm.Comm, size int) (*part, error) {
		return filePart(c, size, fileRange, func(v *pio.View[float64], buf []float64) error {
			_, err := pio.WriteAt(v, buf, 0)
			return err
		})
	},
}

// fileBlock returns the part of an array with n planes that this rank has: a block.
func fileBlock(c *comm.Comm, n int) (comm.Layout, error) {
	dims, err := comm.Dims(c.Size(), 0, 0, 0)
	if err != nil {
		return comm.Layout{}, err
	}
	sizes := []int{n, fileRows, fileCols}
	subsizes, starts := make([]int, 3), make([]int, 3)
	for d, at := 2, c.Rank(); d >= 0; d-- {
		ranks := dims[2-d] // the numbers of dims descend
		i := at % ranks
		at /= ranks
		starts[d] = sizes[d] * i / ranks
		subsizes[d] = sizes[d]*(i+1)/ranks - starts[d]
	}
	return comm.Subarray(sizes, subsizes, starts), nil
}

// fileRange returns the part of an array with n planes that this rank has: one range.
func fileRange(c *comm.Comm, n int) (comm.Layout, error) {
	all := n * fileRows * fileCols
	begin, end := all*c.Rank()/c.Size(), all*(c.Rank()+1)/c.Size()
	return comm.Contiguous(end-begin).Shift(begin).Resized(0, all), nil
}

// filePart returns a part that calls once for a file of size MiB. This rank has the elements that
// layout returns.
func filePart(c *comm.Comm, size int, layout func(c *comm.Comm, n int) (comm.Layout, error), once func(v *pio.View[float64], buf []float64) error) (*part, error) {
	if size < 1 || size > 1<<20 {
		return nil, fmt.Errorf("an array of %d MiB", size)
	}
	l, err := layout(c, 2*size)
	if err != nil {
		return nil, err
	}
	pid := []int{os.Getpid()}
	if err := comm.Bcast(c, pid, 0); err != nil {
		return nil, err
	}
	name := filepath.Join(os.TempDir(), fmt.Sprintf("weft-bench-%d", pid[0]))
	f, err := pio.Open(c, name, os.O_RDWR|os.O_CREATE|pio.DeleteOnClose, 0o600)
	if err != nil {
		return nil, err
	}
	v, err := pio.NewView[float64](f, 0, l)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	buf := make([]float64, l.Len())
	value := func(i int) float64 { return float64(i%9973 + c.Rank()) }
	for i := range buf {
		buf[i] = value(i)
	}
	if _, err := pio.WriteAtAll(v, buf, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &part{
		verify: func() error {
			if err := once(v, buf); err != nil {
				return err
			}
			if err := c.Barrier(); err != nil {
				return err
			}
			got := make([]float64, len(buf))
			n, err := pio.ReadAt(v, got, 0)
			for i := range got {
				if err == nil && (n != len(got) || got[i] != value(i) || buf[i] != got[i]) {
					err = fmt.Errorf("element %d of %d is %v, not %v", i, n, got[i], value(i))
				}
			}
			return err
		},
		repeat: apart(c, func() error { return once(v, buf) }),
		bytes:  float64(size << 20),
		mean:   true,
		close:  f.Close,
	}, nil
}
