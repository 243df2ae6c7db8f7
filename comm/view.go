package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// View is the elements of a slice that a [Layout] describes. Its methods send and receive these
// elements without a copy by the program: the sending rank copies the elements to the message, part
// by part, and the receiving rank copies each part from the message to its place. A message has no
// layout: if one rank sends from a view, the other may receive into a slice, or into a view with
// another layout.
//
// Goroutines may share a View under the same conditions as its slice. If the layout is wrong, every
// call with the view returns [ErrLayout]. If the layout does not fit the slice, every call returns
// [ErrCount]. The zero View has no elements, and every call with it returns [ErrType].
type View[T any] struct{ in elem.Buffer }

// Of returns the View of the elements of buf that l describes. All elements of the layout must be
// inside buf. The first call for a layout and a type T allocates; later calls do not.
func Of[T any](buf []T, l Layout) View[T] {
	if l.in == nil {
		return View[T]{elem.View(buf[:0])}
	}
	return View[T]{elem.ViewAs(buf, l.in)}
}

// buffer returns the view for a call of package mpi.
func (v View[T]) buffer() elem.Buffer {
	if v.in.Type == nil {
		return elem.NoView
	}
	return v.in
}

// Err returns the error that calls with the view return, or nil.
func (v View[T]) Err() error { return v.buffer().Type.Err }

// Len returns the number of elements of the view.
func (v View[T]) Len() int { return elem.Whole(v.buffer().Size(), elem.SizeOf[T]()) }

// Send is the function [Send] for the elements of the view. It does not allocate in steady state.
func (v View[T]) Send(c *Comm, dest, tag int) error { return c.in().Send(v.buffer(), dest, tag) }

// Ssend is the function [Ssend] for the elements of the view.
func (v View[T]) Ssend(c *Comm, dest, tag int) error { return c.in().Ssend(v.buffer(), dest, tag) }

// Bsend is the function [Bsend] for the elements of the view.
func (v View[T]) Bsend(c *Comm, dest, tag int) error { return c.in().Bsend(v.buffer(), dest, tag) }

// Recv is the function [Recv] for the elements of the view. It does not allocate.
func (v View[T]) Recv(c *Comm, source, tag int) (Status, error) {
	st, err := c.in().Recv(v.buffer(), source, tag)
	return received(st, elem.SizeOf[T]()), err
}

// Isend is the function [Isend] for the elements of the view. It does not allocate in steady state.
func (v View[T]) Isend(c *Comm, dest, tag int) Request {
	return Request(c.in().Isend(v.buffer(), dest, tag))
}

// Issend is the function [Issend] for the elements of the view.
func (v View[T]) Issend(c *Comm, dest, tag int) Request {
	return Request(c.in().Issend(v.buffer(), dest, tag))
}

// Irecv is the function [Irecv] for the elements of the view. It does not allocate.
func (v View[T]) Irecv(c *Comm, source, tag int) Request {
	return Request(c.in().Irecv(v.buffer(), source, tag))
}

// Mrecv is the function [Mrecv] for the elements of the view.
func (v View[T]) Mrecv(m *Message) (Status, error) {
	st, err := (*mpi.Message)(m).Mrecv(v.buffer())
	return received(st, elem.SizeOf[T]()), err
}

// Imrecv is the function [Imrecv] for the elements of the view.
func (v View[T]) Imrecv(m *Message) Request {
	return Request((*mpi.Message)(m).Imrecv(v.buffer()))
}

// SendrecvView is [Sendrecv] for the elements of two views. The views may belong to the same slice,
// but must have no element in common. SendrecvView does not check that.
func SendrecvView[S, R any](c *Comm, send View[S], dest, sendtag int, recv View[R], source, recvtag int) (Status, error) {
	st, err := c.in().Sendrecv(send.buffer(), dest, sendtag, recv.buffer(), source, recvtag)
	return received(st, elem.SizeOf[R]()), err
}

// Bcast is the function [Bcast] for the elements of the view. Other ranks may pass a view with
// another layout, or call the function with a slice. All ranks pass the same number of elements.
func (v View[T]) Bcast(c *Comm, root int) error { return c.in().Bcast(v.buffer(), root) }

// Ibcast is [View.Bcast], except that it does not block. The view belongs to the request until the
// request is complete.
func (v View[T]) Ibcast(c *Comm, root int) Request { return Request(c.in().Ibcast(v.buffer(), root)) }

// GatherView collects the elements of all ranks in the root's views: recv[i] receives what rank i
// sends. GatherView is collective. Ranks other than the root may call [Gatherv] instead.
//
//	root   send: as many elements as recv[root]; recv: a view for each rank
//	others send: as many elements as the root's view for this rank; recv: ignored, may be nil
//
// send may share elements with the views of recv. Errors: those of Gatherv, except ErrBuffer.
func GatherView[T any](c *Comm, send View[T], recv []View[T], root int) error {
	return c.in().GatherView(send.buffer(), buffers(recv), root)
}

// IgatherView is [GatherView], except that it does not block. The views belong to the request until
// the request is complete.
func IgatherView[T any](c *Comm, send View[T], recv []View[T], root int) Request {
	return Request(c.in().IgatherView(send.buffer(), buffers(recv), root))
}

