package mpi

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi/arena"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Neighbour collectives (MPI 4.1 §8.6)
//
// Each rank sends a block to each of its neighbours, and receives a block from each of them. Short
// blocks for ranks of the same host move through the arena; see internal/coll/host_neighbor.go. The
// other blocks travel as messages. All messages start at once, so if the transport overlaps the
// messages, a call takes as long as the exchange with one neighbour. A rank waits for its neighbours
// only, except that it is at most some calls ahead of any rank of its host, and except in the first
// call, which makes the arena.

// neighborPlan is the part of a plan that only neighbour collectives use.
type neighborPlan struct {
	hood *Neighborhood // nil: the call is another collective
	same bool          // the whole of send, or the only view of sendViews, goes to each neighbour
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
	if l.s.hood.Load() == nil {
		l.s.hood.Store(l.hood)
	}
	l.what = what
	l.sign(what, 0, 0)
	l.requestNeighborArena()
	return l, nil
}

// requestNeighborArena is requestArena for a neighbour collective, which uses the arena if there is
// one. All ranks of the host must then use it, because a rank does not know how long the blocks of
// others are.
func (l *link) requestNeighborArena() {
	a := l.s.arena.Load()
	if a == arena.None || l.hood.places == nil {
		return
	}
	l.algorithm, l.wantsArena = 0, true // enterArena need not choose an algorithm
	if !l.hasSlot {
		l.s.enqueue(l)
	}
}

// exchange does the transfers of a neighbour collective. If l.arena is nil, all are messages.
func (l *link) exchange() error {
	if l.arena == nil {
		l.receiveBlocks(nil)
		l.sendBlocks(nil)
		return l.WaitAll()
	}
	h := l.arena.Host
	c := l.neighborCall()
	if c.Messages {
		l.recordCall()
		l.receiveBlocks(&c)
	}
	if err := h.StartNeighbors(l, &c); err != nil {
		return err
	}
	if c.Messages {
		l.sendBlocks(&c)
	}
	if err := h.FinishNeighbors(&c); err != nil {
		return err
	}
	if c.Messages && !l.entered {
		// The messages no longer need the arena. The next nonblocking call may start.
		l.yieldSlot()
	}
	return l.WaitAll()
}

// connects reports whether rank is a neighbour of this rank.
func (x *Neighborhood) connects(rank int) bool {
	return slices.Contains(x.sources, rank) || slices.Contains(x.dests, rank)
}

// neighborCall returns the call of package coll that exchanges the blocks in shared memory. The link
// holds the slot, and the communicator has an arena.
func (l *link) neighborCall() coll.NeighborCall {
	x, a := l.hood, l.s.arena.Load()
	if l.s.edges == nil {
		l.s.edges = coll.NewEdges(a.Host, a.Members, x.sources, x.places, x.dests)
	}
	c := coll.NeighborCall{
		Edges: l.s.edges, Kind: l.what, Sig: l.env.Sig, Same: l.same, Send: l.send, Recv: l.recv,
		SendCounts: l.sendCounts, SendDispls: l.sendDispls, RecvCounts: l.recvCounts, RecvDispls: l.recvDispls,
	}
	if l.sendViews != nil || l.recvViews != nil {
		c.Views = l
	}
	for i, source := range x.sources {
		c.Messages = c.Messages || source != ProcNull && a.Host.ReceivesMessage(&c, i)
	}
	for i, dest := range x.dests {
		c.Messages = c.Messages || dest != ProcNull && a.Host.SendsMessage(&c, i)
	}
	return c
}

// OutBytes implements coll.BlockViews.
func (l *link) OutBytes(dest int) int { return l.outView(dest).Size() }

// InBytes implements coll.BlockViews.
func (l *link) InBytes(source int) int { return l.recvViews[source].Size() }

// PackBlock implements coll.BlockViews.
func (l *link) PackBlock(to []byte, dest int) {
	_ = l.outView(dest).Pack(to) // cannot fail: checkHostViews has accepted the view
}

