package mpi

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
)

// Collectives over views
//
// A view is a Buffer whose type has a form: a layout, or the device in whose memory the data is. A
// collective first copies the data of its send views to scratch memory (link.pack). Then it works on
// contiguous data. At its end it copies the received data from scratch memory to its receive views
// (link.unpack). So some ranks may pass views and others slices to the same collective:
//
//	GatherView  is a Gatherv     ScatterView  is a Scatterv     Bcast is the same call
//	AllgatherView an Allgatherv  AlltoallView an Alltoallv
//	ReduceView a Reduce          AllreduceView an Allreduce

// packed returns the memory from which the collective sends the data of b. If b is a view, that is
// scratch memory, to which pack copies the data later.
func (l *link) packed(b elem.Buffer) []byte {
	if b.Type.Form == nil {
		return b.Bytes()
	}
	l.sendView[0] = b
	l.sendViews = l.sendView[:]
	return l.Scratch(b.Size())
}

// unpacked returns the memory in which the collective receives the data of b. If b is a view, that
// is scratch memory, from which unpack copies the data later.
func (l *link) unpacked(b elem.Buffer) []byte {
	if b.Type.Form == nil {
		return b.Bytes()
	}
	l.recvView[0] = b
	l.recvViews = l.recvView[:]
	return l.Scratch(b.Size())
}

// pack copies to scratch memory the data of the views that the collective sends. A neighbour
// collective does not need pack and unpack: its messages use the views themselves. They fail only
// if a copy from or to a device fails.
func (l *link) pack() error {
	if l.hood != nil {
		return nil
	}
	mem := l.send
	if l.what == coll.KindBcast {
		mem = l.recv
	}
	for _, v := range l.sendViews {
		n := v.Size()
		if err := v.Pack(mem[:n]); err != nil {
			return err
		}
		mem = mem[n:]
	}
	return nil
}

// unpack copies the data that the collective has received to the views.
func (l *link) unpack() error {
	if l.hood != nil {
		return nil
	}
	recv := l.recv
	for _, v := range l.recvViews {
		n := v.Size()
		if err := v.Unpack(recv[:n]); err != nil {
			return err
		}
		recv = recv[n:]
	}
	return nil
}

// parts returns scratch memory for the data of the views, one view for each rank, and the count and
// displacement of each view in this memory, in bytes. name is the name of the argument in errors.
func (l *link) parts(name string, views []elem.Buffer) (mem []byte, counts, displs []int, err error) {
	n := l.others()
	if err := checkViews(name, views, n, "ranks"); err != nil {
		return nil, nil, nil, err
	}
	words := elem.Slice[int](l.Scratch(2 * n * elem.SizeOf[int]()))
	counts, displs = words[:n:n], words[n:]
	total := 0
	for i, v := range views {
		counts[i], displs[i] = v.Size(), total
		total += v.Size()
	}
	return l.Scratch(total), counts, displs, nil
}

// checkViews checks that there are n views, all of them without an error. In errors, name is the
// name of the argument, and peers says what the views are for: ranks or neighbours.
func checkViews(name string, views []elem.Buffer, n int, peers string) error {
	if len(views) != n {
		return fmt.Errorf("%w: %d views in %s and %d %s", ErrCount, len(views), name, n, peers)
	}
	for i, v := range views {
		if v.Type == nil {
			v = elem.NoView
		}
		if v.Type.Err != nil {
			return fmt.Errorf("%s[%d]: %w", name, i, v.Type.Err)
		}
	}
	return nil
}

// sendParts sets up the views that the collective sends, one for each rank: l.send, l.sendCounts,
// l.sendDispls and l.sendViews.
func (l *link) sendParts(views []elem.Buffer) (err error) {
	if l.send, l.sendCounts, l.sendDispls, err = l.parts("send", views); err == nil {
		l.sendViews = views
	}
	return err
}

// recvParts sets up the views that the collective receives, one from each rank: l.recv,
// l.recvCounts, l.recvDispls and l.recvViews.
func (l *link) recvParts(views []elem.Buffer) (err error) {
	if l.recv, l.recvCounts, l.recvDispls, err = l.parts("recv", views); err == nil {
		l.recvViews = views
	}
	return err
}

// GatherView implements comm.GatherView, which documents the call.
func (c *Comm) GatherView(send elem.Buffer, recv []elem.Buffer, root int) error {
	return run(c.gatherView("GatherView", send, recv, root))
}

