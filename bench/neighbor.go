package main

import (
	"fmt"

	"github.com/weft-hpc/weft/comm"
)

// neighbor times NeighborAlltoall on a periodic grid in two dimensions. A size is the number of
// bytes for each neighbour.
var neighbor = benchmark{
	name:  "neighbor_alltoall",
	help:  "NeighborAlltoall on a periodic grid of two dimensions, mean over ranks; MB/s of what a rank sends",
	sizes: "8..1m",
	alone: true,
	prepare: func(c *comm.Comm, size int) (*part, error) {
		g, send, recv, err := halo(c, size)
		if err != nil {
			return nil, err
		}
		return haloPart(c, g, send, recv, size, func() error { return comm.NeighborAlltoall(g, send, recv) }), nil
	},
}

// haloByHand times the exchange of the benchmark neighbor by Irecv, Isend and WaitAll.
var haloByHand = benchmark{
	name:  "halo_by_hand",
	help:  "the same exchange by Irecv, Isend and WaitAll",
	sizes: "8..1m",
	alone: true,
	prepare: func(c *comm.Comm, size int) (*part, error) {
		g, send, recv, err := halo(c, size)
		if err != nil {
			return nil, err
		}
		_, peers := g.Neighbors()
		rs := make([]comm.Request, 2*len(peers))
		once := func() error {
			for i, peer := range peers {
				rs[i] = comm.Irecv(g.Comm, recv[i*size:(i+1)*size], peer, i)
			}
			for i, peer := range peers {
				rs[len(peers)+i] = comm.Isend(g.Comm, send[i*size:(i+1)*size], peer, i^1)
			}
			return comm.WaitAll(rs)
		}
		return haloPart(c, g, send, recv, size, once), nil
	},
}

// halo makes a periodic grid of two dimensions, and the buffers for the exchange with the four
// neighbours of this rank.
func halo(c *comm.Comm, size int) (g *comm.Cart, send, recv []byte, err error) {
	dims, err := comm.Dims(c.Size(), 0, 0)
	if err != nil {
		return nil, nil, nil, err
	}
	if g, err = c.Cart(dims, []bool{true, true}); err != nil {
		return nil, nil, nil, err
	}
	send, recv = make([]byte, 4*size), make([]byte, 4*size)
	for i := range 4 {
		fill(send[i*size:(i+1)*size], 4*g.Rank()+i)
	}
	return g, send, recv, nil
}

func haloPart(c *comm.Comm, g *comm.Cart, send, recv []byte, size int, once func() error) *part {
	return &part{
		mean:   true,
		bytes:  float64(len(send)),
		repeat: apart(c, once),
		verify: func() error {
			if err := once(); err != nil {
				return err
			}
			sources, _ := g.Neighbors()
			for i, r := range sources {
				if err := compare(recv[i*size:(i+1)*size], 4*r+i^1); err != nil {
					return fmt.Errorf("from neighbour %d: %w", i, err)
				}
			}
			return nil
		},
		close: g.Free,
	}
}
