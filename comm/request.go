package comm

import (
	"context"
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
// complete, Test returns what Wait would return, and the program need not wait for the request.
func (r Request) Test() (Status, bool, error) {
	in := mpi.Request(r)
	st, ok, err := in.Test()
	return received(st, in.ElemSize()), ok, err
}

// Cancel withdraws a receive that has not matched a message yet (MPI_Cancel). The program must
// still call Wait, whose Status then has Cancelled set. A receive that has matched a message, and
// any other operation, continues as if Cancel had not been called. Cancel is local and does not
// block.
func (r Request) Cancel() error { return mpi.Request(r).Cancel() }

// WaitAll blocks until all requests are complete, even if some fail, and sets them to zero
// (MPI_Waitall). It returns the error of the first request in rs that failed. If the context of a
// request ends first, that is the error of the request; the requests that are not complete stay as
// they are, and WaitAll may be called again.
func WaitAll(rs []Request) error { return mpi.WaitAll(requests(rs)) }

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
// the last Completion has the index -1 and the context's error.
func Completed(rs []Request) iter.Seq[Completion] {
	return func(yield func(Completion) bool) {
		for {
			c := outcome(mpi.WaitAny(requests(rs)))
			if c.Index < 0 && c.Err == nil || !yield(c) || c.Index < 0 {
				return
			}
		}
	}
}
