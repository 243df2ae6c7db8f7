package main

import (
	"fmt"

	"github.com/weft-hpc/weft/comm"
)

// neighbors makes a grid or a graph and does collectives between neighbours, mixed with collectives of
// all ranks. The block that a rank sends on an edge depends on the rank, the round and the place of
// the edge among the edges of the receiver.
func neighbors(k *call) error {
	c, p := k.c, k.c.Size()
	var n comm.Neighborhood
	var own *comm.Comm
	// slot returns the place of edge i of a sender among the edges of its receiver.
	var slot func(i int) int
	if k.rng.IntN(2) == 0 {
		dims, err := comm.Dims(p, make([]int, 1+k.rng.IntN(3))...)
		if err != nil {
			return err
		}
		periodic := make([]bool, len(dims))
		for d := range periodic {
			periodic[d] = k.rng.IntN(2) == 0
		}
		var opts []comm.TopoOption
		if k.rng.IntN(2) == 0 {
			opts = append(opts, comm.Reorder())
		}
		g, err := c.Cart(dims, periodic, opts...)
		if err != nil {
			return err
		}
		n, own = g, g.Comm
		slot = func(i int) int { return i ^ 1 }
	} else {
		// All ranks draw the same edges. Some occur several times, and some connect a rank with
		// itself.
		sources, dests, slots := make([][]int, p), make([][]int, p), make([][]int, p)
		for range k.rng.IntN(4 * p) {
			from, to := k.rng.IntN(p), k.rng.IntN(p)
			slots[from] = append(slots[from], len(sources[to]))
			sources[to], dests[from] = append(sources[to], from), append(dests[from], to)
		}
		g, err := c.Graph(sources[c.Rank()], dests[c.Rank()])
		if err != nil {
			return err
		}
		n, own = g, g.Comm
		slot = func(i int) int { return slots[c.Rank()][i] }
	}
	sources, dests := n.Neighbors()
	size := k.length(8, 8*p)
	send, recv := make([]int64, size*len(dests)), make([]int64, size*len(sources))
	again, err := comm.NeighborAlltoallInit(n, send, recv)
	if err != nil {
		return err
	}
	for round := range 1 + k.rng.IntN(12) {
		value := func(rank, slot, j int) int64 {
			return int64(mix(k.salt, uint64(rank)<<32|uint64(slot)<<8|uint64(round), uint64(j)) >> 1)
		}
		for i := range dests {
			for j := range size {
				send[i*size+j] = value(own.Rank(), slot(i), j)
			}
		}
		want := make([]int64, len(recv))
		for i, source := range sources {
			for j := range size {
				recv[i*size+j] = int64(-j)
				want[i*size+j] = recv[i*size+j] // stays if there is no neighbour
				if source != comm.ProcNull {
					want[i*size+j] = value(source, i, j)
				}
			}
		}
		k.delay()
		if k.rng.IntN(4) == 0 {
			sum, err := comm.AllreduceOne(own, own.Rank()+round, comm.Sum[int])
			if wish := own.Size()*(own.Size()-1)/2 + own.Size()*round; err != nil || sum != wish {
				return fmt.Errorf("sum of round %d is %d, not %d: %w", round, sum, wish, err)
			}
		}
		var err error
		form := k.rng.IntN(3)
		switch form {
		case 0:
			err = comm.NeighborAlltoall(n, send, recv)
		case 1:
			_, err = k.wait([]comm.Request{comm.IneighborAlltoall(n, send, recv)})
		default:
			if err = again.Start(); err == nil {
				_, err = again.Wait()
			}
		}
		if err == nil {
			err = same("blocks of neighbours", recv, want)
		}
		if err != nil {
			return fmt.Errorf("form %d, round %d, %d elements from %v to %v: %w", form, round, size, sources, dests, err)
		}
	}
	if err := again.Free(); err != nil {
		return err
	}
	return own.Free()
}
