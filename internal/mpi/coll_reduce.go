package mpi

import (
	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
)

// Reduce implements comm.Reduce, which documents the call.
//
// Hot path: no allocation in steady state.
func (c *Comm) Reduce(send, recv elem.Buffer, op *Op, root int) error {
	return run(c.reduce("Reduce", coll.KindReduce, send, recv, op, root))
}

// Ireduce implements comm.Ireduce, which documents the call.
func (c *Comm) Ireduce(send, recv elem.Buffer, op *Op, root int) Request {
	return c.spawn(c.reduce("Ireduce", coll.KindReduce, send, recv, op, root))
}

// Allreduce implements comm.Allreduce, which documents the call.
//
// Hot path: no allocation in steady state.
func (c *Comm) Allreduce(send, recv elem.Buffer, op *Op) error {
	return run(c.reduce("Allreduce", coll.KindAllreduce, send, recv, op, 0))
}

// Iallreduce implements comm.Iallreduce, which documents the call.
func (c *Comm) Iallreduce(send, recv elem.Buffer, op *Op) Request {
	return c.spawn(c.reduce("Iallreduce", coll.KindAllreduce, send, recv, op, 0))
}

// Scan implements comm.Scan, which documents the call.
func (c *Comm) Scan(send, recv elem.Buffer, op *Op) error {
	return run(c.reduce("Scan", coll.KindScan, send, recv, op, 0))
}

// Iscan implements comm.Iscan, which documents the call.
func (c *Comm) Iscan(send, recv elem.Buffer, op *Op) Request {
	return c.spawn(c.reduce("Iscan", coll.KindScan, send, recv, op, 0))
}

// Exscan implements comm.Exscan, which documents the call.
func (c *Comm) Exscan(send, recv elem.Buffer, op *Op) error {
	return run(c.reduce("Exscan", coll.KindExscan, send, recv, op, 0))
}

// Iexscan implements comm.Iexscan, which documents the call.
func (c *Comm) Iexscan(send, recv elem.Buffer, op *Op) Request {
	return c.spawn(c.reduce("Iexscan", coll.KindExscan, send, recv, op, 0))
}

func (c *Comm) reduce(name string, what coll.Kind, send, recv elem.Buffer, op *Op, root int) (*link, error) {
	t := send.Type
	if root == Root { // the root of an intercommunicator has no operand
		t = recv.Type
	}
	l, err := c.openRooted(name, t, root, t)
	if err != nil {
		return nil, err
	}
	inter := l.s.inter != nil
	if inter && root == ProcNull {
		return l.interReduce(what, nil, nil, root)
	}
	if l.op, l.opID, err = op.on(t); err != nil {
		return l.refuse(err)
	}
	if !inter {
		if err := l.checkRoot(root); err != nil {
			return l.refuse(err)
		}
	}
	var sb, rb []byte
	if !inter || what != coll.KindReduce || root >= 0 {
		sb = l.packed(send)
	}
	receives := what != coll.KindReduce || inter && root == Root || !inter && root == l.Rank()
	if receives {
		if recv.Type.Err != nil {
			return l.refuse(recv.Type.Err)
		}
		rb = l.unpacked(recv)
	}
	if inter {
		return l.interReduce(what, sb, rb, root)
	}
	if receives {
		if err := l.checkPair(sb, rb); err != nil {
			return l.refuse(err)
		}
	}
	l.send, l.recv = sb, rb
	return l.ready(what, root, len(sb))
}

// ReduceScatterBlock implements comm.ReduceScatterBlock, which documents the call.
func (c *Comm) ReduceScatterBlock(send, recv elem.Buffer, op *Op) error {
	return run(c.reduceScatterBlock("ReduceScatterBlock", send, recv, op))
}

// IreduceScatterBlock implements comm.IreduceScatterBlock, which documents the call.
func (c *Comm) IreduceScatterBlock(send, recv elem.Buffer, op *Op) Request {
	return c.spawn(c.reduceScatterBlock("IreduceScatterBlock", send, recv, op))
}

func (c *Comm) reduceScatterBlock(name string, send, recv elem.Buffer, op *Op) (*link, error) {
	l, err := c.open(name, send.Type)
	if err != nil {
		return nil, err
	}
	sb, rb := send.Bytes(), recv.Bytes()
	if l.op, l.opID, err = op.on(send.Type); err != nil {
		return l.refuse(err)
	}
	if l.s.inter != nil {
		return l.interReduceScatter(coll.KindReduceScatterBlock, sb, rb, nil)
	}
	if rb, err = l.ownBlock("recv", rb, "send", sb, 0); err != nil {
		return l.refuse(err)
	}
	return l.reduceScatter(coll.KindReduceScatterBlock, sb, rb, len(sb)/l.Size())
}

// reduceScatter checks the slices of ReduceScatter or ReduceScatterBlock and stores them in l. block is the
// length in bytes of the rank's own block of the result.
func (l *link) reduceScatter(what coll.Kind, send, recv []byte, block int) (*link, error) {
	if elem.SameStart(send, recv) && len(recv) == len(send) {
		recv = recv[:block]
	}
	if len(recv) != block {
		return l.refuse(l.wrongCount("recv", len(recv), block))
	}
	if elem.Overlap(send, recv) && !elem.SameStart(send, recv) {
		return l.refuse(ErrBuffer)
	}
	l.send, l.recv = send, recv
	if what == coll.KindReduceScatter {
		return l.readyWith(what, l.recvCounts, len(send))
	}
	return l.ready(what, 0, block)
}

// ReduceScatter implements comm.ReduceScatter, which documents the call.
func (c *Comm) ReduceScatter(send, recv elem.Buffer, counts []int, op *Op) error {
	return run(c.reduceScatter("ReduceScatter", send, recv, counts, op))
}

// IreduceScatter implements comm.IreduceScatter, which documents the call.
func (c *Comm) IreduceScatter(send, recv elem.Buffer, counts []int, op *Op) Request {
	return c.spawn(c.reduceScatter("IreduceScatter", send, recv, counts, op))
}

func (c *Comm) reduceScatter(name string, send, recv elem.Buffer, counts []int, op *Op) (*link, error) {
	l, err := c.open(name, send.Type)
	if err != nil {
		return nil, err
	}
	sb, rb := send.Bytes(), recv.Bytes()
	if l.op, l.opID, err = op.on(send.Type); err != nil {
		return l.refuse(err)
	}
	if l.s.inter != nil {
		return l.interReduceScatter(coll.KindReduceScatter, sb, rb, counts)
	}
	if l.recvCounts, _, err = l.layout("send", sb, counts, nil, l.Size(), "rank"); err != nil {
		return l.refuse(err)
	}
	return l.reduceScatter(coll.KindReduceScatter, sb, rb, l.recvCounts[l.Rank()])
}
