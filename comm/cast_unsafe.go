package comm

import (
	"unsafe"

	"github.com/weft-hpc/weft/internal/mpi"
)

// cast returns the memory of s as a slice of another type, whose values have the same layout: one
// of the types of package mpi that a type of this package is declared as.
func cast[To, From any](s []From) []To {
	return unsafe.Slice((*To)(unsafe.Pointer(unsafe.SliceData(s))), cap(s))[:len(s)]
}

func requests(rs []Request) []mpi.Request { return cast[mpi.Request](rs) }

// The layouts of Completion and mpi.Completion are equal: these constants are 0, or do not compile.
const (
	_ = -(unsafe.Sizeof(Completion{}) ^ unsafe.Sizeof(mpi.Completion{}))
	_ = -(unsafe.Offsetof(Completion{}.Status) ^ unsafe.Offsetof(mpi.Completion{}.Status))
	_ = -(unsafe.Offsetof(Completion{}.Err) ^ unsafe.Offsetof(mpi.Completion{}.Err))
)
