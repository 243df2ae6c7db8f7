package mpi

import (
	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Barrier implements comm.Comm.Barrier, which documents the call.
//
// Hot path: no allocation in steady state.
func (c *Comm) Barrier() error { return run(barrier(c, "Barrier", coll.KindBarrier)) }

// Ibarrier implements comm.Comm.Ibarrier, which documents the call.
func (c *Comm) Ibarrier() Request { return c.spawn(barrier(c, "Ibarrier", coll.KindBarrier)) }

// barrier starts a barrier; the caller runs it. name and sign are the name and the kind of the call
// that the barrier is part of. Only the barriers of Barrier and Fence may use the arena. After the
// others, the caller recycles an arena, or compares its calls with those of other ranks
// (arenaMismatch).
func barrier(c *Comm, name string, sign coll.Kind) (*link, error) {
	l, err := c.begin(name)
	if err != nil {
		return nil, err
	}
	l.what = coll.KindBarrier
	l.sign(sign, 0, 0)
	if sign == coll.KindBarrier || sign >= calls.KindFence && sign <= calls.KindFenceAlone {
		l.requestArena(0)
	}
	return l, nil
}

// Bcast implements comm.Bcast, which documents the call.
//
// Hot path: no allocation in steady state.
func (c *Comm) Bcast(b elem.Buffer, root int) error { return run(c.bcast("Bcast", b, root)) }

// Ibcast implements comm.Ibcast, which documents the call.
func (c *Comm) Ibcast(b elem.Buffer, root int) Request { return c.spawn(c.bcast("Ibcast", b, root)) }

func (c *Comm) bcast(name string, b elem.Buffer, root int) (*link, error) {
	l, err := c.openRooted(name, b.Type, root, b.Type)
	if err != nil {
		return nil, err
	}
	if l.s.inter != nil {
		return l.interBcast(b, root)
	}
	if err := l.checkRoot(root); err != nil {
		return l.refuse(err)
	}
	if l.Rank() == root {
		l.recv = l.packed(b)
	} else {
		l.recv = l.unpacked(b)
	}
	return l.ready(coll.KindBcast, root, len(l.recv))
}
