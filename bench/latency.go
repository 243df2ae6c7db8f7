package main

import (
	"fmt"

	"github.com/weft-hpc/weft/comm"
)

// latency measures half of a round trip between ranks 0 and 1.
var latency = benchmark{
	name:  "latency",
	help:  "half of a round trip between ranks 0 and 1",
	sizes: "0,1..4m",
	prepare: func(c *comm.Comm, size int) (*part, error) {
		return prepareLatency(c, make([]byte, size), make([]byte, size))
	},
}

// allocLatency measures the same as latency with buffers of comm.Alloc, whose memory is registered
// once, and not for each message.
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

// valueLatency measures the same as latency with a small struct, which comm encodes with
// encoding/gob.
var valueLatency = benchmark{
	name: "value_latency",
	help: "the same for a small struct, by SendValue and RecvValue",
	prepare: func(c *comm.Comm, _ int) (*part, error) {
		type settings struct {
			Name  string
			Steps int
			Scale float64
		}
		var got settings
		return pingPong(c, pair{
			send: func(to int) error { return comm.SendValue(c, settings{"run", c.Rank(), 0.5}, to, tag) },
			recv: func(from int) error {
				v, _, err := comm.RecvValue[settings](c, from, tag)
				got = v
				return err
			},
			verify: func(from int) error {
				if want := (settings{"run", from, 0.5}); got != want {
					return fmt.Errorf("rank %d sent %v, received %v", from, want, got)
				}
				return nil
			},
		}), nil
	},
}

func prepareLatency(c *comm.Comm, send, recv []byte) (*part, error) {
	fill(send, c.Rank())
	p := pingPong(c, pair{
		send: func(to int) error { return comm.Send(c, send, to, tag) },
		recv: func(from int) error {
			_, err := comm.Recv(c, recv, from, tag)
			return err
		},
		verify: func(from int) error { return compare(recv, from) },
	})
	p.bytes = float64(2 * len(send))
	return p, nil
}

// pair holds the functions of a rank in a round trip: send and receive a message, and check the
// message received last.
type pair struct {
	send, recv, verify func(peer int) error
}

// pingPong returns the part of this rank in round trips between ranks 0 and 1. The part of another
// rank does nothing.
func pingPong(c *comm.Comm, x pair) *part {
	p := &part{perOp: 2}
	peer := 1 - c.Rank()
	first, second := x.send, x.recv
	switch c.Rank() {
	case 0:
	case 1:
		first, second = x.recv, x.send
	default:
		return p
	}
	trip := func() error {
		if err := first(peer); err != nil {
			return err
		}
		return second(peer)
	}
	p.repeat = timed(trip)
	p.verify = func() error {
		if err := trip(); err != nil {
			return err
		}
		return x.verify(peer)
	}
	return p
}
