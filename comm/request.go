package comm

import (
	"context"
	"errors"
	"iter"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Request stands for an operation in progress: a send, a receive, a collective or a one-sided
// operation (MPI 4.1 §3.7). Request is a value, and copies stand for the same operation. When the
// program has waited for one copy, the others count as complete, and so does the zero Request. If
// the call that started the operation had wrong arguments, Wait or Test returns the error.
//
// The buffers of the operation belong to it until Wait or Test reports that it is complete. The
// program must wait for every request, or test it until it is complete. If the program has not,
// [Comm.Finalize] reports the requests that failed or did not complete.
type Request mpi.Request

// Completion is the result of one request that [WaitSome], [TestSome] or [Completed] has found
// complete.
type Completion struct {
	Index  int // of the request in the slice of requests
	Status Status
	Err    error
}

func outcome(c mpi.Completion) Completion {
	s := received(c.Status, 0)
	s.Count = c.Count
	return Completion{Index: c.Index, Status: s, Err: c.Err}
}

// Isend is [Send], except that it does not block (MPI_Isend, MPI 4.1 §3.7). buf belongs to the
// request until the request is complete, and the program must not write to buf until then.
//
// Isend does not allocate.
func Isend[T any](c *Comm, buf []T, dest, tag int) Request {
	return Request(c.in().Isend(elem.View(buf), dest, tag))
}

// Issend is [Isend], except that the request is complete only when a receive has matched the
// message (MPI_Issend, MPI 4.1 §3.7).
func Issend[T any](c *Comm, buf []T, dest, tag int) Request {
	return Request(c.in().Issend(elem.View(buf), dest, tag))
}

// Irecv is [Recv], except that it does not block (MPI_Irecv, MPI 4.1 §3.7). buf belongs to the
// request until the request is complete. Receives match messages in the order in which they were
// started.
//
// Irecv does not allocate.
func Irecv[T any](c *Comm, buf []T, source, tag int) Request {
	return Request(c.in().Irecv(elem.View(buf), source, tag))
}

// Wait blocks until the operation is complete (MPI_Wait). The Status is that of a receive, and zero
// for other operations. Errors: those of the blocking call. If the communicator's context ends
// first, Wait returns its error; the operation continues and keeps its buffers, and Wait may be
// called again. A collective, however, fails itself when the context ends.
//
// A receive from AnySource also continues if Wait returns [ErrProcFailedPending], because a failed
// process may be the source. After [Comm.AckFailed] the program may call Wait again. WaitAll and
// the other calls for several requests leave such a request as it is, too.
//
// Wait does not allocate.
func (r Request) Wait() (Status, error) {
	in := mpi.Request(r)
	st, err := in.Wait()
	return received(st, in.ElemSize()), err
}

// WaitContext is [Request.Wait] with another context than the communicator's. If ctx ends first,
// WaitContext returns its error, and the operation continues, also if it is a collective.
func (r Request) WaitContext(ctx context.Context) (Status, error) {
	in := mpi.Request(r)
	st, err := in.WaitContext(ctx)
	return received(st, in.ElemSize()), err
}

// Test reports whether the operation is complete, without blocking (MPI_Test). If the operation is
// complete, Test returns what Wait would return, and the program need not wait for the request. If
// it is not complete, the error is nil or [ErrProcFailedPending].
func (r Request) Test() (Status, bool, error) {
	in := mpi.Request(r)
	st, ok, err := in.Test()
	return received(st, in.ElemSize()), ok, err
}

// Peek is [Request.Test], except that the request stays as it is: a later Wait or Test returns the
// same result, and the program must still call one of them (MPI_Request_get_status).
func (r Request) Peek() (Status, bool, error) {
	in := mpi.Request(r)
	st, ok, err := in.Peek()
	return received(st, in.ElemSize()), ok, err
}

// Cancel withdraws a receive that has not matched a message yet (MPI_Cancel). The program must
// still call Wait, whose Status then has Cancelled set. A receive that has matched a message, and
// any other operation, continues as if Cancel had not been called. For a request of
// [Comm.NewRequest], Cancel calls the program's function. Cancel is local and does not block.
func (r Request) Cancel() error { return mpi.Request(r).Cancel() }

// WaitAll blocks until all requests are complete, even if some fail, and sets them to zero
// (MPI_Waitall). It returns the error of the first request in rs that failed. If the context of a
// request ends first, that is the error of the request; the requests that are not complete stay as
// they are, and WaitAll may be called again.
func WaitAll(rs []Request) error { return mpi.WaitAll(requests(rs)) }

// WaitEach is [WaitAll] that also returns the results: it appends a [Completion] for each request
// to done, in the order of rs, also for zero requests (MPI_Waitall with statuses). If the context
// of a request ends first, the Err of its Completion is the context's error, and the request stays
// as it is. WaitEach does not allocate if done has room.
func WaitEach(rs []Request, done []Completion) ([]Completion, error) {
	all, err := mpi.WaitEach(requests(rs), cast[mpi.Completion](done))
	return cast[Completion](all), err
}

// WaitAny blocks until one of the requests is complete, sets it to zero, and returns its index,
// status and error (MPI_Waitany). If several requests are complete, WaitAny chooses one of them. If
// all requests are zero, or copies of requests that the program has waited for, the index is -1. If
// a context ends first, the index is -1, and the error is that of the context; the context is that
// of the communicator of the first request that is in progress. All requests must belong to one
// rank, also if the ranks of a test are goroutines.
//
// Cost: at most proportional to len(rs).
func WaitAny(rs []Request) (int, Status, error) {
	c := outcome(mpi.WaitAny(requests(rs)))
	return c.Index, c.Status, c.Err
}

// TestAny is [WaitAny], except that it does not block (MPI_Testany). The bool is false, and the
// index -1, if requests are in progress and none of them is complete.
func TestAny(rs []Request) (int, Status, bool, error) {
	in, ok := mpi.TestAny(requests(rs))
	c := outcome(in)
	return c.Index, c.Status, ok, c.Err
}

// TestAll reports whether all requests are complete, without blocking (MPI_Testall). If they are,
// it sets them to zero and returns the error of the first request in rs that failed. Otherwise all
// requests stay as they are.
func TestAll(rs []Request) (bool, error) { return mpi.TestAll(requests(rs)) }

// TestEach is [TestAll] that also returns the results, as [WaitEach] does. If requests are not
// complete, the bool is false, and TestEach appends nothing (MPI_Testall with statuses).
func TestEach(rs []Request, done []Completion) ([]Completion, bool, error) {
	all, ok, err := mpi.TestEach(requests(rs), cast[mpi.Completion](done))
	return cast[Completion](all), ok, err
}

// WaitSome blocks until at least one of the requests is complete, sets all complete requests to
// zero, and appends a [Completion] for each to done (MPI_Waitsome). If all requests are zero, or
// copies of requests that the program has waited for, it appends nothing. The error is not nil only
// if a context ended first (see [WaitAny]); the errors of the operations are in the Completions.
func WaitSome(rs []Request, done []Completion) ([]Completion, error) {
	some, err := mpi.WaitSome(requests(rs), cast[mpi.Completion](done))
	return cast[Completion](some), err
}

// TestSome is [WaitSome], except that it does not block (MPI_Testsome).
func TestSome(rs []Request, done []Completion) []Completion {
	return cast[Completion](mpi.TestSome(requests(rs), cast[mpi.Completion](done)))
}

// Completed returns the requests in the order in which they complete, and sets each to zero:
//
//	for done := range comm.Completed(rs) { … rs[done.Index] … }
//
// The loop blocks as [WaitAny] does, and ends when all requests are zero. If a context ends first,
// the last Completion has the index -1 and the context's error. A request that returns
// [ErrProcFailedPending] is not complete; the loop ends after it, unless the body of the loop calls
// [Comm.AckFailed].
func Completed(rs []Request) iter.Seq[Completion] {
	return func(yield func(Completion) bool) {
		for {
			c := outcome(mpi.WaitAny(requests(rs)))
			if c.Index < 0 && c.Err == nil || !yield(c) || c.Index < 0 {
				return
			}
			if c.Err != nil && errors.Is(c.Err, ErrProcFailedPending) {
				if _, ok, err := rs[c.Index].Peek(); !ok && err != nil {
					return // the program has not called AckFailed
				}
			}
		}
	}
}

// NewRequest returns a request for an operation that the program performs itself, for example on
// another device or in a goroutine, so that the program can wait for the operation together with
// others, by [WaitAll], [WaitAny] and similar calls (generalized requests: MPI_Grequest_start, MPI
// 4.1 §13.2). The program calls complete when the operation has ended (MPI_Grequest_complete). Wait
// then returns st and err; Status.Count is the number of bytes, because the elements have no type.
// Any goroutine may call complete; a second call has no effect.
//
//	r, complete := c.NewRequest(stop)
//	go func() { n, err := write(file); complete(comm.Status{Bytes: n}, err) }()
//	err := comm.WaitAll([]comm.Request{r, comm.Irecv(c, buf, 0, 0)})
//
// cancel may be nil. [Request.Cancel] calls it, unless the operation has ended, on the goroutine
// that calls Cancel. cancel should make the operation end, and the program then passes a Status
// with Cancelled set to complete. MPI also has functions that make the status and free the state of
// the operation: here complete has the status as an argument, and the garbage collector frees the
// state.
//
// The request needs no other rank, and the context of c ends a Wait for the request as for any
// other. A context or a revocation does not end the operation itself. [Comm.Finalize] reports the
// request if it is not complete. NewRequest is local and does not block. If c is nil or was freed,
// Wait returns ErrClosed. If cancel panics, Cancel returns ErrOp.
func (c *Comm) NewRequest(cancel func()) (r Request, complete func(st Status, err error)) {
	in, end := c.in().NewRequest(cancel)
	return Request(in), func(st Status, err error) {
		end(mpi.Status{Source: st.Source, Tag: st.Tag, Bytes: st.Bytes, Cancelled: st.Cancelled}, err)
	}
}
