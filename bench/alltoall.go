package main

import (
	"github.com/weft-hpc/weft/comm"
)

// alltoall times Alltoall. A size is the number of bytes in the block that each rank sends to each
// rank.
var alltoall = benchmark{
	name:  "alltoall",
	help:  "Alltoall, mean over ranks; MB/s that a rank sends, its own block included",
	sizes: "1..1m",
	alone: true,
	prepare: func(c *comm.Comm, size int) (*part, error) {
		n := c.Size()
		send, recv := make([]byte, n*size), make([]byte, n*size)
		for to := range n {
			fill(send[to*size:][:size], c.Rank()*n+to)
		}
		once := func() error { return comm.Alltoall(c, send, recv) }
		return &part{
			mean:   true,
			bytes:  float64(n * size),
			repeat: apart(c, once),
			verify: func() error {
				if err := once(); err != nil {
					return err
				}
				for from := range n {
					if err := compare(recv[from*size:][:size], from*n+c.Rank()); err != nil {
						return err
					}
				}
				return nil
			},
		}, nil
	},
}
