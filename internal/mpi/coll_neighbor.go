package mpi

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Neighbour collectives (MPI 4.1 §8.6)
//
// Each rank sends a block to each of its neighbours, and receives a block from each of them. All
// messages start at once, so if the transport overlaps the messages, a call takes as long as the
// exchange with one neighbour. A rank waits for its neighbours only.

// neighborPlan is the part of a plan that only neighbour collectives use.
type neighborPlan struct {
	hood *Neighborhood // nil: the call is another collective
	same bool          // the whole of send goes to each neighbour
}

// neighbor opens the link of a neighbour collective over elements of type t on c.
func (x *Neighborhood) neighbor(c *Comm, name string, t *elem.Type) (*link, error) {
	l, err := c.open(name, t)
	if err != nil {
		return nil, err
	}
	l.hood = x
	return l, nil
}

// neighborReady completes the preparation of the link of a neighbour collective.
func (l *link) neighborReady(what coll.Kind) (*link, error) {
	l.what = what
	l.sign(what, 0, 0)
	return l, nil
}

// exchange does the transfers of a neighbour collective.
func (l *link) exchange() error {
	x := l.hood
	for i, source := range x.sources {
		if source == ProcNull {
			continue
		}
		if l.recvViews != nil {
			l.irecvView(l.recvViews[i], source)
		} else {
			l.Irecv(block(l.recv, l.recvCounts, l.recvDispls, i, len(x.sources)), source)
		}
	}
	for _, i := range x.sendOrder {
		dest := x.dests[i]
		switch {
		case dest == ProcNull:
		case l.sendViews != nil:
			l.isendView(l.sendViews[i], dest)
		case l.same:
			l.Isend(l.send, dest)
		default:
			l.Isend(block(l.send, l.sendCounts, l.sendDispls, i, len(x.dests)), dest)
		}
	}
	return l.WaitAll()
}

// block returns block i of the n blocks of buf. If counts is nil, the blocks are equally long.
func block(buf []byte, counts, displs []int, i, n int) []byte {
	if counts == nil {
		size := len(buf) / n
		return buf[i*size : (i+1)*size]
	}
	return buf[displs[i]:][:counts[i]]
}

func (l *link) isendView(b elem.Buffer, dest int) {
	env := l.to(dest)
	env.Layout = b.Type.Layout
	l.ticket(transfer{l.s.coll.Isend(b.Bytes(), env), -1, dest})
}

func (l *link) irecvView(b elem.Buffer, source int) {
	env := l.to(source)
	env.Layout = b.Type.Layout
	l.ticket(transfer{l.s.coll.Irecv(b.Bytes(), env), b.Size(), source})
}

// blocksOf checks that buf consists of n blocks of equal length.
func (l *link) blocksOf(name string, buf []byte, n int) error {
	if size := max(l.elem, 1); n == 0 && len(buf) > 0 || n > 0 && len(buf)/size%n != 0 {
		return fmt.Errorf("%w: %s has %d elements, which is not a multiple of %d neighbours", ErrCount, name, len(buf)/size, n)
	}
	return nil
}

// NeighborAllgather implements comm.NeighborAllgather, which documents the call.
func (x *Neighborhood) NeighborAllgather(send, recv elem.Buffer) error {
	return run(x.allgather(x.Comm(), "NeighborAllgather", send, recv))
}

// IneighborAllgather implements comm.IneighborAllgather, which documents the call.
func (x *Neighborhood) IneighborAllgather(send, recv elem.Buffer) Request {
	return x.Comm().spawn(x.allgather(x.Comm(), "IneighborAllgather", send, recv))
}

// NeighborAllgatherInit implements comm.NeighborAllgatherInit, which documents the call.
func (x *Neighborhood) NeighborAllgatherInit(send, recv elem.Buffer) (*Persistent, error) {
	const name = "NeighborAllgatherInit"
	return x.Comm().persist(name, func(c *Comm) (*link, error) { return x.allgather(c, name, send, recv) })
}

