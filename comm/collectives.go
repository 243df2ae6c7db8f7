package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
)

// Barrier blocks until every rank of c has called it (MPI_Barrier, MPI 4.1
// §6.3). It is collective.
//
// Errors, as of every collective: ErrMismatch where ranks call different
// collectives, ErrProcFailed, ErrRevoked, ErrClosed, the context's. An error
// on one rank, wrong arguments too, is an error on all: unless the communicator is
// nil or freed, c is revoked with the cause.
//
// Hot path: no allocation in steady state.
func Barrier(c *Comm) error { return c.in().Barrier() }

// Ibarrier is Barrier that returns at once; the request is complete when every
// rank has called it (MPI_Ibarrier, MPI 4.1 §6.12.1).
func Ibarrier(c *Comm) Request { return Request(c.in().Ibarrier()) }

// Bcast copies the root's buf into that of every rank and blocks until this
// rank's is filled, or may be used again (MPI_Bcast, MPI 4.1 §6.4). It is
// collective; root and len(buf) are the same on all ranks.
//
//	root   buf: n elements, sent
//	others buf: n elements, received
//
// Errors: ErrRank for a wrong root, ErrType, ErrCount where the ranks' counts
// differ, ErrMismatch where they differ and it shows only as that; as all
// collectives (see Barrier).
//
// Hot path: no allocation in steady state.
func Bcast[T any](c *Comm, buf []T, root int) error { return c.in().Bcast(elem.View(buf), root) }

// Ibcast is Bcast that returns at once; buf belongs to the request until it is
// complete (MPI_Ibcast).
func Ibcast[T any](c *Comm, buf []T, root int) Request {
	return Request(c.in().Ibcast(elem.View(buf), root))
}

// Gather puts the elements of all ranks one after the other, in rank order,
// into the root's recv (MPI_Gather, MPI 4.1 §6.5). It is collective and blocks
// until this rank's part is done; root and n are the same on all ranks.
//
//	root   send: n elements, recv: ranks × n elements
//	others send: n elements, recv: ignored, may be nil
//
// In place at the root: send is the root's own part of recv, or recv itself,
// which means the same. Errors: ErrRank for a wrong root, ErrCount, ErrType,
// ErrBuffer for slices that overlap otherwise; as all collectives (see
// Barrier).
func Gather[T any](c *Comm, send, recv []T, root int) error {
	return c.in().Gather(elem.View(send), elem.View(recv), root)
}

// Igather is Gather that returns at once; the slices belong to the request
// until it is complete (MPI_Igather).
func Igather[T any](c *Comm, send, recv []T, root int) Request {
	return Request(c.in().Igather(elem.View(send), elem.View(recv), root))
}

// Gatherv is Gather with counts[i] elements of rank i, which begin at
// recv[displs[i]] (MPI_Gatherv, MPI 4.1 §6.5). Where displs is nil the parts
// lie one after the other and fill recv.
//
//	root   send: counts[root] elements, recv: all parts
//	others send: counts[rank] elements, recv, counts, displs: ignored
//
// Parts must not overlap. It keeps neither counts nor displs. In place at the
// root: as Gather. Errors: those of Gather; ErrCount for counts or
// displacements that are negative, too few or too many, or lead beyond recv.
func Gatherv[T any](c *Comm, send, recv []T, counts, displs []int, root int) error {
	return c.in().Gatherv(elem.View(send), elem.View(recv), counts, displs, root)
}

// Igatherv is Gatherv that returns at once; send and recv belong to the
// request until it is complete (MPI_Igatherv).
func Igatherv[T any](c *Comm, send, recv []T, counts, displs []int, root int) Request {
	return Request(c.in().Igatherv(elem.View(send), elem.View(recv), counts, displs, root))
}

// Scatter deals the root's send out: its i-th block goes to rank i
// (MPI_Scatter, MPI 4.1 §6.6). It is collective and blocks until this rank's
// part is done; root and n are the same on all ranks.
//
//	root   send: ranks × n elements, recv: n elements
//	others send: ignored, may be nil, recv: n elements
//
// In place at the root: recv is the root's own part of send, or send itself;
// then that part stays where it is. Errors: those of Gather.
func Scatter[T any](c *Comm, send, recv []T, root int) error {
	return c.in().Scatter(elem.View(send), elem.View(recv), root)
}

