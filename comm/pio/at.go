package pio

import (
	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/internal/mpiio"
)

// ReadAt reads elements of the view from element i on into mem (MPI_File_read_at, MPI 4.1 §14.4.2),
// and returns their number. It is independent, and blocks until the elements are in mem. If the
// file ends first, ReadAt returns the number of whole elements before the end, and no error. ReadAt
// uses no file pointer.
//
// Errors: ErrAccess; comm.ErrArg if i is negative; comm.ErrCount if the view has no elements; the
// errors of calls with mem in package comm, such as comm.ErrLayout; the errors of the system.
func ReadAt[T any, M Memory[T]](v *View[T], mem M, i int64) (int, error) {
	return v.in().Do(mpiio.Call{Name: "ReadAt", At: i}, memory[T](mem))
}

// IreadAt is [ReadAt], except that it does not block (MPI_File_iread_at). Count in the Status of
// the request is the number of elements.
func IreadAt[T any, M Memory[T]](v *View[T], mem M, i int64) comm.Request {
	return comm.Request(v.in().Start(mpiio.Call{Name: "IreadAt", At: i}, memory[T](mem)))
}

// WriteAt writes the elements of mem to the view from element i on (MPI_File_write_at, MPI 4.1
// §14.4.2), and returns their number. It is independent, and blocks until the program may reuse
// mem. WriteAt uses no file pointer. If it fails, it returns the number of elements that it has
// certainly written.
//
// Errors: those of [ReadAt]; syscall.ENOSPC and others of the system.
func WriteAt[T any, M Memory[T]](v *View[T], mem M, i int64) (int, error) {
	return v.in().Do(mpiio.Call{Name: "WriteAt", Write: true, At: i}, memory[T](mem))
}

// IwriteAt is [WriteAt], except that it does not block (MPI_File_iwrite_at). Count in the Status of
// the request is the number of elements.
func IwriteAt[T any, M Memory[T]](v *View[T], mem M, i int64) comm.Request {
	return comm.Request(v.in().Start(mpiio.Call{Name: "IwriteAt", Write: true, At: i}, memory[T](mem)))
}

// ReadAtAll is [ReadAt], except that it is collective (MPI_File_read_at_all, MPI 4.1 §14.4.2). i
// and the number of elements may differ between ranks. If the call fails on a rank, all ranks get
// the error.
func ReadAtAll[T any, M Memory[T]](v *View[T], mem M, i int64) (int, error) {
	return v.in().DoAll(mpiio.Call{Name: "ReadAtAll", At: i}, memory[T](mem))
}

// IreadAtAll is [ReadAtAll], except that it does not block (MPI_File_iread_at_all). Count in the
// Status of the request is the number of elements.
func IreadAtAll[T any, M Memory[T]](v *View[T], mem M, i int64) comm.Request {
	return comm.Request(v.in().StartAll(mpiio.Call{Name: "IreadAtAll", At: i}, memory[T](mem)))
}

// ReadAtAllBegin starts a [ReadAtAll], and does not block (MPI_File_read_at_all_begin, MPI 4.1
// §14.4.5). [ReadAtAllEnd] completes it. A view can have one split operation at a time. Errors:
// ErrSplit; the other errors are those of ReadAtAllEnd.
func ReadAtAllBegin[T any, M Memory[T]](v *View[T], mem M, i int64) error {
	return v.in().Begin("ReadAtAll", mpiio.Call{Name: "ReadAtAllBegin", At: i}, memory[T](mem))
}

// ReadAtAllEnd blocks until the operation of [ReadAtAllBegin] is complete
// (MPI_File_read_at_all_end), and returns what [ReadAtAll] would return. Error: ErrSplit.
func ReadAtAllEnd[T any](v *View[T]) (int, error) { return v.in().End("ReadAtAll", "ReadAtAllEnd") }

// WriteAtAll is [WriteAt], except that it is collective (MPI_File_write_at_all, MPI 4.1 §14.4.2). i
// and the number of elements may differ between ranks. When WriteAtAll returns, all ranks have
// written their elements. If the call fails on a rank, all ranks get the error, and the number is
// 0. If two ranks write an element at the same place, it is undefined which one the file then has;
// in atomic mode it has that of the highest rank.
func WriteAtAll[T any, M Memory[T]](v *View[T], mem M, i int64) (int, error) {
	return v.in().DoAll(mpiio.Call{Name: "WriteAtAll", Write: true, At: i}, memory[T](mem))
}

// IwriteAtAll is [WriteAtAll], except that it does not block (MPI_File_iwrite_at_all). Count in the
// Status of the request is the number of elements.
func IwriteAtAll[T any, M Memory[T]](v *View[T], mem M, i int64) comm.Request {
	return comm.Request(v.in().StartAll(mpiio.Call{Name: "IwriteAtAll", Write: true, At: i}, memory[T](mem)))
}

// WriteAtAllBegin starts a [WriteAtAll], and does not block (MPI_File_write_at_all_begin, MPI 4.1
// §14.4.5). [WriteAtAllEnd] completes it. A view can have one split operation at a time. Errors:
// ErrSplit; the other errors are those of WriteAtAllEnd.
func WriteAtAllBegin[T any, M Memory[T]](v *View[T], mem M, i int64) error {
	return v.in().Begin("WriteAtAll", mpiio.Call{Name: "WriteAtAllBegin", Write: true, At: i}, memory[T](mem))
}

// WriteAtAllEnd blocks until the operation of [WriteAtAllBegin] is complete
// (MPI_File_write_at_all_end), and returns what [WriteAtAll] would return. Error: ErrSplit.
func WriteAtAllEnd[T any](v *View[T]) (int, error) { return v.in().End("WriteAtAll", "WriteAtAllEnd") }
