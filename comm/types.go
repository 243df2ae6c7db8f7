package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Constants that stand for a rank, a tag or a colour.
const (
	AnySource = -1     // Recv and Probe: whoever sends (MPI_ANY_SOURCE)
	AnyTag    = -1     // Recv and Probe: whatever tag (MPI_ANY_TAG)
	ProcNull  = -2     // a peer that is nobody: transfers end at once and move nothing (MPI_PROC_NULL)
	Undefined = -32766 // Split: in no new communicator; Translate: not in the group (MPI_UNDEFINED)

	// MaxTag is the largest tag (MPI_TAG_UB).
	MaxTag = 1<<31 - 1
)

// Status says what was received (MPI_Status).
type Status struct {
	Source int // rank in the communicator
	Tag    int
	Bytes  int // length of the message in bytes
	Count  int // number of elements of the receive's type; 0 for types of size 0; Undefined after a probe, which has no type: see CountOf

	// Cancelled says that the receive was ended by Request.Cancel and that
	// nothing was received (MPI_Test_cancelled).
	Cancelled bool
}

// CountOf returns the number of elements of type T in the message that st describes
// (MPI_Get_count). It returns 0 for types of size 0. If the message is not a whole number
// of elements, CountOf returns [ErrCount]. If T cannot be received, it returns [ErrType].
// CountOf is local.
func CountOf[T any](st Status) (int, error) { return mpi.CountOf(elem.Of[T](), mpi.Status(st)) }