func (x *Neighborhood) allgather(c *Comm, name string, send, recv elem.Buffer) (*link, error) {
	l, err := x.neighbor(c, name, send.Type)
	if err != nil {
		return nil, err
	}
	l.send, l.recv, l.same = send.Bytes(), recv.Bytes(), true
	switch n := len(x.sources); {
	case len(l.recv) != n*len(l.send):
		return l.refuse(l.wrongCount("recv", len(l.recv), n*len(l.send)))
	case elem.Overlap(l.send, l.recv):
		return l.refuse(ErrBuffer)
	}
	return l.neighborReady(calls.KindNeighborAllgather)
}

// NeighborAllgatherv implements comm.NeighborAllgatherv, which documents the call.
func (x *Neighborhood) NeighborAllgatherv(send, recv elem.Buffer, counts, displs []int) error {
	return run(x.allgatherv(x.Comm(), "NeighborAllgatherv", send, recv, counts, displs))
}

// IneighborAllgatherv implements comm.IneighborAllgatherv, which documents the call.
func (x *Neighborhood) IneighborAllgatherv(send, recv elem.Buffer, counts, displs []int) Request {
	return x.Comm().spawn(x.allgatherv(x.Comm(), "IneighborAllgatherv", send, recv, counts, displs))
}

// NeighborAllgathervInit implements comm.NeighborAllgathervInit, which documents the call.
func (x *Neighborhood) NeighborAllgathervInit(send, recv elem.Buffer, counts, displs []int) (*Persistent, error) {
	const name = "NeighborAllgathervInit"
	return x.Comm().persist(name, func(c *Comm) (*link, error) { return x.allgatherv(c, name, send, recv, counts, displs) })
}

func (x *Neighborhood) allgatherv(c *Comm, name string, send, recv elem.Buffer, counts, displs []int) (*link, error) {
	l, err := x.neighbor(c, name, send.Type)
	if err != nil {
		return nil, err
	}
	l.send, l.recv, l.same = send.Bytes(), recv.Bytes(), true
	if l.recvCounts, l.recvDispls, err = l.layout("recv", l.recv, counts, displs, len(x.sources), "neighbour"); err != nil {
		return l.refuse(err)
	}
	if elem.Overlap(l.send, l.recv) {
		return l.refuse(ErrBuffer)
	}
	return l.neighborReady(calls.KindNeighborAllgather)
}

// NeighborAlltoall implements comm.NeighborAlltoall, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Neighborhood) NeighborAlltoall(send, recv elem.Buffer) error {
	return run(x.alltoall(x.Comm(), "NeighborAlltoall", send, recv))
}

// IneighborAlltoall implements comm.IneighborAlltoall, which documents the call.
func (x *Neighborhood) IneighborAlltoall(send, recv elem.Buffer) Request {
	return x.Comm().spawn(x.alltoall(x.Comm(), "IneighborAlltoall", send, recv))
}

// NeighborAlltoallInit implements comm.NeighborAlltoallInit, which documents the call.
func (x *Neighborhood) NeighborAlltoallInit(send, recv elem.Buffer) (*Persistent, error) {
	const name = "NeighborAlltoallInit"
	return x.Comm().persist(name, func(c *Comm) (*link, error) { return x.alltoall(c, name, send, recv) })
}

func (x *Neighborhood) alltoall(c *Comm, name string, send, recv elem.Buffer) (*link, error) {
	l, err := x.neighbor(c, name, send.Type)
	if err != nil {
		return nil, err
	}
	l.send, l.recv = send.Bytes(), recv.Bytes()
	if err = l.blocksOf("send", l.send, len(x.dests)); err == nil {
		err = l.blocksOf("recv", l.recv, len(x.sources))
	}
	if err == nil && elem.Overlap(l.send, l.recv) {
		err = ErrBuffer
	}
	if err != nil {
		return l.refuse(err)
	}
	return l.neighborReady(calls.KindNeighborAlltoall)
}

