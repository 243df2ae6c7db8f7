package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Persistent is an operation with fixed arguments that the program may start many times: a
// persistent request of MPI (MPI 4.1 §3.9, §6.13). A function such as [SendInit] or [AllreduceInit]
// makes it:
//
//	p, err := comm.AllreduceInit(c, in, out, comm.Sum[float64])
//	for range steps {
//		…                  // change in
//		p.Start()
//		…                  // compute something else
//		p.Wait()           // out has the sum
//	}
//	p.Free()
//
// Start begins the operation, and [Persistent.Wait] ends it. Between the two, the operation uses
// its slices. Start and Wait do not allocate. A message matches as if the program had called
// [Isend] or [Irecv] in place of Start. So a persistent send may match any receive, and a
// persistent receive may match any send.
//
// The function that makes a persistent collective is collective itself: all ranks call such
// functions in the same order, and each call takes as long as [Comm.Dup]. After that, a rank may
// start the persistent collectives of a communicator in any order. The order may differ between
// ranks.
//
// One goroutine at a time may use a Persistent.
type Persistent mpi.Persistent

func (p *Persistent) in() *mpi.Persistent { return (*mpi.Persistent)(p) }

// Start begins the operation (MPI_Start). It does not block. If the operation is a message, Wait
// returns the errors of the message. Errors of Start: ErrArg if p is nil or freed, or if the
// operation is active, which means that the program has started it and no wait or test has returned
// its result; ErrClosed; ErrRevoked; ErrInUse. After a persistent collective has failed, Start
// returns ErrRevoked with the cause.
func (p *Persistent) Start() error { return p.in().Start() }

// StartAll starts all operations, even if some fail, and returns the first error (MPI_Startall).
func StartAll(ps []*Persistent) error { return mpi.StartAll(cast[*mpi.Persistent](ps)) }

// Wait blocks until the operation is complete, as [Request.Wait] does. The operation can then start
// again. If the operation is not active, Wait returns at once with a zero Status.
func (p *Persistent) Wait() (Status, error) {
	st, err := p.in().Wait()
	return received(st, p.in().ElemSize()), err
}

// Test reports whether the operation is complete, without blocking, as [Request.Test] does.
func (p *Persistent) Test() (Status, bool, error) {
	st, ok, err := p.in().Test()
	return received(st, p.in().ElemSize()), ok, err
}

// Request returns the request of the operation, for [WaitAll], [WaitAny] and so on. After one of
// these functions has returned the result of the request, the operation can start again. If the
// operation is not active, the request is zero.
func (p *Persistent) Request() Request { return Request(p.in().Request()) }

// Free frees the operation, which must not be active (MPI_Request_free). For a message, Free is
// local. For a collective, Free is collective: all ranks call it, and it blocks as [Comm.Free]
// does. So if the ranks free several collectives, they must do so in the same order. The end of the
// job frees the operations that the program has not freed. Errors: ErrArg if the operation is
// active; those of Comm.Free. Free of a nil or freed operation does nothing.
func (p *Persistent) Free() error { return p.in().Free() }

func persistent(p *mpi.Persistent, err error) (*Persistent, error) { return (*Persistent)(p), err }

// SendInit makes a persistent [Send] (MPI_Send_init). It is local. Errors: those of the arguments
// of Send.
func SendInit[T any](c *Comm, buf []T, dest, tag int) (*Persistent, error) {
	return persistent(c.in().SendInit(elem.View(buf), dest, tag))
}

// SsendInit makes a persistent [Ssend] (MPI_Ssend_init). It is local.
func SsendInit[T any](c *Comm, buf []T, dest, tag int) (*Persistent, error) {
	return persistent(c.in().SsendInit(elem.View(buf), dest, tag))
}

// RecvInit makes a persistent [Recv] (MPI_Recv_init). It is local. Errors: those of the arguments
// of Recv.
func RecvInit[T any](c *Comm, buf []T, source, tag int) (*Persistent, error) {
	return persistent(c.in().RecvInit(elem.View(buf), source, tag))
}

// SendInit is the function [SendInit] for the elements of the view.
func (v View[T]) SendInit(c *Comm, dest, tag int) (*Persistent, error) {
	return persistent(c.in().SendInit(v.buffer(), dest, tag))
}

// RecvInit is the function [RecvInit] for the elements of the view.
func (v View[T]) RecvInit(c *Comm, source, tag int) (*Persistent, error) {
	return persistent(c.in().RecvInit(v.buffer(), source, tag))
}

// BarrierInit makes a persistent [Comm.Barrier] (MPI_Barrier_init). All functions that make a
// persistent collective return the errors of [Comm.Dup] and those of the arguments. If the
// arguments are wrong on one rank, the other ranks get ErrRevoked from the function that makes the
// operation, from Start or from Wait.
func (c *Comm) BarrierInit() (*Persistent, error) { return persistent(c.in().BarrierInit()) }

// BcastInit makes a persistent [Bcast] (MPI_Bcast_init).
func BcastInit[T any](c *Comm, buf []T, root int) (*Persistent, error) {
	return persistent(c.in().BcastInit(elem.View(buf), root))
}

// BcastInit is the function [BcastInit] for the elements of the view.
func (v View[T]) BcastInit(c *Comm, root int) (*Persistent, error) {
	return persistent(c.in().BcastInit(v.buffer(), root))
}

// GatherInit makes a persistent [Gather] (MPI_Gather_init).
func GatherInit[T any](c *Comm, send, recv []T, root int) (*Persistent, error) {
	return persistent(c.in().GatherInit(elem.View(send), elem.View(recv), root))
}

