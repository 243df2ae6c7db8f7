package main

import (
	"github.com/weft-hpc/weft/comm"
)

// allgather times Allgather. A size is the number of bytes in each rank's block.
var allgather = benchmark{
	name:  "allgather",
	help:  "Allgather, mean over ranks; MB/s that a rank gets, its own block included",
	sizes: "1..1m",
	alone: true,
	prepare: func(c *comm.Comm, size int) (*part, error) {
		n := c.Size()
		send, recv := make([]byte, size), make([]byte, n*size)
		fill(send, c.Rank())
		once := func() error { return comm.Allgather(c, send, recv) }
		return &part{
			mean:   true,
			bytes:  float64(n * size),
			repeat: apart(c, once),
			verify: func() error {
				if err := once(); err != nil {
					return err
				}
				for from := range n {
					if err := compare(recv[from*size:][:size], from); err != nil {
						return err
					}
				}
				return nil
			},
		}, nil
	},
}
