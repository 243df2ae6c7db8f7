package main

import (
	"github.com/weft-hpc/weft/comm"
)

// bcast times Bcast from rank 0. A size is the number of bytes in the buffer.
var bcast = benchmark{
	name:  "bcast",
	help:  "Bcast from rank 0, mean over ranks; MB/s of the message",
	sizes: "1..4m",
	alone: true,
	prepare: func(c *comm.Comm, size int) (*part, error) {
		buf := make([]byte, size)
		if c.Rank() == 0 {
			fill(buf, 0)
		}
		once := func() error { return comm.Bcast(c, buf, 0) }
		return &part{
			mean:   true,
			bytes:  float64(size),
			repeat: apart(c, once),
			verify: func() error {
				if err := once(); err != nil {
					return err
				}
				return compare(buf, 0)
			},
		}, nil
	},
}
