package pio

import (
	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/internal/mpiio"
)

// Read is [ReadAt], except that it begins at the file pointer of this rank, and advances the
// pointer by the number of elements that it has read (MPI_File_read, MPI 4.1 §14.4.3).
func Read[T any, M Memory[T]](v *View[T], mem M) (int, error) {
	return v.in().Do(mpiio.Call{Name: "Read", Pointer: mpiio.Individual}, memory[T](mem))
}

// Iread is [Read], except that it does not block (MPI_File_iread). Count in the Status of the
// request is the number of elements. The file pointer advances at once, by the number of elements
// of mem, even if the file ends first.
func Iread[T any, M Memory[T]](v *View[T], mem M) comm.Request {
	return comm.Request(v.in().Start(mpiio.Call{Name: "Iread", Pointer: mpiio.Individual}, memory[T](mem)))
}

// Write is [WriteAt], except that it begins at the file pointer of this rank, and advances the
// pointer by the number of elements that it has written (MPI_File_write, MPI 4.1 §14.4.3).
func Write[T any, M Memory[T]](v *View[T], mem M) (int, error) {
	return v.in().Do(mpiio.Call{Name: "Write", Write: true, Pointer: mpiio.Individual}, memory[T](mem))
}

// Iwrite is [Write], except that it does not block (MPI_File_iwrite). Count in the Status of the
// request is the number of elements. The file pointer advances at once, by the number of elements
// of mem.
func Iwrite[T any, M Memory[T]](v *View[T], mem M) comm.Request {
	return comm.Request(v.in().Start(mpiio.Call{Name: "Iwrite", Write: true, Pointer: mpiio.Individual}, memory[T](mem)))
}

// ReadAll is [ReadAtAll], except that it begins at the file pointer of each rank, and advances the
// pointer by the number of elements that the rank has read (MPI_File_read_all, MPI 4.1 §14.4.3).
func ReadAll[T any, M Memory[T]](v *View[T], mem M) (int, error) {
	return v.in().DoAll(mpiio.Call{Name: "ReadAll", Pointer: mpiio.Individual}, memory[T](mem))
}

// IreadAll is [ReadAll], except that it does not block (MPI_File_iread_all). Count in the Status of
// the request is the number of elements. The file pointer advances at once, by the number of
// elements of mem, even if the file ends first.
func IreadAll[T any, M Memory[T]](v *View[T], mem M) comm.Request {
	return comm.Request(v.in().StartAll(mpiio.Call{Name: "IreadAll", Pointer: mpiio.Individual}, memory[T](mem)))
}

// ReadAllBegin starts a [ReadAll], and does not block (MPI_File_read_all_begin, MPI 4.1 §14.4.5).
// The file pointer advances as for [IreadAll]. [ReadAllEnd] completes it. A view can have one split
// operation at a time. Errors: ErrSplit; the other errors are those of ReadAllEnd.
func ReadAllBegin[T any, M Memory[T]](v *View[T], mem M) error {
	return v.in().Begin("ReadAll", mpiio.Call{Name: "ReadAllBegin", Pointer: mpiio.Individual}, memory[T](mem))
}

// ReadAllEnd blocks until the operation of [ReadAllBegin] is complete (MPI_File_read_all_end), and
// returns what [ReadAll] would return. Error: ErrSplit.
func ReadAllEnd[T any](v *View[T]) (int, error) { return v.in().End("ReadAll", "ReadAllEnd") }

// WriteAll is [WriteAtAll], except that it begins at the file pointer of each rank, and advances
// the pointer by the number of elements that the rank has written (MPI_File_write_all, MPI 4.1
// §14.4.3).
func WriteAll[T any, M Memory[T]](v *View[T], mem M) (int, error) {
	return v.in().DoAll(mpiio.Call{Name: "WriteAll", Write: true, Pointer: mpiio.Individual}, memory[T](mem))
}

// IwriteAll is [WriteAll], except that it does not block (MPI_File_iwrite_all). Count in the Status
// of the request is the number of elements. The file pointer advances at once, by the number of
// elements of mem.
func IwriteAll[T any, M Memory[T]](v *View[T], mem M) comm.Request {
	return comm.Request(v.in().StartAll(mpiio.Call{Name: "IwriteAll", Write: true, Pointer: mpiio.Individual}, memory[T](mem)))
}

// WriteAllBegin starts a [WriteAll], and does not block (MPI_File_write_all_begin, MPI 4.1
// §14.4.5). The file pointer advances as for [IwriteAll]. [WriteAllEnd] completes it. A view can
// have one split operation at a time. Errors: ErrSplit; the other errors are those of WriteAllEnd.
func WriteAllBegin[T any, M Memory[T]](v *View[T], mem M) error {
	return v.in().Begin("WriteAll", mpiio.Call{Name: "WriteAllBegin", Write: true, Pointer: mpiio.Individual}, memory[T](mem))
}

// WriteAllEnd blocks until the operation of [WriteAllBegin] is complete (MPI_File_write_all_end),
// and returns what [WriteAll] would return. Error: ErrSplit.
func WriteAllEnd[T any](v *View[T]) (int, error) { return v.in().End("WriteAll", "WriteAllEnd") }