// IgatherView implements comm.IgatherView, which documents the call.
func (c *Comm) IgatherView(send elem.Buffer, recv []elem.Buffer, root int) Request {
	return c.spawn(c.gatherView("IgatherView", send, recv, root))
}

func (c *Comm) gatherView(name string, send elem.Buffer, recv []elem.Buffer, root int) (*link, error) {
	l, err := c.openRooted(name, send.Type, root, firstType(recv))
	if err != nil {
		return nil, err
	}
	if l.s.inter != nil {
		return l.interGatherView(send, recv, root)
	}
	if err = l.checkRoot(root); err == nil && l.Rank() == root {
		if err = l.recvParts(recv); err == nil && l.recvCounts[root] != send.Size() {
			err = l.wrongCount("send", send.Size(), l.recvCounts[root])
		}
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send = l.packed(send)
	return l.ready(coll.KindGatherv, root, 0)
}

// ScatterView implements comm.ScatterView, which documents the call.
func (c *Comm) ScatterView(send []elem.Buffer, recv elem.Buffer, root int) error {
	return run(c.scatterView("ScatterView", send, recv, root))
}

// IscatterView implements comm.IscatterView, which documents the call.
func (c *Comm) IscatterView(send []elem.Buffer, recv elem.Buffer, root int) Request {
	return c.spawn(c.scatterView("IscatterView", send, recv, root))
}

func (c *Comm) scatterView(name string, send []elem.Buffer, recv elem.Buffer, root int) (*link, error) {
	l, err := c.openRooted(name, recv.Type, root, firstType(send))
	if err != nil {
		return nil, err
	}
	if l.s.inter != nil {
		return l.interScatterView(send, recv, root)
	}
	if err = l.checkRoot(root); err == nil && l.Rank() == root {
		if err = l.sendParts(send); err == nil && l.sendCounts[root] != recv.Size() {
			err = l.wrongCount("recv", recv.Size(), l.sendCounts[root])
		}
	}
	if err != nil {
		return l.refuse(err)
	}
	l.recv = l.unpacked(recv)
	return l.ready(coll.KindScatterv, root, 0)
}

// AllgatherView implements comm.AllgatherView, which documents the call.
func (c *Comm) AllgatherView(send elem.Buffer, recv []elem.Buffer) error {
	return run(c.allgatherView("AllgatherView", send, recv))
}

// IallgatherView implements comm.IallgatherView, which documents the call.
func (c *Comm) IallgatherView(send elem.Buffer, recv []elem.Buffer) Request {
	return c.spawn(c.allgatherView("IallgatherView", send, recv))
}

func (c *Comm) allgatherView(name string, send elem.Buffer, recv []elem.Buffer) (*link, error) {
	l, err := c.open(name, send.Type)
	if err != nil {
		return nil, err
	}
	if l.s.inter != nil {
		return l.interAllgatherView(send, recv)
	}
	if err = l.recvParts(recv); err == nil && l.recvCounts[l.Rank()] != send.Size() {
		err = l.wrongCount("send", send.Size(), l.recvCounts[l.Rank()])
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send = l.packed(send)
	return l.readyWith(coll.KindAllgatherv, l.recvCounts, len(l.recv))
}

// AlltoallView implements comm.AlltoallView, which documents the call.
func (c *Comm) AlltoallView(send, recv []elem.Buffer) error {
	return run(c.alltoallView("AlltoallView", send, recv))
}

// IalltoallView implements comm.IalltoallView, which documents the call.
func (c *Comm) IalltoallView(send, recv []elem.Buffer) Request {
	return c.spawn(c.alltoallView("IalltoallView", send, recv))
}

func (c *Comm) alltoallView(name string, send, recv []elem.Buffer) (*link, error) {
	l, err := c.begin(name)
	if err != nil {
		return nil, err
	}
	if err = l.recvParts(recv); err == nil {
		err = l.sendParts(send)
	}
	if err != nil {
		return l.refuse(err)
	}
	l.elem, l.typ = send[0].Type.Size, send[0].Type.Sig
	if l.s.inter != nil {
		return l.interReady(coll.KindAlltoallv, 0, 0)
	}
	if s, r := l.sendCounts[l.Rank()], l.recvCounts[l.Rank()]; s != r {
		return l.refuse(l.wrongCount("the part for the rank itself", s, r))
	}
	return l.ready(coll.KindAlltoallv, 0, 0)
}