// NeighborAlltoallv implements comm.NeighborAlltoallv, which documents the call.
func (x *Neighborhood) NeighborAlltoallv(send elem.Buffer, sendcounts, senddispls []int, recv elem.Buffer, recvcounts, recvdispls []int) error {
	return run(x.alltoallv(x.Comm(), "NeighborAlltoallv", send, sendcounts, senddispls, recv, recvcounts, recvdispls))
}

// IneighborAlltoallv implements comm.IneighborAlltoallv, which documents the call.
func (x *Neighborhood) IneighborAlltoallv(send elem.Buffer, sendcounts, senddispls []int, recv elem.Buffer, recvcounts, recvdispls []int) Request {
	return x.Comm().spawn(x.alltoallv(x.Comm(), "IneighborAlltoallv", send, sendcounts, senddispls, recv, recvcounts, recvdispls))
}

// NeighborAlltoallvInit implements comm.NeighborAlltoallvInit, which documents the call.
func (x *Neighborhood) NeighborAlltoallvInit(send elem.Buffer, sendcounts, senddispls []int, recv elem.Buffer, recvcounts, recvdispls []int) (*Persistent, error) {
	const name = "NeighborAlltoallvInit"
	return x.Comm().persist(name, func(c *Comm) (*link, error) {
		return x.alltoallv(c, name, send, sendcounts, senddispls, recv, recvcounts, recvdispls)
	})
}

func (x *Neighborhood) alltoallv(c *Comm, name string, send elem.Buffer, sendcounts, senddispls []int, recv elem.Buffer, recvcounts, recvdispls []int) (*link, error) {
	l, err := x.neighbor(c, name, send.Type)
	if err != nil {
		return nil, err
	}
	l.send, l.recv = send.Bytes(), recv.Bytes()
	l.sendCounts, l.sendDispls, err = l.layout("send", l.send, sendcounts, senddispls, len(x.dests), "neighbour")
	if err == nil {
		l.recvCounts, l.recvDispls, err = l.layout("recv", l.recv, recvcounts, recvdispls, len(x.sources), "neighbour")
	}
	if err == nil && elem.Overlap(l.send, l.recv) {
		err = ErrBuffer
	}
	if err != nil {
		return l.refuse(err)
	}
	return l.neighborReady(calls.KindNeighborAlltoall)
}

// NeighborAlltoallView implements comm.NeighborAlltoallView, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Neighborhood) NeighborAlltoallView(send, recv []elem.Buffer) error {
	return run(x.alltoallView(x.Comm(), "NeighborAlltoallView", send, recv))
}

// IneighborAlltoallView implements comm.IneighborAlltoallView, which documents the call.
func (x *Neighborhood) IneighborAlltoallView(send, recv []elem.Buffer) Request {
	return x.Comm().spawn(x.alltoallView(x.Comm(), "IneighborAlltoallView", send, recv))
}

// NeighborAlltoallViewInit implements comm.NeighborAlltoallViewInit, which documents the call.
func (x *Neighborhood) NeighborAlltoallViewInit(send, recv []elem.Buffer) (*Persistent, error) {
	const name = "NeighborAlltoallViewInit"
	return x.Comm().persist(name, func(c *Comm) (*link, error) { return x.alltoallView(c, name, send, recv) })
}

func (x *Neighborhood) alltoallView(c *Comm, name string, send, recv []elem.Buffer) (*link, error) {
	l, err := c.begin(name)
	if err != nil {
		return nil, err
	}
	l.hood = x
	if err = checkViews("send", send, len(x.dests), "neighbours"); err == nil {
		err = checkViews("recv", recv, len(x.sources), "neighbours")
	}
	if err != nil {
		return l.refuse(err)
	}
	switch { // all views have elements of the same type
	case len(send) > 0:
		l.elem, l.typ = send[0].Type.Size, send[0].Type.Sig
	case len(recv) > 0:
		l.elem, l.typ = recv[0].Type.Size, recv[0].Type.Sig
	}
	l.sendViews, l.recvViews = send, recv
	return l.neighborReady(calls.KindNeighborAlltoall)
}
