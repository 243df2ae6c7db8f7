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