// GathervInit makes a persistent [Gatherv] (MPI_Gatherv_init). It copies counts and displs.
func GathervInit[T any](c *Comm, send, recv []T, counts, displs []int, root int) (*Persistent, error) {
	return persistent(c.in().GathervInit(elem.View(send), elem.View(recv), counts, displs, root))
}

// ScatterInit makes a persistent [Scatter] (MPI_Scatter_init).
func ScatterInit[T any](c *Comm, send, recv []T, root int) (*Persistent, error) {
	return persistent(c.in().ScatterInit(elem.View(send), elem.View(recv), root))
}

// ScattervInit makes a persistent [Scatterv] (MPI_Scatterv_init). It copies counts and displs.
func ScattervInit[T any](c *Comm, send []T, counts, displs []int, recv []T, root int) (*Persistent, error) {
	return persistent(c.in().ScattervInit(elem.View(send), counts, displs, elem.View(recv), root))
}

// AllgatherInit makes a persistent [Allgather] (MPI_Allgather_init).
func AllgatherInit[T any](c *Comm, send, recv []T) (*Persistent, error) {
	return persistent(c.in().AllgatherInit(elem.View(send), elem.View(recv)))
}

// AllgathervInit makes a persistent [Allgatherv] (MPI_Allgatherv_init). It copies counts and
// displs.
func AllgathervInit[T any](c *Comm, send, recv []T, counts, displs []int) (*Persistent, error) {
	return persistent(c.in().AllgathervInit(elem.View(send), elem.View(recv), counts, displs))
}

// AlltoallInit makes a persistent [Alltoall] (MPI_Alltoall_init).
func AlltoallInit[T any](c *Comm, send, recv []T) (*Persistent, error) {
	return persistent(c.in().AlltoallInit(elem.View(send), elem.View(recv)))
}

// AlltoallvInit makes a persistent [Alltoallv] (MPI_Alltoallv_init). It copies the counts and
// displacements.
func AlltoallvInit[T any](c *Comm, send []T, sendcounts, senddispls []int, recv []T, recvcounts, recvdispls []int) (*Persistent, error) {
	return persistent(c.in().AlltoallvInit(elem.View(send), sendcounts, senddispls, elem.View(recv), recvcounts, recvdispls))
}

// GatherViewInit makes a persistent [GatherView] (MPI_Gatherv_init). It copies the slice recv.
func GatherViewInit[T any](c *Comm, send View[T], recv []View[T], root int) (*Persistent, error) {
	return persistent(c.in().GatherViewInit(send.buffer(), buffers(recv), root))
}

// ScatterViewInit makes a persistent [ScatterView] (MPI_Scatterv_init). It copies the slice send.
func ScatterViewInit[T any](c *Comm, send []View[T], recv View[T], root int) (*Persistent, error) {
	return persistent(c.in().ScatterViewInit(buffers(send), recv.buffer(), root))
}

// AllgatherViewInit makes a persistent [AllgatherView] (MPI_Allgatherv_init). It copies the slice recv.
func AllgatherViewInit[T any](c *Comm, send View[T], recv []View[T]) (*Persistent, error) {
	return persistent(c.in().AllgatherViewInit(send.buffer(), buffers(recv)))
}

// AlltoallViewInit makes a persistent [AlltoallView] (MPI_Alltoallw_init). It copies the slices of
// views.
func AlltoallViewInit[T any](c *Comm, send, recv []View[T]) (*Persistent, error) {
	return persistent(c.in().AlltoallViewInit(buffers(send), buffers(recv)))
}

// ReduceInit makes a persistent [Reduce] (MPI_Reduce_init).
func ReduceInit[T any](c *Comm, send, recv []T, op OpFor[T], root int) (*Persistent, error) {
	return persistent(c.in().ReduceInit(elem.View(send), elem.View(recv), opOf(op), root))
}

// AllreduceInit makes a persistent [Allreduce] (MPI_Allreduce_init).
func AllreduceInit[T any](c *Comm, send, recv []T, op OpFor[T]) (*Persistent, error) {
	return persistent(c.in().AllreduceInit(elem.View(send), elem.View(recv), opOf(op)))
}

// ReduceScatterBlockInit makes a persistent [ReduceScatterBlock] (MPI_Reduce_scatter_block_init).
func ReduceScatterBlockInit[T any](c *Comm, send, recv []T, op OpFor[T]) (*Persistent, error) {
	return persistent(c.in().ReduceScatterBlockInit(elem.View(send), elem.View(recv), opOf(op)))
}

// ReduceScatterInit makes a persistent [ReduceScatter] (MPI_Reduce_scatter_init). It copies counts.
func ReduceScatterInit[T any](c *Comm, send, recv []T, counts []int, op OpFor[T]) (*Persistent, error) {
	return persistent(c.in().ReduceScatterInit(elem.View(send), elem.View(recv), counts, opOf(op)))
}

// ScanInit makes a persistent [Scan] (MPI_Scan_init).
func ScanInit[T any](c *Comm, send, recv []T, op OpFor[T]) (*Persistent, error) {
	return persistent(c.in().ScanInit(elem.View(send), elem.View(recv), opOf(op)))
}

// ExscanInit makes a persistent [Exscan] (MPI_Exscan_init).
func ExscanInit[T any](c *Comm, send, recv []T, op OpFor[T]) (*Persistent, error) {
	return persistent(c.in().ExscanInit(elem.View(send), elem.View(recv), opOf(op)))
}
