package comm

import (
	"github.com/weft-hpc/weft/internal/coll"

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
	return run(reduce(c, "Reduce", coll.KindReduce, send, recv, op, root))
}

// Ireduce is Reduce that returns at once; the slices belong to the request
// until it is complete (MPI_Ireduce).
func Ireduce[T any](c *Comm, send, recv []T, op OpFor[T], root int) Request {
	return c.spawn(reduce(c, "Ireduce", coll.KindReduce, send, recv, op, root))
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
	return run(reduce(c, "Allreduce", coll.KindAllreduce, send, recv, op, 0))
}

// Iallreduce is Allreduce that returns at once; the slices belong to the
// request until it is complete (MPI_Iallreduce).
func Iallreduce[T any](c *Comm, send, recv []T, op OpFor[T]) Request {
	return c.spawn(reduce(c, "Iallreduce", coll.KindAllreduce, send, recv, op, 0))
}

// Scan leaves with rank i the combination of the elements of ranks 0 to i
// (MPI_Scan, MPI 4.1 §6.11.1). Shapes, being in place and errors are those of
// Allreduce.
func Scan[T any](c *Comm, send, recv []T, op OpFor[T]) error {
	return run(reduce(c, "Scan", coll.KindScan, send, recv, op, 0))
}

// Iscan is Scan that returns at once; the slices belong to the request until
// it is complete (MPI_Iscan).
func Iscan[T any](c *Comm, send, recv []T, op OpFor[T]) Request {
	return c.spawn(reduce(c, "Iscan", coll.KindScan, send, recv, op, 0))
}

// Exscan leaves with rank i the combination of the elements of ranks 0 to i-1,
// and does not touch recv of rank 0 (MPI_Exscan, MPI 4.1 §6.11.2). Shapes,
// being in place and errors are those of Allreduce.
func Exscan[T any](c *Comm, send, recv []T, op OpFor[T]) error {
	return run(reduce(c, "Exscan", coll.KindExscan, send, recv, op, 0))
}

// Iexscan is Exscan that returns at once; the slices belong to the request
// until it is complete (MPI_Iexscan).
func Iexscan[T any](c *Comm, send, recv []T, op OpFor[T]) Request {
	return c.spawn(reduce(c, "Iexscan", coll.KindExscan, send, recv, op, 0))
}

func reduce[T any](c *Comm, name string, what coll.Kind, send, recv []T, op OpFor[T], root int) (*link, error) {
	l, sb, rb, err := open(c, name, send, recv)
	if err != nil {
		return nil, err
	}
	if l.op, l.opID, err = operation(op); err != nil {
		return l.refuse(err)
	}
	return l.reduce(what, sb, rb, root)
}

func (l *link) reduce(what coll.Kind, send, recv []byte, root int) (*link, error) {
	if err := l.checkRoot(root); err != nil {
		return l.refuse(err)
	}
	if what == coll.KindReduce && l.Rank() != root {
		recv = nil
	} else if err := l.checkPair(send, recv); err != nil {
		return l.refuse(err)
	}
	l.send, l.recv = send, recv
	return l.ready(what, root, len(send))
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
	return run(reduceScatterBlock(c, "ReduceScatterBlock", send, recv, op))
}

// IreduceScatterBlock is ReduceScatterBlock that returns at once; the slices
// belong to the request until it is complete (MPI_Ireduce_scatter_block).
func IreduceScatterBlock[T any](c *Comm, send, recv []T, op OpFor[T]) Request {
	return c.spawn(reduceScatterBlock(c, "IreduceScatterBlock", send, recv, op))
}

func reduceScatterBlock[T any](c *Comm, name string, send, recv []T, op OpFor[T]) (*link, error) {
	l, sb, rb, err := open(c, name, send, recv)
	if err != nil {
		return nil, err
	}
	if l.op, l.opID, err = operation(op); err != nil {
		return l.refuse(err)
	}
	if rb, err = l.ownBlock("recv", rb, "send", sb, 0); err != nil {
		return l.refuse(err)
	}
	return l.reduceScatter(coll.KindReduceScatterBlock, sb, rb, len(sb)/l.Size())
}

// reduceScatter takes the rank's own block in bytes.
func (l *link) reduceScatter(what coll.Kind, send, recv []byte, block int) (*link, error) {
	if elem.SameStart(send, recv) && len(recv) == len(send) {
		recv = recv[:block]
	}
	if len(recv) != block {
		return l.refuse(l.wrongLength("recv", recv, block))
	}
	if elem.Overlap(send, recv) && !elem.SameStart(send, recv) {
		return l.refuse(ErrBuffer)
	}
	l.send, l.recv = send, recv
	if what == coll.KindReduceScatter {
		return l.readyWith(what, l.recvCounts, len(send))
	}
	return l.ready(what, 0, block)
}

// ReduceScatter is ReduceScatterBlock with a block of counts[i] elements for
// rank i; counts is the same on all ranks (MPI_Reduce_scatter, MPI 4.1 §6.10.2).
//
//	send: sum of counts elements, recv: counts[rank] elements
//
// It does not keep counts. Errors: those of Allreduce; ErrCount for counts
// that are negative or do not fit; ErrMismatch where the ranks' counts differ.
func ReduceScatter[T any](c *Comm, send, recv []T, counts []int, op OpFor[T]) error {
	return run(reduceScatter(c, "ReduceScatter", send, recv, counts, op))
}

// IreduceScatter is ReduceScatter that returns at once; the slices, but for
// counts, belong to the request until it is complete (MPI_Ireduce_scatter).
func IreduceScatter[T any](c *Comm, send, recv []T, counts []int, op OpFor[T]) Request {
	return c.spawn(reduceScatter(c, "IreduceScatter", send, recv, counts, op))
}

func reduceScatter[T any](c *Comm, name string, send, recv []T, counts []int, op OpFor[T]) (*link, error) {
	l, sb, rb, err := open(c, name, send, recv)
	if err != nil {
		return nil, err
	}
	if l.op, l.opID, err = operation(op); err != nil {
		return l.refuse(err)
	}
	if l.recvCounts, _, err = l.layout("send", sb, counts, nil); err != nil {
		return l.refuse(err)
	}
	return l.reduceScatter(coll.KindReduceScatter, sb, rb, l.recvCounts[l.Rank()])
}
