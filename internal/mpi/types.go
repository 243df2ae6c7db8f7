package mpi

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
)

// Constants that stand for a rank, a tag or a colour.
const (
	AnySource = -1     // any rank (MPI_ANY_SOURCE)
	AnyTag    = -1     // any tag (MPI_ANY_TAG)
	ProcNull  = -2     // no rank: a transfer completes at once and moves nothing (MPI_PROC_NULL)
	Undefined = -32766 // no value (MPI_UNDEFINED)

	MaxTag = 1<<31 - 1 // the largest tag (MPI_TAG_UB)
)

// Status describes a received or probed message (MPI_Status).
type Status struct {
	Source    int // rank in the communicator
	Tag       int
	Bytes     int  // length of the message in bytes
	Count     int  // number of elements of the receive's type; Undefined after a probe
	Cancelled bool // Request.Cancel withdrew the receive
}

// status converts the engine's status of a receive of elements of size bytes. err is the error of
// the receive; if it is nil, status may return ErrCount.
func status(est engine.Status, size int, err error) (Status, error) {
	st := found(est)
	var cerr error
	if st.Count, cerr = elem.Count(est.Bytes, size); err == nil {
		err = cerr
	}
	return st, err
}

// found converts the engine's status of a probe.
func found(est engine.Status) Status {
	return Status{Source: est.Source, Tag: est.Tag, Bytes: est.Bytes, Count: Undefined, Cancelled: est.Cancelled}
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
