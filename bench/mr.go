package main

import (
	"github.com/weft-hpc/weft/comm"
)

// mr measures the message rate of all pairs of ranks together. The i-th rank of the lower half of the
// ranks sends to the i-th rank of the upper half.
var mr = benchmark{
	name:  "mr",
	help:  "message rate of all pairs of the lower and the upper half of the ranks; us per message of a pair",
	sizes: "1..64k",
	even:  true,
	prepare: func(c *comm.Comm, size int) (*part, error) {
		pairs := c.Size() / 2
		p := stream(c, size, (c.Rank()+pairs)%c.Size(), c.Rank() < pairs)
		p.mean = true
		p.bytes = float64(window * size * pairs)
		p.message = float64(window * pairs)
		return p, nil
	},
}
