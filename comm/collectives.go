package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
)

// Barrier blocks until every rank of c has called it (MPI_Barrier, MPI 4.1 §6.3). It is collective.
//
// Errors, as for every collective: ErrMismatch if ranks call different collectives; ErrProcFailed,
// ErrFinalized, ErrRevoked, ErrConcurrent, ErrClosed, or the context's error. If a collective fails
// on one rank, even because of a wrong argument, it revokes c with the cause, so that this
// collective or a later call fails on the other ranks, too. A nil or freed communicator cannot be
// revoked.
//
// Barrier does not allocate in steady state.
func (c *Comm) Barrier() error { return c.in().Barrier() }

// Ibarrier is [Comm.Barrier], except that it does not block (MPI_Ibarrier, MPI 4.1 §6.12.1). The
// request is complete when every rank has called Ibarrier.
func (c *Comm) Ibarrier() Request { return Request(c.in().Ibarrier()) }

// Bcast copies the root's buf to the buf of every other rank (MPI_Bcast, MPI 4.1 §6.4). It is
// collective. It blocks until buf is filled, or on the root until the program may reuse buf. root
// and len(buf) are the same on all ranks.
//
//	root   buf: n elements, sent
//	others buf: n elements, received
//
// Errors: ErrRank for a wrong root; ErrType; ErrCount or ErrMismatch if the ranks' counts differ;
// as for all collectives, see [Comm.Barrier].
//
// Bcast does not allocate in steady state.
func Bcast[T any](c *Comm, buf []T, root int) error { return c.in().Bcast(elem.View(buf), root) }

// Ibcast is [Bcast], except that it does not block (MPI_Ibcast). buf belongs to the request until
// the request is complete.
func Ibcast[T any](c *Comm, buf []T, root int) Request {
	return Request(c.in().Ibcast(elem.View(buf), root))
}

// Gather collects the elements of all ranks in the root's recv, in rank order (MPI_Gather, MPI 4.1
// §6.5). It is collective. It blocks until this rank's part is complete. root and n are the same on
// all ranks.
//
//	root   send: n elements, recv: ranks × n elements
//	others send: n elements, recv: ignored, may be nil
//
// In place on the root: send is the root's own block of recv, or all of recv.
//
// Errors: ErrRank for a wrong root; ErrCount; ErrType; ErrBuffer if the slices overlap in another
// way; as for all collectives, see [Comm.Barrier].
func Gather[T any](c *Comm, send, recv []T, root int) error {
	return c.in().Gather(elem.View(send), elem.View(recv), root)
}

// Igather is [Gather], except that it does not block (MPI_Igather). The slices belong to the
// request until the request is complete.
func Igather[T any](c *Comm, send, recv []T, root int) Request {
	return Request(c.in().Igather(elem.View(send), elem.View(recv), root))
}

// Gatherv is [Gather] with another number of elements for each rank (MPI_Gatherv, MPI 4.1 §6.5):
// rank i sends counts[i] elements, which the root stores from recv[displs[i]] on. If displs is nil,
// the parts follow each other and fill recv.
//
//	root   send: counts[root] elements, recv: all parts
//	others send: counts[rank] elements, recv, counts, displs: ignored
//
// The parts of recv must not overlap. Gatherv does not keep counts and displs. In place on the
// root: send is the root's own part of recv, or all of recv.
//
// Errors: those of Gather; ErrCount if there are too few or too many counts or displacements, if
// one is negative, or if a part is not within recv.
func Gatherv[T any](c *Comm, send, recv []T, counts, displs []int, root int) error {
	return c.in().Gatherv(elem.View(send), elem.View(recv), counts, displs, root)
}

// Igatherv is [Gatherv], except that it does not block (MPI_Igatherv). send and recv belong to the
// request until the request is complete.
func Igatherv[T any](c *Comm, send, recv []T, counts, displs []int, root int) Request {
	return Request(c.in().Igatherv(elem.View(send), elem.View(recv), counts, displs, root))
}

// Scatter distributes the root's send: block i goes to rank i (MPI_Scatter, MPI 4.1 §6.6). It is
// collective. It blocks until this rank's part is complete. root and n are the same on all ranks.
//
//	root   send: ranks × n elements, recv: n elements
//	others send: ignored, may be nil, recv: n elements
//
// In place on the root: recv is the root's own block of send, or all of send. Scatter then leaves
// that block where it is. Errors: those of [Gather].
func Scatter[T any](c *Comm, send, recv []T, root int) error {
	return c.in().Scatter(elem.View(send), elem.View(recv), root)
}

// Iscatter is [Scatter], except that it does not block (MPI_Iscatter). The slices belong to the
// request until the request is complete.
func Iscatter[T any](c *Comm, send, recv []T, root int) Request {
	return Request(c.in().Iscatter(elem.View(send), elem.View(recv), root))
}

