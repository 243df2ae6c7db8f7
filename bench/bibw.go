package main

import (
	"github.com/weft-hpc/weft/comm"
)

// bibw has ranks 0 and 1 send windows of messages to each other at the same time. A window is a number
// of messages after which the sender waits.
var bibw = benchmark{
	name:    "bibw",
	help:    "bandwidth of both ways at once between ranks 0 and 1, windows of 64 messages; us per message",
	sizes:   "1..4m",
	prepare: prepareBibw,
}

func prepareBibw(c *comm.Comm, size int) (*part, error) {
	p := &part{perOp: 2 * window, bytes: float64(2 * window * size)}
	if c.Rank() > 1 {
		return p, nil
	}
	peer := 1 - c.Rank()
	send, recv := make([]byte, size), make([]byte, size)
	fill(send, c.Rank())
	reqs := make([]comm.Request, 2*window)
	once := func() error {
		for i := range window {
			reqs[i] = comm.Irecv(c, recv, peer, tag)
		}
		for i := range window {
			reqs[window+i] = comm.Isend(c, send, peer, tag)
		}
		return comm.WaitAll(reqs)
	}
	p.repeat = timed(once)
	p.verify = func() error {
		if err := once(); err != nil {
			return err
		}
		return compare(recv, peer)
	}
	return p, nil
}