// ScatterView sends to each rank the elements of one of the root's views: rank i receives the
// elements of send[i]. ScatterView is collective. Ranks other than the root may call [Scatterv]
// instead.
//
//	root   send: a view for each rank; recv: as many elements as send[root]
//	others send: ignored, may be nil; recv: as many elements as the root's view for this rank
//
// recv may share elements with the views of send. Errors: those of Scatterv, except ErrBuffer.
func ScatterView[T any](c *Comm, send []View[T], recv View[T], root int) error {
	return c.in().ScatterView(buffers(send), recv.buffer(), root)
}

// IscatterView is [ScatterView], except that it does not block. The views belong to the request
// until the request is complete.
func IscatterView[T any](c *Comm, send []View[T], recv View[T], root int) Request {
	return Request(c.in().IscatterView(buffers(send), recv.buffer(), root))
}

// AllgatherView is [GatherView] to all ranks: each rank receives in recv[i] what rank i sends.
// AllgatherView is collective. Some ranks may call [Allgatherv] instead. For each i, recv[i] has
// the same number of elements on all ranks.
//
// send may share elements with the views of recv. Errors: those of Allgatherv, except ErrBuffer.
func AllgatherView[T any](c *Comm, send View[T], recv []View[T]) error {
	return c.in().AllgatherView(send.buffer(), buffers(recv))
}

// IallgatherView is [AllgatherView], except that it does not block. The views belong to the request
// until the request is complete.
func IallgatherView[T any](c *Comm, send View[T], recv []View[T]) Request {
	return Request(c.in().IallgatherView(send.buffer(), buffers(recv)))
}

// AlltoallView sends send[i] to rank i, and receives in recv[i] what rank i sends to this rank
// (MPI_Alltoallw, MPI 4.1 §6.8). AlltoallView is collective. Some ranks may call [Alltoallv]
// instead. send and recv have a view for each rank.
//
// The views of recv may share elements with the views of send. Errors: those of Alltoallv, except
// ErrBuffer.
func AlltoallView[T any](c *Comm, send, recv []View[T]) error {
	return c.in().AlltoallView(buffers(send), buffers(recv))
}

// IalltoallView is [AlltoallView], except that it does not block (MPI_Ialltoallw). The views belong
// to the request until the request is complete.
func IalltoallView[T any](c *Comm, send, recv []View[T]) Request {
	return Request(c.in().IalltoallView(buffers(send), buffers(recv)))
}

// ReduceView is [Reduce] for the elements of views: send has n elements on all ranks, and recv has n elements
// on the root. On other ranks recv is ignored, and may be the zero View. send and recv may be the same view,
// but must not share elements in another way, which ReduceView reports only for contiguous views of slices.
// Some ranks may call Reduce instead. Errors: those of Reduce.
func ReduceView[T any](c *Comm, send, recv View[T], op OpFor[T], root int) error {
	return c.in().Reduce(send.buffer(), recv.buffer(), opOf(op), root)
}

// IreduceView is [ReduceView], except that it does not block. The views belong to the request until the
// request is complete.
func IreduceView[T any](c *Comm, send, recv View[T], op OpFor[T], root int) Request {
	return Request(c.in().Ireduce(send.buffer(), recv.buffer(), opOf(op), root))
}

// AllreduceView is [Allreduce] for the elements of views: send and recv have n elements on all ranks. They may
// be the same view, but must not share elements in another way, as for [ReduceView]. Some ranks may call
// Allreduce instead. Errors: those of Allreduce.
func AllreduceView[T any](c *Comm, send, recv View[T], op OpFor[T]) error {
	return c.in().Allreduce(send.buffer(), recv.buffer(), opOf(op))
}

// IallreduceView is [AllreduceView], except that it does not block. The views belong to the request until
// the request is complete.
func IallreduceView[T any](c *Comm, send, recv View[T], op OpFor[T]) Request {
	return Request(c.in().Iallreduce(send.buffer(), recv.buffer(), opOf(op)))
}

// Pack copies the elements of v to dst, in the order of a message, and returns their number
// (MPI_Pack). Pack is local, and does not allocate. Errors: those of v; ErrTruncate if dst has
// fewer elements than v, after Pack has filled dst.
func Pack[T any](dst []T, v View[T]) (int, error) {
	b := v.buffer()
	if err := b.Type.Err; err != nil {
		return 0, err
	}
	n := min(len(dst), v.Len())
	if err := b.Pack(elem.View(dst[:n]).Bytes()); err != nil {
		return 0, err
	}
	if n < v.Len() {
		return n, ErrTruncate
	}
	return n, nil
}

// Unpack copies the elements of src to the elements of v, in the order of a message, and returns
// their number (MPI_Unpack). Unpack is local, and does not allocate. If src has fewer elements than
// v, the other elements of v do not change. Errors: those of v; ErrTruncate if src has more
// elements than v, after Unpack has filled v.
func Unpack[T any](v View[T], src []T) (int, error) {
	b := v.buffer()
	if err := b.Type.Err; err != nil {
		return 0, err
	}
	n := min(len(src), v.Len())
	if err := b.Unpack(elem.View(src[:n]).Bytes()); err != nil {
		return 0, err
	}
	if n < len(src) {
		return n, ErrTruncate
	}
	return n, nil
}
