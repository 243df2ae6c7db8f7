package main

import (
	"fmt"

	"github.com/weft-hpc/weft/comm"
)

// viewBytes is the length of a message of the benchmark vector, before it is rounded down to whole
// blocks.
const viewBytes = 1 << 20

// vector measures half of a round trip of 1 MiB in blocks, with gaps as long as a block between
// them. A size is the number of bytes of a block.
var vector = benchmark{
	name:   "vector",
	help:   "half of a round trip of 1 MiB between ranks 0 and 1, sent and received in blocks with gaps",
	sizes:  "64,512,4096",
	counts: "bytes per block",
	prepare: func(c *comm.Comm, block int) (*part, error) {
		if block < 1 || block > viewBytes {
			return nil, fmt.Errorf("blocks of %d bytes", block)
		}
		return viewLatency(c, 2*viewBytes, comm.Vector(viewBytes/block, block, 2*block))
	},
}

// face measures half of a round trip of a face of a cube of float64. The face has the elements
// whose second index is 0. A size is the number of elements of an edge.
var face = benchmark{
	name:   "face",
	help:   "half of a round trip of a face of a cube of float64 between ranks 0 and 1",
	sizes:  "64,128,256",
	counts: "elements per edge",
	prepare: func(c *comm.Comm, n int) (*part, error) {
		if n < 1 {
			return nil, fmt.Errorf("a cube of %d elements per edge", n)
		}
		return viewLatency(c, 8*n*n*n, comm.Subarray([]int{n, n, 8 * n}, []int{n, 1, 8 * n}, []int{0, 0, 0}))
	},
}

// viewLatency returns a ping-pong of views with the layout l in memory of n bytes.
func viewLatency(c *comm.Comm, n int, l comm.Layout) (*part, error) {
	send, recv := make([]byte, n), make([]byte, n)
	fill(send, c.Rank())
	out, in := comm.Of(send, l), comm.Of(recv, l)
	want := make([]byte, n)
	p := pingPong(c, pair{
		send: func(to int) error { return out.Send(c, to, tag) },
		recv: func(from int) error {
			_, err := in.Recv(c, from, tag)
			return err
		},
		verify: func(from int) error {
			fill(want, from)
			got, sent := make([]byte, in.Len()), make([]byte, in.Len())
			if _, err := comm.Pack(got, in); err != nil {
				return err
			}
			if _, err := comm.Pack(sent, comm.Of(want, l)); err != nil {
				return err
			}
			if string(got) != string(sent) {
				return fmt.Errorf("rank %d has sent other data", from)
			}
			return nil
		},
	})
	p.bytes = float64(2 * out.Len())
	return p, nil
}

// allreduceStart times Start and Wait of a persistent Allreduce.
var allreduceStart = benchmark{
	name:  "allreduce_start",
	help:  "Start and Wait of a persistent Allreduce, as allreduce",
	sizes: "4..4m",
	unit:  elementBytes,
	alone: true,
	prepare: func(c *comm.Comm, size int) (*part, error) {
		return allreducePart(c, size, func(send, recv []element) (once, end func() error, err error) {
			p, err := comm.AllreduceInit(c, send, recv, comm.Sum)
			if err != nil {
				return nil, nil, err
			}
			return func() error {
				if err := p.Start(); err != nil {
					return err
				}
				_, err := p.Wait()
				return err
			}, p.Free, nil
		})
	},
}
