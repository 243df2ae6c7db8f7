package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Reduce combines the elements of all ranks into the root's recv (MPI_Reduce, MPI 4.1 §6.9.1). If
// the operation does not commute, the operands are in rank order. Reduce is collective. It blocks
// until this rank's part is complete. root and len(send) are the same on all ranks.
//
//	root   send: n elements, recv: n elements
//	others send: n elements, recv: ignored, may be nil
//
// In place on the root: send and recv are the same slice. The order in which elements are combined
// does not depend on timing, but only on the call, the number of ranks, their hosts and the
// configuration. So the same call in the same job always gives the same bits.
//
// Errors: ErrRank for a wrong root; ErrCount if the lengths differ; ErrOp; ErrType; ErrBuffer if
// the slices overlap in another way; as for all collectives, see [Comm.Barrier].
//
// Reduce does not allocate in steady state.
func Reduce[T any](c *Comm, send, recv []T, op OpFor[T], root int) error {
	return c.in().Reduce(elem.View(send), elem.View(recv), opOf(op), root)
}

// Ireduce is [Reduce], except that it does not block (MPI_Ireduce). The slices belong to the
// request until the request is complete.
func Ireduce[T any](c *Comm, send, recv []T, op OpFor[T], root int) Request {
	return Request(c.in().Ireduce(elem.View(send), elem.View(recv), opOf(op), root))
}

// Allreduce is [Reduce] without a root: every rank gets the result, with the same bits
// (MPI_Allreduce, MPI 4.1 §6.9.6).
//
//	send: n elements, recv: n elements
//
// In place: send and recv are the same slice. Errors: those of Reduce.
//
// Allreduce does not allocate in steady state.
func Allreduce[T any](c *Comm, send, recv []T, op OpFor[T]) error {
	return c.in().Allreduce(elem.View(send), elem.View(recv), opOf(op))
}

// Iallreduce is [Allreduce], except that it does not block (MPI_Iallreduce). The slices belong to
// the request until the request is complete.
func Iallreduce[T any](c *Comm, send, recv []T, op OpFor[T]) Request {
	return Request(c.in().Iallreduce(elem.View(send), elem.View(recv), opOf(op)))
}

// ReduceLocal combines the elements of two slices of this rank: it sets inout[i] to in[i] ∘
// inout[i] (MPI_Reduce_local, MPI 4.1 §6.9.7). It is local. A program that implements a reduction
// of its own uses it.
//
// Errors: ErrCount if the lengths differ; ErrOp; ErrType; ErrBuffer if the slices overlap.
func ReduceLocal[T any](in, inout []T, op OpFor[T]) error {
	return mpi.ReduceLocal(elem.View(in), elem.View(inout), opOf(op))
}

// Scan combines the elements of ranks 0 to i into recv of rank i (MPI_Scan, MPI 4.1 §6.11.1). The
// shapes of the slices, the call in place and the errors are those of [Allreduce].
func Scan[T any](c *Comm, send, recv []T, op OpFor[T]) error {
	return c.in().Scan(elem.View(send), elem.View(recv), opOf(op))
}

// Iscan is [Scan], except that it does not block (MPI_Iscan). The slices belong to the request
// until the request is complete.
func Iscan[T any](c *Comm, send, recv []T, op OpFor[T]) Request {
	return Request(c.in().Iscan(elem.View(send), elem.View(recv), opOf(op)))
}

// Exscan combines the elements of ranks 0 to i-1 into recv of rank i, and does not change recv of
// rank 0 (MPI_Exscan, MPI 4.1 §6.11.2). The shapes of the slices, the call in place and the errors
// are those of [Allreduce].
func Exscan[T any](c *Comm, send, recv []T, op OpFor[T]) error {
	return c.in().Exscan(elem.View(send), elem.View(recv), opOf(op))
}

// Iexscan is [Exscan], except that it does not block (MPI_Iexscan). The slices belong to the
// request until the request is complete.
func Iexscan[T any](c *Comm, send, recv []T, op OpFor[T]) Request {
	return Request(c.in().Iexscan(elem.View(send), elem.View(recv), opOf(op)))
}

// ReduceScatterBlock combines the elements of all ranks, as [Reduce] does, and puts block i of the
// result into recv of rank i (MPI_Reduce_scatter_block, MPI 4.1 §6.10.1). It is collective and
// blocks.
//
//	send: ranks × n elements, recv: n elements
//
// In place: recv is the first n elements of send, or all of send. After the call, the elements of
// send after the first n are undefined. Errors: those of [Allreduce].
func ReduceScatterBlock[T any](c *Comm, send, recv []T, op OpFor[T]) error {
	return c.in().ReduceScatterBlock(elem.View(send), elem.View(recv), opOf(op))
}

// IreduceScatterBlock is [ReduceScatterBlock], except that it does not block
// (MPI_Ireduce_scatter_block). The slices belong to the request until the request is complete.
func IreduceScatterBlock[T any](c *Comm, send, recv []T, op OpFor[T]) Request {
	return Request(c.in().IreduceScatterBlock(elem.View(send), elem.View(recv), opOf(op)))
}

// ReduceScatter is [ReduceScatterBlock] with a block of counts[i] elements for rank i
// (MPI_Reduce_scatter, MPI 4.1 §6.10.2). counts is the same on all ranks.
//
//	send: sum of counts elements, recv: counts[rank] elements
//
// ReduceScatter does not keep counts. Errors: those of [Allreduce]; ErrCount if a count is negative
// or the counts do not fit the slices; ErrMismatch if the ranks' counts differ.
func ReduceScatter[T any](c *Comm, send, recv []T, counts []int, op OpFor[T]) error {
	return c.in().ReduceScatter(elem.View(send), elem.View(recv), counts, opOf(op))
}

// IreduceScatter is [ReduceScatter], except that it does not block (MPI_Ireduce_scatter). send and
// recv belong to the request until the request is complete.
func IreduceScatter[T any](c *Comm, send, recv []T, counts []int, op OpFor[T]) Request {
	return Request(c.in().IreduceScatter(elem.View(send), elem.View(recv), counts, opOf(op)))
}
