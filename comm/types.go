package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Special values of ranks, tags and colours, and the largest tag.
const (
	AnySource = -1 // Recv and Probe: a message from any rank (MPI_ANY_SOURCE)
	AnyTag    = -1 // Recv and Probe: a message with any tag (MPI_ANY_TAG)
	// ProcNull is no rank: a transfer with ProcNull completes at once and moves nothing
	// (MPI_PROC_NULL).
	ProcNull = -2
	// Root is the root argument of a collective of an intercommunicator, on the rank that is the
	// root (MPI_ROOT). See [Comm.Intercomm].
	Root = -3
	// Undefined is the colour with which Split returns no communicator, the result of Rank and
	// Translate for a process that is not in the group, and a Status.Count that is not known
	// (MPI_UNDEFINED).
	Undefined = -32766

	// MaxTag is the largest tag (MPI_TAG_UB).
	MaxTag = 1<<31 - 1
)

// Status describes a received or probed message (MPI_Status).
type Status struct {
	Source int // rank of the sender in the communicator
	Tag    int // of the message
	Bytes  int // length of the message in bytes

	// Cancelled reports that the receive was withdrawn and has received nothing, for example by
	// Request.Cancel (MPI_Test_cancelled).
	Cancelled bool

	// Count is the number of elements of the receive's type in the message, and 0 for types of size
	// 0. A probe has no type: Count is Undefined, and CountOf returns the number.
	Count int
}

// received returns the Status of a receive from st, the one of package mpi. size is the size of an
// element in bytes.
func received(st mpi.Status, size int) Status {
	return Status{Source: st.Source, Tag: st.Tag, Bytes: st.Bytes, Cancelled: st.Cancelled, Count: elem.Whole(st.Bytes, size)}
}

// probed returns the Status of a probe. ok reports whether the probe has found a message.
func probed(st mpi.Status, ok bool) Status {
	s := Status{Source: st.Source, Tag: st.Tag, Bytes: st.Bytes}
	if ok && s.Source != ProcNull {
		s.Count = Undefined
	}
	return s
}

// CountOf returns the number of elements of type T in the message that st describes
// (MPI_Get_count). It returns 0 for types of size 0. If the message is not a whole number
// of elements, CountOf returns [ErrCount]. If T cannot be received, it returns [ErrType].
// CountOf is local.
func CountOf[T any](st Status) (int, error) {
	return mpi.CountOf(elem.Of[T](), mpi.Status{Source: st.Source, Tag: st.Tag, Bytes: st.Bytes})
}