// Iscatter is Scatter that returns at once; the slices belong to the request
// until it is complete (MPI_Iscatter).
func Iscatter[T any](c *Comm, send, recv []T, root int) Request {
	return Request(c.in().Iscatter(elem.View(send), elem.View(recv), root))
}

// Scatterv is Scatter with counts[i] elements for rank i, which begin at
// send[displs[i]] (MPI_Scatterv, MPI 4.1 §6.6). Where displs is nil the parts
// lie one after the other and are all of send.
//
//	root   send: all parts, recv: counts[root] elements
//	others send, counts, displs: ignored, recv: counts[rank] elements
//
// It keeps neither counts nor displs. In place at the root: as Scatter.
// Errors: those of Gatherv.
func Scatterv[T any](c *Comm, send []T, counts, displs []int, recv []T, root int) error {
	return c.in().Scatterv(elem.View(send), counts, displs, elem.View(recv), root)
}

// Iscatterv is Scatterv that returns at once; send and recv belong to the
// request until it is complete (MPI_Iscatterv).
func Iscatterv[T any](c *Comm, send []T, counts, displs []int, recv []T, root int) Request {
	return Request(c.in().Iscatterv(elem.View(send), counts, displs, elem.View(recv), root))
}

// Allgather puts the elements of all ranks one after the other, in rank order,
// into every recv (MPI_Allgather, MPI 4.1 §6.7). It is collective and blocks;
// n is the same on all ranks.
//
//	send: n elements, recv: ranks × n elements
//
// In place: send is the rank's own part of recv, or recv itself, which means
// the same. Errors: ErrCount, ErrType, ErrBuffer for slices that overlap
// otherwise; as all collectives (see Barrier).
func Allgather[T any](c *Comm, send, recv []T) error {
	return c.in().Allgather(elem.View(send), elem.View(recv))
}

// Iallgather is Allgather that returns at once; the slices belong to the
// request until it is complete (MPI_Iallgather).
func Iallgather[T any](c *Comm, send, recv []T) Request {
	return Request(c.in().Iallgather(elem.View(send), elem.View(recv)))
}

// Allgatherv is Allgather with counts[i] elements of rank i, which begin at
// recv[displs[i]]; counts is the same on all ranks, displs need not be
// (MPI_Allgatherv, MPI 4.1 §6.7). Where displs is nil the parts lie one after
// the other and fill recv.
//
//	send: counts[rank] elements, recv: all parts
//
// Parts must not overlap. It keeps neither counts nor displs. In place: as
// Allgather. Errors: those of Allgather; ErrCount as for Gatherv; ErrMismatch
// where the ranks' counts differ.
func Allgatherv[T any](c *Comm, send, recv []T, counts, displs []int) error {
	return c.in().Allgatherv(elem.View(send), elem.View(recv), counts, displs)
}

// Iallgatherv is Allgatherv that returns at once; send and recv belong to the
// request until it is complete (MPI_Iallgatherv).
func Iallgatherv[T any](c *Comm, send, recv []T, counts, displs []int) Request {
	return Request(c.in().Iallgatherv(elem.View(send), elem.View(recv), counts, displs))
}

// Alltoall sends the i-th block of send to rank i, and puts what comes from
// rank i into the i-th block of recv (MPI_Alltoall, MPI 4.1 §6.8). It is
// collective and blocks; n is the same on all ranks.
//
//	send: ranks × n elements, recv: ranks × n elements
//
// In place: send and recv are the same slice. Errors: ErrCount, ErrType,
// ErrBuffer for slices that overlap otherwise; as all collectives (see
// Barrier).
func Alltoall[T any](c *Comm, send, recv []T) error {
	return c.in().Alltoall(elem.View(send), elem.View(recv))
}

// Ialltoall is Alltoall that returns at once; the slices belong to the request
// until it is complete (MPI_Ialltoall).
func Ialltoall[T any](c *Comm, send, recv []T) Request {
	return Request(c.in().Ialltoall(elem.View(send), elem.View(recv)))
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
	return c.in().Alltoallv(elem.View(send), sendcounts, senddispls, elem.View(recv), recvcounts, recvdispls)
}

// Ialltoallv is Alltoallv that returns at once; send and recv belong to the
// request until it is complete (MPI_Ialltoallv).
func Ialltoallv[T any](c *Comm, send []T, sendcounts, senddispls []int, recv []T, recvcounts, recvdispls []int) Request {
	return Request(c.in().Ialltoallv(elem.View(send), sendcounts, senddispls, elem.View(recv), recvcounts, recvdispls))
}
