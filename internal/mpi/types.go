package mpi

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
)

// Special values of ranks, tags and colours, and the largest tag.
const (
	AnySource = -1     // any rank (MPI_ANY_SOURCE)
	AnyTag    = -1     // any tag (MPI_ANY_TAG)
	ProcNull  = -2     // no rank: a transfer with ProcNull completes at once and moves no data (MPI_PROC_NULL)
	Root      = -3     // the caller is the root of a collective of an intercommunicator (MPI_ROOT)
	Undefined = -32766 // stands for a missing rank, tag or colour (MPI_UNDEFINED)

	MaxTag = 1<<31 - 1 // the largest tag (MPI_TAG_UB)
)

// Status describes a received or probed message (MPI_Status). The Status of package comm also has
// the number of elements. This one has four words, so that the compiler keeps it in registers.
type Status = engine.Status

// checkCount returns the error of a receive of a message of n bytes, for elements of size bytes.
// That is err, the engine's error for the receive. If err is nil and the message is not a whole
// number of elements, the error is ErrCount.
func checkCount(n, size int, err error) error {
	if err == nil && size > 1 {
		_, err = elem.Count(n, size)
	}
	return err
}

// CountOf is comm.CountOf for elements of type t.
func CountOf(t *elem.Type, st Status) (int, error) {
	n, err := 0, t.Err
	if err == nil {
		n, err = elem.Count(st.Bytes, t.Size)
	}
	if err != nil {
		return n, &Error{Op: "CountOf", Peer: st.Source, Tag: st.Tag, Err: err}
	}
	return n, nil
}
