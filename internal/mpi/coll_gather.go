package mpi

import (
	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
)

// Gather implements comm.Gather, which documents the call.
func (c *Comm) Gather(send, recv elem.Buffer, root int) error {
	return run(c.gather("Gather", send, recv, root))
}

// Igather implements comm.Igather, which documents the call.
func (c *Comm) Igather(send, recv elem.Buffer, root int) Request {
	return c.spawn(c.gather("Igather", send, recv, root))
}

func (c *Comm) gather(name string, send, recv elem.Buffer, root int) (*link, error) {
	l, err := c.open(name, send.Type)
	if err != nil {
		return nil, err
	}
	sb, rb := send.Bytes(), recv.Bytes()
	if l.s.inter != nil {
		return l.interGather(sb, rb, root)
	}
	if err = l.checkRoot(root); err == nil && l.Rank() == root {
		sb, err = l.ownBlock("send", sb, "recv", rb, root)
	} else {
		rb = nil
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = sb, rb
	return l.ready(coll.KindGather, root, len(sb))
}

// Gatherv implements comm.Gatherv, which documents the call.
func (c *Comm) Gatherv(send, recv elem.Buffer, counts, displs []int, root int) error {
	return run(c.gatherv("Gatherv", send, recv, counts, displs, root))
}

// Igatherv implements comm.Igatherv, which documents the call.
func (c *Comm) Igatherv(send, recv elem.Buffer, counts, displs []int, root int) Request {
	return c.spawn(c.gatherv("Igatherv", send, recv, counts, displs, root))
}

func (c *Comm) gatherv(name string, send, recv elem.Buffer, counts, displs []int, root int) (*link, error) {
	l, err := c.open(name, send.Type)
	if err != nil {
		return nil, err
	}
	sb, rb := send.Bytes(), recv.Bytes()
	if l.s.inter != nil {
		return l.interGatherv(sb, rb, counts, displs, root)
	}
	if err = l.checkRoot(root); err == nil && l.Rank() == root {
		if l.recvCounts, l.recvDispls, err = l.layout("recv", rb, counts, displs, l.Size(), "rank"); err == nil {
			sb, err = l.ownPart("send", sb, rb, l.recvDispls[root], l.recvCounts[root])
		}
	} else {
		rb = nil
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = sb, rb
	return l.ready(coll.KindGatherv, root, 0)
}

// Scatter implements comm.Scatter, which documents the call.
func (c *Comm) Scatter(send, recv elem.Buffer, root int) error {
	return run(c.scatter("Scatter", send, recv, root))
}

// Iscatter implements comm.Iscatter, which documents the call.
func (c *Comm) Iscatter(send, recv elem.Buffer, root int) Request {
	return c.spawn(c.scatter("Iscatter", send, recv, root))
}

func (c *Comm) scatter(name string, send, recv elem.Buffer, root int) (*link, error) {
	l, err := c.open(name, send.Type)
	if err != nil {
		return nil, err
	}
	sb, rb := send.Bytes(), recv.Bytes()
	if l.s.inter != nil {
		return l.interScatter(sb, rb, root)
	}
	if err = l.checkRoot(root); err == nil && l.Rank() == root {
		rb, err = l.ownBlock("recv", rb, "send", sb, root)
	} else {
		sb = nil
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = sb, rb
	return l.ready(coll.KindScatter, root, len(rb))
}

// Scatterv implements comm.Scatterv, which documents the call.
func (c *Comm) Scatterv(send elem.Buffer, counts, displs []int, recv elem.Buffer, root int) error {
	return run(c.scatterv("Scatterv", send, counts, displs, recv, root))
}

// Iscatterv implements comm.Iscatterv, which documents the call.
func (c *Comm) Iscatterv(send elem.Buffer, counts, displs []int, recv elem.Buffer, root int) Request {
	return c.spawn(c.scatterv("Iscatterv", send, counts, displs, recv, root))
}

func (c *Comm) scatterv(name string, send elem.Buffer, counts, displs []int, recv elem.Buffer, root int) (*link, error) {
	l, err := c.open(name, send.Type)
	if err != nil {
		return nil, err
	}
	sb, rb := send.Bytes(), recv.Bytes()
	if l.s.inter != nil {
		return l.interScatterv(sb, counts, displs, rb, root)
	}
	if err = l.checkRoot(root); err == nil && l.Rank() == root {
		if l.sendCounts, l.sendDispls, err = l.layout("send", sb, counts, displs, l.Size(), "rank"); err == nil {
			rb, err = l.ownPart("recv", rb, sb, l.sendDispls[root], l.sendCounts[root])
		}
	} else {
		sb = nil
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = sb, rb
	return l.ready(coll.KindScatterv, root, 0)
}

// Allgather implements comm.Allgather, which documents the call.
func (c *Comm) Allgather(send, recv elem.Buffer) error {
	return run(c.allgather("Allgather", send, recv))
}

// Iallgather implements comm.Iallgather, which documents the call.
func (c *Comm) Iallgather(send, recv elem.Buffer) Request {
	return c.spawn(c.allgather("Iallgather", send, recv))
}

func (c *Comm) allgather(name string, send, recv elem.Buffer) (*link, error) {
	l, err := c.open(name, send.Type)
	if err != nil {
		return nil, err
	}
	rb := recv.Bytes()
	if l.s.inter != nil {
		return l.interAllgather(coll.KindAllgather, send.Bytes(), rb, nil, nil)
	}
	sb, err := l.ownBlock("send", send.Bytes(), "recv", rb, l.Rank())
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = sb, rb
	return l.ready(coll.KindAllgather, 0, len(sb))
}

// Allgatherv implements comm.Allgatherv, which documents the call.
func (c *Comm) Allgatherv(send, recv elem.Buffer, counts, displs []int) error {
	return run(c.allgatherv("Allgatherv", send, recv, counts, displs))
}

// Iallgatherv implements comm.Iallgatherv, which documents the call.
func (c *Comm) Iallgatherv(send, recv elem.Buffer, counts, displs []int) Request {
	return c.spawn(c.allgatherv("Iallgatherv", send, recv, counts, displs))
}

func (c *Comm) allgatherv(name string, send, recv elem.Buffer, counts, displs []int) (*link, error) {
	l, err := c.open(name, send.Type)
	if err != nil {
		return nil, err
	}
	sb, rb := send.Bytes(), recv.Bytes()
	if l.s.inter != nil {
		return l.interAllgather(coll.KindAllgatherv, sb, rb, counts, displs)
	}
	if l.recvCounts, l.recvDispls, err = l.layout("recv", rb, counts, displs, l.Size(), "rank"); err == nil {
		sb, err = l.ownPart("send", sb, rb, l.recvDispls[l.Rank()], l.recvCounts[l.Rank()])
	}
	if err != nil {
		return l.refuse(err)
	}
	total := 0
	for _, n := range l.recvCounts {
		total += n
	}
	l.send, l.recv = sb, rb
	return l.readyWith(coll.KindAllgatherv, l.recvCounts, total)
}

// readyWith does what [link.ready] does, for a collective without a root in which all ranks pass
// the same counts, one for each rank. total is the sum of the counts. counts and total are in
// bytes.
func (l *link) readyWith(what coll.Kind, counts []int, total int) (*link, error) {
	l.what = what
	l.sign(what, 0, coll.Fold(counts))
	l.requestArena(total)
	if l.sendViews != nil {
		if err := l.pack(); err != nil {
			return l.refuse(err)
		}
	}
	return l, nil
}
