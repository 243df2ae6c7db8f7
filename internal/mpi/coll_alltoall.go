package mpi

import (
	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
)

// Alltoall implements comm.Alltoall, which documents the call.
func (c *Comm) Alltoall(send, recv elem.Buffer) error { return run(c.alltoall("Alltoall", send, recv)) }

// Ialltoall implements comm.Ialltoall, which documents the call.
func (c *Comm) Ialltoall(send, recv elem.Buffer) Request {
	return c.spawn(c.alltoall("Ialltoall", send, recv))
}

func (c *Comm) alltoall(name string, send, recv elem.Buffer) (*link, error) {
	l, err := c.open(name, send.Type)
	if err != nil {
		return nil, err
	}
	sb, rb := send.Bytes(), recv.Bytes()
	if l.s.inter != nil {
		return l.interAlltoall(sb, rb)
	}
	if err = l.checkBlocks("send", sb); err == nil {
		err = l.checkPair(sb, rb)
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = sb, rb
	return l.ready(coll.KindAlltoall, 0, len(sb)/l.Size())
}

// Alltoallv implements comm.Alltoallv, which documents the call.
func (c *Comm) Alltoallv(send elem.Buffer, sendcounts, senddispls []int, recv elem.Buffer, recvcounts, recvdispls []int) error {
	return run(c.alltoallv("Alltoallv", send, sendcounts, senddispls, recv, recvcounts, recvdispls))
}

// Ialltoallv implements comm.Ialltoallv, which documents the call.
func (c *Comm) Ialltoallv(send elem.Buffer, sendcounts, senddispls []int, recv elem.Buffer, recvcounts, recvdispls []int) Request {
	return c.spawn(c.alltoallv("Ialltoallv", send, sendcounts, senddispls, recv, recvcounts, recvdispls))
}

func (c *Comm) alltoallv(name string, send elem.Buffer, sendcounts, senddispls []int, recv elem.Buffer, recvcounts, recvdispls []int) (*link, error) {
	l, err := c.open(name, send.Type)
	if err != nil {
		return nil, err
	}
	sb, rb := send.Bytes(), recv.Bytes()
	if l.s.inter != nil {
		return l.interAlltoallv(sb, sendcounts, senddispls, rb, recvcounts, recvdispls)
	}
	if l.recvCounts, l.recvDispls, err = l.layout("recv", rb, recvcounts, recvdispls, l.Size(), "rank"); err != nil {
		return l.refuse(err)
	}
	switch {
	case elem.SameStart(sb, rb) && len(sb) == len(rb), len(sb)+len(rb) == 0 && sendcounts == nil:
		l.sendCounts, l.sendDispls = l.recvCounts, l.recvDispls
	case elem.Overlap(sb, rb):
		return l.refuse(ErrBuffer)
	default:
		if l.sendCounts, l.sendDispls, err = l.layout("send", sb, sendcounts, senddispls, l.Size(), "rank"); err != nil {
			return l.refuse(err)
		}
	}
	if s, r := l.sendCounts[l.Rank()], l.recvCounts[l.Rank()]; s != r {
		return l.refuse(l.wrongCount("the part for the rank itself", s, r))
	}
	l.send, l.recv = sb, rb
	return l.ready(coll.KindAlltoallv, 0, 0)
}
