package main

import (
	"github.com/weft-hpc/weft/comm"
)

// latency is half of a round trip between ranks 0 and 1.
var latency = benchmark{
	name:    "latency",
	help:    "half of a round trip between ranks 0 and 1",
	sizes:   "0,1..4m",
	prepare: prepareLatency,
}

func prepareLatency(c *comm.Comm, size int) (*part, error) {
	send, recv := make([]byte, size), make([]byte, size)
	fill(send, c.Rank())
	p := &part{perOp: 2, bytes: float64(2 * size)}
	there := func() error {
		if err := comm.Send(c, send, 1, tag); err != nil {
			return err
		}
		_, err := comm.Recv(c, recv, 1, tag)
		return err
	}
	back := func() error {
		if _, err := comm.Recv(c, recv, 0, tag); err != nil {
			return err
		}
		return comm.Send(c, send, 0, tag)
	}
	switch c.Rank() {
	case 0:
		p.repeat = timed(there)
		p.verify = func() error {
			if err := there(); err != nil {
				return err
			}
			return compare(recv, 1)
		}
	case 1:
		p.repeat = timed(back)
		p.verify = func() error {
			if err := back(); err != nil {
				return err
			}
			return compare(recv, 0)
		}
	}
	return p, nil
}
