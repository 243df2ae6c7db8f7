package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Request names an operation under way: a send, a receive or a collective
// (MPI 4.1 §3.7). It is a value; copies are the same request. A copy of one
// that has been waited for is harmless and answers that it is complete, as the
// zero Request does. If the arguments of the call that started it were wrong, Wait or Test
// returns the error.
//
// The buffers of the operation belong to it until Wait or Test has said that
// it is complete. The program must wait for every request, or test it until it is
// complete. [Comm.Finalize] reports the requests for which the program did not do so and
// that failed or did not complete.
type Request mpi.Request

// Completion is one request's end, as WaitSome and TestSome tell it.
type Completion struct {
	Index  int // in the slice of requests
	Status Status
	Err    error
}

// Isend is Send that returns at once; buf belongs to the request until it is
// complete, and must not be written to (MPI_Isend, MPI 4.1 §3.7).
//
// Hot path: no allocation.
func Isend[T any](c *Comm, buf []T, dest, tag int) Request {
	return Request(c.in().Isend(elem.View(buf), dest, tag))
}

// Issend is Isend that is complete only when the receive has been matched
// (MPI_Issend, MPI 4.1 §3.7).
func Issend[T any](c *Comm, buf []T, dest, tag int) Request {
	return Request(c.in().Issend(elem.View(buf), dest, tag))
}

// Irecv is Recv that returns at once; buf belongs to the request until it is
// complete. Receives match in the order in which they were started
// (MPI_Irecv, MPI 4.1 §3.7).
//
// Hot path: no allocation.
func Irecv[T any](c *Comm, buf []T, source, tag int) Request {
	return Request(c.in().Irecv(elem.View(buf), source, tag))
}

// Wait blocks until the operation is complete (MPI_Wait). The status is a
// receive's; that of sends and collectives says nothing. Errors: those of the
// blocking call of the same kind. Where the communicator's context ends first
// its error is returned: the operation goes on, it keeps its buffers, and Wait
// may be called again.
//
// Hot path: no allocation.
func (r Request) Wait() (Status, error) {
	st, err := mpi.Request(r).Wait()
	return Status(st), err
}

// Test says whether the operation is complete, without blocking (MPI_Test). If
// it is, the request is done with, as after Wait.
func (r Request) Test() (Status, bool, error) {
	st, ok, err := mpi.Request(r).Test()
	return Status(st), ok, err
}

// Cancel withdraws a receive that has matched no message yet: Wait, which must
// still be called, then reports Status.Cancelled. A receive that has matched,
// a send and a collective go on as if it had not been called (MPI_Cancel). It
// is local and does not block.
func (r Request) Cancel() error { return mpi.Request(r).Cancel() }

// WaitAll blocks until all requests are complete, also where some fail, and
// makes them zero (MPI_Waitall). It returns the error of the first that
// failed, in the order of rs. Where a context ends first, the requests that
// are not complete stay as they are, and WaitAll may be called again.
func WaitAll(rs []Request) error { return mpi.WaitAll(requests(rs)) }

// WaitAny blocks until one of the requests is complete, makes it zero and
// returns its index, status and error (MPI_Waitany). The index is -1 where all
// are zero, or where a context ended first. All requests must be of one
// process; the context is that of the first. If several are complete, those that
// completed first are returned first. The cost of a call grows with the number
// of requests that are complete, and only if it blocks with that of all.
func WaitAny(rs []Request) (int, Status, error) {
	i, st, err := mpi.WaitAny(requests(rs))
	return i, Status(st), err
}

// TestAny is WaitAny that does not block (MPI_Testany). It says false where
// requests are under way and none of them is complete.
func TestAny(rs []Request) (int, Status, bool, error) {
	i, st, ok, err := mpi.TestAny(requests(rs))
	return i, Status(st), ok, err
}

// TestAll says whether all requests are complete, without blocking
// (MPI_Testall). If so it makes them zero and returns the error of the first
// that failed; if not they all stay as they are.
func TestAll(rs []Request) (bool, error) { return mpi.TestAll(requests(rs)) }

// WaitSome blocks until at least one of the requests is complete, makes all
// that are zero, and appends what became of them to done (MPI_Waitsome). It
// appends nothing where all were zero. The error is a context's that ended
// first; those of the operations are in the completions.
func WaitSome(rs []Request, done []Completion) ([]Completion, error) {
	some, err := mpi.WaitSome(requests(rs), cast[mpi.Completion](done))
	return cast[Completion](some), err
}

// TestSome is WaitSome that does not block (MPI_Testsome).
func TestSome(rs []Request, done []Completion) []Completion {
	return cast[Completion](mpi.TestSome(requests(rs), cast[mpi.Completion](done)))
}