// Scatterv is [Scatter] with another number of elements for each rank (MPI_Scatterv, MPI 4.1 §6.6):
// rank i receives counts[i] elements, which the root reads from send[displs[i]] on. If displs is
// nil, the parts follow each other and are all of send.
//
//	root   send: all parts, recv: counts[root] elements
//	others send, counts, displs: ignored, recv: counts[rank] elements
//
// Scatterv does not keep counts and displs. In place on the root: recv is the root's own part of
// send, or all of send. Errors: those of [Gatherv].
func Scatterv[T any](c *Comm, send []T, counts, displs []int, recv []T, root int) error {
	return c.in().Scatterv(elem.View(send), counts, displs, elem.View(recv), root)
}

// Iscatterv is [Scatterv], except that it does not block (MPI_Iscatterv). send and recv belong to
// the request until the request is complete.
func Iscatterv[T any](c *Comm, send []T, counts, displs []int, recv []T, root int) Request {
	return Request(c.in().Iscatterv(elem.View(send), counts, displs, elem.View(recv), root))
}

// Allgather collects the elements of all ranks in every recv, in rank order (MPI_Allgather, MPI 4.1
// §6.7). It is collective and blocks. n is the same on all ranks.
//
//	send: n elements, recv: ranks × n elements
//
// In place: send is the rank's own block of recv, or all of recv.
//
// Errors: ErrCount; ErrType; ErrBuffer if the slices overlap in another way; as for all
// collectives, see [Comm.Barrier].
func Allgather[T any](c *Comm, send, recv []T) error {
	return c.in().Allgather(elem.View(send), elem.View(recv))
}

// Iallgather is [Allgather], except that it does not block (MPI_Iallgather). The slices belong to
// the request until the request is complete.
func Iallgather[T any](c *Comm, send, recv []T) Request {
	return Request(c.in().Iallgather(elem.View(send), elem.View(recv)))
}

// Allgatherv is [Allgather] with another number of elements for each rank (MPI_Allgatherv, MPI 4.1
// §6.7): rank i sends counts[i] elements, which every rank stores from recv[displs[i]] on. counts
// is the same on all ranks; displs may differ. If displs is nil, the parts follow each other and
// fill recv.
//
//	send: counts[rank] elements, recv: all parts
//
// The parts of recv must not overlap. Allgatherv does not keep counts and displs. In place: send is
// the rank's own part of recv, or all of recv.
//
// Errors: those of Allgather; ErrCount as for [Gatherv]; ErrMismatch if the ranks' counts differ.
func Allgatherv[T any](c *Comm, send, recv []T, counts, displs []int) error {
	return c.in().Allgatherv(elem.View(send), elem.View(recv), counts, displs)
}

// Iallgatherv is [Allgatherv], except that it does not block (MPI_Iallgatherv). send and recv
// belong to the request until the request is complete.
func Iallgatherv[T any](c *Comm, send, recv []T, counts, displs []int) Request {
	return Request(c.in().Iallgatherv(elem.View(send), elem.View(recv), counts, displs))
}

// Alltoall sends block i of send to rank i, and receives from rank i into block i of recv
// (MPI_Alltoall, MPI 4.1 §6.8). It is collective and blocks. n is the same on all ranks.
//
//	send: ranks × n elements, recv: ranks × n elements
//
// In place: send and recv are the same slice.
//
// Errors: ErrCount; ErrType; ErrBuffer if the slices overlap in another way; as for all
// collectives, see [Comm.Barrier].
func Alltoall[T any](c *Comm, send, recv []T) error {
	return c.in().Alltoall(elem.View(send), elem.View(recv))
}

// Ialltoall is [Alltoall], except that it does not block (MPI_Ialltoall). The slices belong to the
// request until the request is complete.
func Ialltoall[T any](c *Comm, send, recv []T) Request {
	return Request(c.in().Ialltoall(elem.View(send), elem.View(recv)))
}

// Alltoallv is [Alltoall] with another number of elements for each pair of ranks (MPI_Alltoallv,
// MPI 4.1 §6.8). To rank i it sends the sendcounts[i] elements from send[senddispls[i]] on. From
// rank i it receives recvcounts[i] elements, which it stores from recv[recvdispls[i]] on.
// sendcounts[j] of rank i equals recvcounts[i] of rank j. If senddispls or recvdispls is nil, the
// parts of that slice follow each other and are all of it.
//
//	send: all parts to send, recv: all parts to receive
//
// The parts of recv must not overlap. Alltoallv does not keep counts and displacements. In place:
// send and recv are the same slice, and Alltoallv ignores sendcounts and senddispls. A call with
// empty slices is in place if sendcounts is nil.
//
// Errors: those of Alltoall; ErrCount as for [Gatherv], and if the ranks' counts differ.
func Alltoallv[T any](c *Comm, send []T, sendcounts, senddispls []int, recv []T, recvcounts, recvdispls []int) error {
	return c.in().Alltoallv(elem.View(send), sendcounts, senddispls, elem.View(recv), recvcounts, recvdispls)
}

// Ialltoallv is [Alltoallv], except that it does not block (MPI_Ialltoallv). send and recv belong
// to the request until the request is complete.
func Ialltoallv[T any](c *Comm, send []T, sendcounts, senddispls []int, recv []T, recvcounts, recvdispls []int) Request {
	return Request(c.in().Ialltoallv(elem.View(send), sendcounts, senddispls, elem.View(recv), recvcounts, recvdispls))
}
