package mpi

import (
	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
)

// Barrier is comm.Barrier.
//
// Hot path: no allocation in steady state.
func (c *Comm) Barrier() error { return run(barrier(c, "Barrier", coll.KindBarrier)) }

// Ibarrier is comm.Ibarrier.
func (c *Comm) Ibarrier() Request { return c.spawn(barrier(c, "Ibarrier", coll.KindBarrier)) }

// barrier starts a barrier. sign is the kind of the call that it is part of. Only Barrier and Fence
// use the arena; after the other calls the arena is given back or compared.
func barrier(c *Comm, name string, sign coll.Kind) (*link, error) {
	l, err := c.begin(name)
	if err != nil {
		return nil, err
	}
	l.what = coll.KindBarrier
	l.sign(sign, 0, 0)
	if sign == coll.KindBarrier || sign == kindFence {
		l.requestArena(0)
	}
	return l, nil
}

// Bcast is comm.Bcast.
//
// Hot path: no allocation in steady state.
func (c *Comm) Bcast(b elem.Buffer, root int) error { return run(c.bcast("Bcast", b, root)) }

// Ibcast is comm.Ibcast.
func (c *Comm) Ibcast(b elem.Buffer, root int) Request { return c.spawn(c.bcast("Ibcast", b, root)) }

func (c *Comm) bcast(name string, b elem.Buffer, root int) (*link, error) {
	l, err := c.open(name, b.Type)
	if err != nil {
		return nil, err
	}
	if err := l.checkRoot(root); err != nil {
		return l.refuse(err)
	}
	l.recv = b.Bytes()
	return l.ready(coll.KindBcast, root, len(l.recv))
}
