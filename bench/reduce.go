package main

import (
	"github.com/weft-hpc/weft/comm"
)

// reduce times Reduce with Sum to rank 0. A size is the number of bytes in each rank's vector.
var reduce = benchmark{
	name:  "reduce",
	help:  "Reduce of float32 with Sum to rank 0, mean over ranks; MB/s of the vector",
	sizes: "4..4m",
	unit:  elementBytes,
	alone: true,
	prepare: func(c *comm.Comm, size int) (*part, error) {
		send, recv := make([]element, size/elementBytes), make([]element, size/elementBytes)
		fillValues(send, c.Rank())
		once := func() error { return comm.Reduce(c, send, recv, comm.Sum, 0) }
		return &part{
			mean:   true,
			bytes:  float64(size),
			repeat: apart(c, once),
			verify: func() error {
				if err := once(); err != nil || c.Rank() != 0 {
					return err
				}
				return compareSum(recv, c.Size())
			},
		}, nil
	},
}
