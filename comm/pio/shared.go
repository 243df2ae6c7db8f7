package pio

import (
	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/internal/mpiio"
)

// ReadShared is [ReadAt], except that it begins at the shared file pointer, and advances the
// pointer by the number of elements of mem, even if the file ends first (MPI_File_read_shared, MPI
// 4.1 §14.4.4). Calls of several ranks read different elements, in an undefined order. The views of
// all ranks should be the same. Error: ErrNoShared.
func ReadShared[T any, M Memory[T]](v *View[T], mem M) (int, error) {
	return v.in().Do(mpiio.Call{Name: "ReadShared", Pointer: mpiio.Shared}, memory[T](mem))
}

// IreadShared is [ReadShared], except that it does not block (MPI_File_iread_shared). Count in the
// Status of the request is the number of elements.
func IreadShared[T any, M Memory[T]](v *View[T], mem M) comm.Request {
	return comm.Request(v.in().Start(mpiio.Call{Name: "IreadShared", Pointer: mpiio.Shared}, memory[T](mem)))
}

// WriteShared is [WriteAt], except that it begins at the shared file pointer, and advances the
// pointer by the number of elements of mem (MPI_File_write_shared, MPI 4.1 §14.4.4). Calls of
// several ranks write different elements, in an undefined order. The views of all ranks should be
// the same. Error: ErrNoShared.
func WriteShared[T any, M Memory[T]](v *View[T], mem M) (int, error) {
	return v.in().Do(mpiio.Call{Name: "WriteShared", Write: true, Pointer: mpiio.Shared}, memory[T](mem))
}

// IwriteShared is [WriteShared], except that it does not block (MPI_File_iwrite_shared). Count in
// the Status of the request is the number of elements.
func IwriteShared[T any, M Memory[T]](v *View[T], mem M) comm.Request {
	return comm.Request(v.in().Start(mpiio.Call{Name: "IwriteShared", Write: true, Pointer: mpiio.Shared}, memory[T](mem)))
}

// ReadOrdered is [ReadAtAll] at the shared file pointer: rank 0 reads the elements from the pointer
// on, rank 1 those after them, and so on (MPI_File_read_ordered, MPI 4.1 §14.4.4). The pointer
// advances by the numbers of elements of all ranks. The views of all ranks should be the same.
// Error: ErrNoShared.
func ReadOrdered[T any, M Memory[T]](v *View[T], mem M) (int, error) {
	return v.in().DoAll(mpiio.Call{Name: "ReadOrdered", Pointer: mpiio.Shared}, memory[T](mem))
}

// ReadOrderedBegin starts a [ReadOrdered], and does not block (MPI_File_read_ordered_begin, MPI 4.1
// §14.4.5). [ReadOrderedEnd] completes it. A view can have one split operation at a time. Errors:
// ErrSplit; the other errors are those of ReadOrderedEnd.
func ReadOrderedBegin[T any, M Memory[T]](v *View[T], mem M) error {
	return v.in().Begin("ReadOrdered", mpiio.Call{Name: "ReadOrderedBegin", Pointer: mpiio.Shared}, memory[T](mem))
}

// ReadOrderedEnd blocks until the operation of [ReadOrderedBegin] is complete
// (MPI_File_read_ordered_end), and returns what [ReadOrdered] would return. Error: ErrSplit.
func ReadOrderedEnd[T any](v *View[T]) (int, error) {
	return v.in().End("ReadOrdered", "ReadOrderedEnd")
}

// WriteOrdered is [WriteAtAll] at the shared file pointer: rank 0 writes its elements from the
// pointer on, rank 1 writes its elements after those of rank 0, and so on (MPI_File_write_ordered,
// MPI 4.1 §14.4.4). The pointer advances by the numbers of elements of all ranks. The views of all
// ranks should be the same. Error: ErrNoShared.
func WriteOrdered[T any, M Memory[T]](v *View[T], mem M) (int, error) {
	return v.in().DoAll(mpiio.Call{Name: "WriteOrdered", Write: true, Pointer: mpiio.Shared}, memory[T](mem))
}

// WriteOrderedBegin starts a [WriteOrdered], and does not block (MPI_File_write_ordered_begin, MPI
// 4.1 §14.4.5). [WriteOrderedEnd] completes it. A view can have one split operation at a time.
// Errors: ErrSplit; the other errors are those of WriteOrderedEnd.
func WriteOrderedBegin[T any, M Memory[T]](v *View[T], mem M) error {
	return v.in().Begin("WriteOrdered", mpiio.Call{Name: "WriteOrderedBegin", Write: true, Pointer: mpiio.Shared}, memory[T](mem))
}

// WriteOrderedEnd blocks until the operation of [WriteOrderedBegin] is complete
// (MPI_File_write_ordered_end), and returns what [WriteOrdered] would return. Error: ErrSplit.
func WriteOrderedEnd[T any](v *View[T]) (int, error) {
	return v.in().End("WriteOrdered", "WriteOrderedEnd")
}
