package main

import (
	"github.com/weft-hpc/weft/comm"
)

// window is the number of messages that a rank sends before it waits, as in OSU's benchmarks.
const window = 64

// bw has rank 0 send windows of messages to rank 1.
var bw = benchmark{
	name:  "bw",
	help:  "bandwidth from rank 0 to rank 1, windows of 64 messages and an ack; us per message",
	sizes: "1..4m",
	prepare: func(c *comm.Comm, size int) (*part, error) {
		peer := comm.ProcNull
		if c.Rank() < 2 {
			peer = 1 - c.Rank()
		}
		p := stream(c, size, peer, c.Rank() == 0)
		p.bytes = float64(window * size)
		return p, nil
	},
}

// stream returns the part of one rank in a benchmark in which a sender sends windows of messages to a
// receiver, and the receiver answers each window with a message. If peer is comm.ProcNull, the rank
// does nothing. As in OSU's benchmarks, all messages of a window use the same buffer, so that caches
// have the same effect as there.
func stream(c *comm.Comm, size, peer int, sender bool) *part {
	p := &part{perOp: window}
	if peer == comm.ProcNull {
		return p
	}
	buf, ack := make([]byte, size), make([]byte, 4)
	reqs := make([]comm.Request, window)
	once := func() error {
		for i := range reqs {
			reqs[i] = comm.Irecv(c, buf, peer, tag)
		}
		if err := comm.WaitAll(reqs); err != nil {
			return err
		}
		return comm.Send(c, ack, peer, tag)
	}
	if sender {
		fill(buf, c.Rank())
		once = func() error {
			for i := range reqs {
				reqs[i] = comm.Isend(c, buf, peer, tag)
			}
			if err := comm.WaitAll(reqs); err != nil {
				return err
			}
			_, err := comm.Recv(c, ack, peer, tag)
			return err
		}
	}
	p.repeat = timed(once)
	p.verify = func() error {
		if err := once(); err != nil || sender {
			return err
		}
		return compare(buf, peer)
	}
	return p
}
