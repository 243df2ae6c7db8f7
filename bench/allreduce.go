package main

import (
	"github.com/weft-hpc/weft/comm"
)

// allreduce times Allreduce with Sum. A size is the number of bytes in each rank's vector.
var allreduce = benchmark{
	name:  "allreduce",
	help:  "Allreduce of float32 with Sum, mean over ranks; MB/s of the vector",
	sizes: "4..4m",
	unit:  elementBytes,
	alone: true,
	prepare: func(c *comm.Comm, size int) (*part, error) {
		return allreducePart(c, size, func(send, recv []element) (once, end func() error, err error) {
			return func() error { return comm.Allreduce(c, send, recv, comm.Sum) }, nil, nil
		})
	},
}

// allreducePart returns this rank's part of a benchmark of an allreduce with Sum. prepare returns the
// operation, and the part's close.
func allreducePart(c *comm.Comm, size int, prepare func(send, recv []element) (once, end func() error, err error)) (*part, error) {
	send, recv := make([]element, size/elementBytes), make([]element, size/elementBytes)
	fillValues(send, c.Rank())
	once, end, err := prepare(send, recv)
	if err != nil {
		return nil, err
	}
	return &part{
		mean:   true,
		bytes:  float64(size),
		repeat: apart(c, once),
		verify: func() error {
			if err := once(); err != nil {
				return err
			}
			return compareSum(recv, c.Size())
		},
		close: end,
	}, nil
}
