package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
)

// Reduce combines the elements of all ranks, in rank order, and leaves the
// result with root (MPI_Reduce, MPI 4.1 §6.9.1). It is collective and blocks
// until this rank's part is done; root and len(send) are the same on all ranks.
//
//	root   send: n elements, recv: n elements
//	others send: n elements, recv: ignored, may be nil
//
// In place at the root: send and recv are the same slice. The order in which
// elements are combined depends on ranks, sizes and configuration only, so that
// the same call gives the same bits every time.
//
// Errors: ErrRank for a wrong root, ErrCount where lengths differ, ErrOp,
// ErrType, ErrBuffer for slices that overlap otherwise; as all collectives
// (see Barrier).
//
// Hot path: no allocation in steady state.
func Reduce[T any](c *Comm, send, recv []T, op OpFor[T], root int) error {
	return c.in().Reduce(elem.View(send), elem.View(recv), opOf(op), root)
}

// Ireduce is Reduce that returns at once; the slices belong to the request
// until it is complete (MPI_Ireduce).
func Ireduce[T any](c *Comm, send, recv []T, op OpFor[T], root int) Request {
	return Request(c.in().Ireduce(elem.View(send), elem.View(recv), opOf(op), root))
}

// Allreduce is Reduce whose result every rank gets, with the same bits
// (MPI_Allreduce, MPI 4.1 §6.9.6).
//
//	send: n elements, recv: n elements
//
// In place: send and recv are the same slice. Errors: those of Reduce.
//
// Hot path: no allocation in steady state.
func Allreduce[T any](c *Comm, send, recv []T, op OpFor[T]) error {
	return c.in().Allreduce(elem.View(send), elem.View(recv), opOf(op))
}

// Iallreduce is Allreduce that returns at once; the slices belong to the
// request until it is complete (MPI_Iallreduce).
func Iallreduce[T any](c *Comm, send, recv []T, op OpFor[T]) Request {
	return Request(c.in().Iallreduce(elem.View(send), elem.View(recv), opOf(op)))
}

// Scan leaves with rank i the combination of the elements of ranks 0 to i
// (MPI_Scan, MPI 4.1 §6.11.1). Shapes, being in place and errors are those of
// Allreduce.
func Scan[T any](c *Comm, send, recv []T, op OpFor[T]) error {
	return c.in().Scan(elem.View(send), elem.View(recv), opOf(op))
}

// Iscan is Scan that returns at once; the slices belong to the request until
// it is complete (MPI_Iscan).
func Iscan[T any](c *Comm, send, recv []T, op OpFor[T]) Request {
	return Request(c.in().Iscan(elem.View(send), elem.View(recv), opOf(op)))
}

// Exscan leaves with rank i the combination of the elements of ranks 0 to i-1,
// and does not touch recv of rank 0 (MPI_Exscan, MPI 4.1 §6.11.2). Shapes,
// being in place and errors are those of Allreduce.
func Exscan[T any](c *Comm, send, recv []T, op OpFor[T]) error {
	return c.in().Exscan(elem.View(send), elem.View(recv), opOf(op))
}

// Iexscan is Exscan that returns at once; the slices belong to the request
// until it is complete (MPI_Iexscan).
func Iexscan[T any](c *Comm, send, recv []T, op OpFor[T]) Request {
	return Request(c.in().Iexscan(elem.View(send), elem.View(recv), opOf(op)))
}

// ReduceScatterBlock combines the elements of all ranks, in rank order, and
// leaves the i-th block of the result with rank i
// (MPI_Reduce_scatter_block, MPI 4.1 §6.10.1). It is collective and blocks.
//
//	send: ranks × n elements, recv: n elements
//
// In place: recv is the beginning of send, or send itself, whose other blocks
// are then undefined. Errors: those of Allreduce.
func ReduceScatterBlock[T any](c *Comm, send, recv []T, op OpFor[T]) error {
	return c.in().ReduceScatterBlock(elem.View(send), elem.View(recv), opOf(op))
}

// IreduceScatterBlock is ReduceScatterBlock that returns at once; the slices
// belong to the request until it is complete (MPI_Ireduce_scatter_block).
func IreduceScatterBlock[T any](c *Comm, send, recv []T, op OpFor[T]) Request {
	return Request(c.in().IreduceScatterBlock(elem.View(send), elem.View(recv), opOf(op)))
}

// ReduceScatter is ReduceScatterBlock with a block of counts[i] elements for
// rank i; counts is the same on all ranks (MPI_Reduce_scatter, MPI 4.1 §6.10.2).
//
//	send: sum of counts elements, recv: counts[rank] elements
//
// It does not keep counts. Errors: those of Allreduce; ErrCount for counts
// that are negative or do not fit; ErrMismatch where the ranks' counts differ.
func ReduceScatter[T any](c *Comm, send, recv []T, counts []int, op OpFor[T]) error {
	return c.in().ReduceScatter(elem.View(send), elem.View(recv), counts, opOf(op))
}

// IreduceScatter is ReduceScatter that returns at once; the slices, but for
// counts, belong to the request until it is complete (MPI_Ireduce_scatter).
func IreduceScatter[T any](c *Comm, send, recv []T, counts []int, op OpFor[T]) Request {
	return Request(c.in().IreduceScatter(elem.View(send), elem.View(recv), counts, opOf(op)))
}
