package main

import (
	"github.com/weft-hpc/weft/comm"
)

// latency is half of a round trip between ranks 0 and 1.
var latency = benchmark{
	name:  "latency",
	help:  "half of a round trip between ranks 0 and 1",
	sizes: "0,1..4m",
	prepare: func(c *comm.Comm, size int) (*part, error) {
		return prepareLatency(c, make([]byte, size), make([]byte, size))
	},
}

// allocLatency is latency as those see it whose buffers are registered once.
var allocLatency = benchmark{
	name:  "alloc_latency",
	help:  "the same between buffers of comm.Alloc",
	sizes: "0,1..4m",
	prepare: func(c *comm.Comm, size int) (*part, error) {
		buf, free, err := comm.Alloc[byte](c, 2*size)
		if err != nil {
			return nil, err
		}
		p, err := prepareLatency(c, buf[:size:size], buf[size:])
		if err == nil {
			p.close = func() error { free(); return nil }
		}
		return p, err
	},
}

func prepareLatency(c *comm.Comm, send, recv []byte) (*part, error) {
	fill(send, c.Rank())
	p := &part{perOp: 2, bytes: float64(2 * len(send))}
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
