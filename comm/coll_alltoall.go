package comm

import (
	"github.com/weft-hpc/weft/internal/coll"

	"github.com/weft-hpc/weft/internal/elem"
)

// Alltoall sends the i-th block of send to rank i, and puts what comes from
// rank i into the i-th block of recv (MPI_Alltoall, MPI 4.1 §6.8). It is
// collective and blocks; n is the same on all ranks.
//
//	send: ranks × n elements, recv: ranks × n elements
//
// In place: send and recv are the same slice. Errors: ErrCount, ErrType,
// ErrBuffer for slices that overlap otherwise; as all collectives (see
// Barrier).
func Alltoall[T any](c *Comm, send, recv []T) error { return run(alltoall(c, "Alltoall", send, recv)) }

// Ialltoall is Alltoall that returns at once; the slices belong to the request
// until it is complete (MPI_Ialltoall).
func Ialltoall[T any](c *Comm, send, recv []T) Request {
	return c.spawn(alltoall(c, "Ialltoall", send, recv))
}

func alltoall[T any](c *Comm, name string, send, recv []T) (*link, error) {
	l, sb, rb, err := open(c, name, send, recv)
	if err != nil {
		return nil, err
	}
	return l.alltoall(sb, rb)
}

func (l *link) alltoall(send, recv []byte) (*link, error) {
	err := l.checkBlocks("send", send)
	if err == nil {
		err = l.checkPair(send, recv)
	}
	if err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = send, recv
	return l.ready(coll.KindAlltoall, 0, len(send)/l.Size())
}

// Alltoallv is Alltoall with sendcounts[i] elements for rank i, which begin at
// send[senddispls[i]], and recvcounts[i] of rank i, which go to
// recv[recvdispls[i]] (MPI_Alltoallv, MPI 4.1 §6.8). What rank i has as
// sendcounts[j], rank j has as recvcounts[i]. Where displacements are nil the
// parts lie one after the other and are all of the slice.
//
//	send: all parts to send, recv: all parts to receive
//
// Parts of recv must not overlap. It keeps neither counts nor displacements.
// In place: send and recv are the same slice, and sendcounts and senddispls
// are ignored; where that is empty sendcounts is nil. Errors: those of Alltoall; ErrCount as for Gatherv, and where
// the ranks' counts differ.
func Alltoallv[T any](c *Comm, send []T, sendcounts, senddispls []int, recv []T, recvcounts, recvdispls []int) error {
	return run(alltoallv(c, "Alltoallv", send, sendcounts, senddispls, recv, recvcounts, recvdispls))
}

// Ialltoallv is Alltoallv that returns at once; send and recv belong to the
// request until it is complete (MPI_Ialltoallv).
func Ialltoallv[T any](c *Comm, send []T, sendcounts, senddispls []int, recv []T, recvcounts, recvdispls []int) Request {
	return c.spawn(alltoallv(c, "Ialltoallv", send, sendcounts, senddispls, recv, recvcounts, recvdispls))
}

func alltoallv[T any](c *Comm, name string, send []T, sendcounts, senddispls []int, recv []T, recvcounts, recvdispls []int) (*link, error) {
	l, sb, rb, err := open(c, name, send, recv)
	if err != nil {
		return nil, err
	}
	if l.recvCounts, l.recvDispls, err = l.layout("recv", rb, recvcounts, recvdispls); err != nil {
		return l.refuse(err)
	}
	switch {
	case elem.SameStart(sb, rb) && len(sb) == len(rb), len(sb)+len(rb) == 0 && sendcounts == nil:
		l.sendCounts, l.sendDispls = l.recvCounts, l.recvDispls
	case elem.Overlap(sb, rb):
		return l.refuse(ErrBuffer)
	default:
		if l.sendCounts, l.sendDispls, err = l.layout("send", sb, sendcounts, senddispls); err != nil {
			return l.refuse(err)
		}
	}
	if s, r := l.sendCounts[l.Rank()], l.recvCounts[l.Rank()]; s != r {
		return l.refuse(l.wrongCount("the part for the rank itself", s, r))
	}
	l.send, l.recv = sb, rb
	return l.ready(coll.KindAlltoallv, 0, 0)
}
