package comm

import (
	"unsafe"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// cast returns the memory of s as a slice of the type To. To and From have the same memory layout:
// one of them is a type of this package, and the other one the type of package mpi that it stands
// for.
func cast[To, From any](s []From) []To {
	return unsafe.Slice((*To)(unsafe.Pointer(unsafe.SliceData(s))), cap(s))[:len(s)]
}

func buffers[T any](vs []View[T]) []elem.Buffer { return cast[elem.Buffer](vs) }

func requests(rs []Request) []mpi.Request { return cast[mpi.Request](rs) }

// The layouts of Completion and mpi.Completion are equal. If they were not, these constants would
// be negative, which does not compile.
const (
	_ = -(unsafe.Sizeof(Completion{}) ^ unsafe.Sizeof(mpi.Completion{}))
	_ = -(unsafe.Offsetof(Completion{}.Status) ^ unsafe.Offsetof(mpi.Completion{}.Status))
	_ = -(unsafe.Offsetof(Completion{}.Err) ^ unsafe.Offsetof(mpi.Completion{}.Err))

	_ = -(unsafe.Offsetof(Status{}.Source) ^ unsafe.Offsetof(mpi.Status{}.Source))
	_ = -(unsafe.Offsetof(Status{}.Tag) ^ unsafe.Offsetof(mpi.Status{}.Tag))
	_ = -(unsafe.Offsetof(Status{}.Bytes) ^ unsafe.Offsetof(mpi.Status{}.Bytes))
	_ = -(unsafe.Offsetof(Status{}.Cancelled) ^ unsafe.Offsetof(mpi.Status{}.Cancelled))
	_ = -((unsafe.Offsetof(Completion{}.Status) + unsafe.Offsetof(Status{}.Count)) ^ unsafe.Offsetof(mpi.Completion{}.Count))
)