// UnpackBlock implements coll.BlockViews.
func (l *link) UnpackBlock(from []byte, source int) {
	_ = l.recvViews[source].Unpack(from) // as in PackBlock
}

// checkHostViews is checkViews for a neighbour collective: the n views must be in host memory. In shared
// memory a neighbour copies a block while this rank computes. If a device copy failed then, this rank could
// not report the failure to the neighbour.
func checkHostViews(name string, views []elem.Buffer, n int) error {
	if err := checkViews(name, views, n, "neighbours"); err != nil {
		return err
	}
	for i, v := range views {
		if err := v.Type.HostErr(); err != nil {
			return fmt.Errorf("%s[%d]: %w", name, i, err)
		}
	}
	return nil
}

// outView returns the view that goes to destination dest.
func (l *link) outView(dest int) elem.Buffer {
	if l.same {
		return l.sendViews[0]
	}
	return l.sendViews[dest]
}

// receiveBlocks posts the receives of the blocks that travel as messages: all of them if c is nil.
func (l *link) receiveBlocks(c *coll.NeighborCall) {
	x := l.hood
	for i, source := range x.sources {
		switch {
		case source == ProcNull || c != nil && !l.arena.Host.ReceivesMessage(c, i):
		case l.recvViews != nil:
			l.irecvView(l.recvViews[i], source)
		default:
			l.Irecv(block(l.recv, l.recvCounts, l.recvDispls, i, len(x.sources)), source)
		}
	}
}

// sendBlocks sends the blocks that travel as messages: all of them if c is nil.
func (l *link) sendBlocks(c *coll.NeighborCall) {
	x := l.hood
	for _, i := range x.sendOrder {
		dest := x.dests[i]
		switch {
		case dest == ProcNull || c != nil && !l.arena.Host.SendsMessage(c, i):
		case l.sendViews != nil:
			l.isendView(l.outView(i), dest)
		case l.same:
			l.Isend(l.send, dest)
		default:
			l.Isend(block(l.send, l.sendCounts, l.sendDispls, i, len(x.dests)), dest)
		}
	}
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
	env.Form = b.Type.Form
	l.ticket(transfer{l.s.coll.Isend(b.Bytes(), env), -1, dest})
}

func (l *link) irecvView(b elem.Buffer, source int) {
	env := l.to(source)
	env.Form = b.Type.Form
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

// NeighborAllgatherView implements comm.NeighborAllgatherView, which documents the call.
//
// Hot path: no allocation in steady state.
func (x *Neighborhood) NeighborAllgatherView(send elem.Buffer, recv []elem.Buffer) error {
	return run(x.allgatherView(x.Comm(), "NeighborAllgatherView", send, recv))
}

// IneighborAllgatherView implements comm.IneighborAllgatherView, which documents the call.
func (x *Neighborhood) IneighborAllgatherView(send elem.Buffer, recv []elem.Buffer) Request {
	return x.Comm().spawn(x.allgatherView(x.Comm(), "IneighborAllgatherView", send, recv))
}

// NeighborAllgatherViewInit implements comm.NeighborAllgatherViewInit, which documents the call.
func (x *Neighborhood) NeighborAllgatherViewInit(send elem.Buffer, recv []elem.Buffer) (*Persistent, error) {
	const name = "NeighborAllgatherViewInit"
	return x.Comm().persist(name, func(c *Comm) (*link, error) { return x.allgatherView(c, name, send, recv) })
}

func (x *Neighborhood) allgatherView(c *Comm, name string, send elem.Buffer, recv []elem.Buffer) (*link, error) {
	l, err := x.neighbor(c, name, send.Type)
	if err != nil {
		return nil, err
	}
	if err = send.Type.HostErr(); err == nil {
		err = checkHostViews("recv", recv, len(x.sources))
	}
	if err != nil {
		return l.refuse(err)
	}
	l.sendView[0], l.same = send, true
	l.sendViews, l.recvViews = l.sendView[:], recv
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
	if err = checkHostViews("send", send, len(x.dests)); err == nil {
		err = checkHostViews("recv", recv, len(x.sources))
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
