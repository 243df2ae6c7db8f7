package pio

import (
	"io"
	"io/fs"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/internal/mpiio"
)

// Flags of [Open], besides those of package os.
const (
	// DeleteOnClose deletes the file when it is closed (MPI_MODE_DELETE_ON_CLOSE).
	DeleteOnClose = mpiio.DeleteOnClose
	// UniqueOpen promises that no other program has the file open (MPI_MODE_UNIQUE_OPEN). It has no
	// effect.
	UniqueOpen = mpiio.UniqueOpen
	// Sequential permits only the calls that use the shared file pointer (MPI_MODE_SEQUENTIAL).
	Sequential = mpiio.Sequential
)

// Reasons of errors, besides those of package comm. errors.Is finds them.
var (
	// ErrAccess: the flags with which the file was opened do not permit the call.
	ErrAccess = mpiio.ErrAccess
	// ErrNoShared: the view was made without [SharedPointer].
	ErrNoShared = mpiio.ErrNoShared
	// ErrSplit: a call whose name ends in Begin finds a split operation of the view active, or the
	// call whose name ends in End finds none of its kind. In a call whose name ends in Begin, all
	// ranks get the error of one rank: the others from End.
	ErrSplit = mpiio.ErrSplit
)

// Hint is a value for a tunable of a file (MPI_Info). The keys are those of ROMIO; other keys are
// ignored. Sizes are in bytes.
//
//	key                  default     meaning
//	cb_buffer_size       16777216    buffer of an aggregator; it has two of them
//	cb_nodes             0           number of aggregators; 0: one on each host
//	romio_cb_read        automatic   collective reads use aggregators: automatic, enable, disable
//	romio_cb_write       automatic   the same for writes
//	romio_ds_read        automatic   independent reads of a view with gaps read the gaps, too
//	romio_ds_write       automatic   the same for writes, which write back what the gaps had
//	ind_rd_buffer_size   4194304     buffer of independent reads of a view with gaps
//	ind_wr_buffer_size   524288      the same for writes
//
// All hints except romio_ds_read, ind_rd_buffer_size and ind_wr_buffer_size must be the same on all
// ranks.
type Hint struct{ Key, Value string }

// File is a file that all ranks of a communicator have open (MPI_File). Any number of goroutines
// may use it at the same time, except for collective calls, as with [comm.Comm]. On a nil or closed
// File, calls return comm.ErrClosed.
type File mpiio.File

var (
	_ io.ReaderAt = (*File)(nil)
	_ io.WriterAt = (*File)(nil)
)

func (f *File) in() *mpiio.File { return (*mpiio.File)(f) }

func hintsOf(hints []Hint) []mpiio.Hint {
	list := make([]mpiio.Hint, len(hints))
	for i, h := range hints {
		list[i] = mpiio.Hint(h)
	}
	return list
}

// Open opens the file with a name on all ranks of c (MPI_File_open, MPI 4.1 §14.2.1). It is
// collective over c and blocks. Messages of the file do not mix with those of c. The context of c
// ends the calls on the file. All ranks pass the same flags and the name of the same file.
//
// flag has one of os.O_RDONLY, os.O_WRONLY and os.O_RDWR, and any of these:
//
//	os.O_CREATE     make the file, with the permissions perm, if it does not exist
//	os.O_EXCL       with O_CREATE: the file must not exist
//	os.O_TRUNC      make the file empty
//	os.O_APPEND     the file pointers of views begin at the end of the file
//	os.O_SYNC       each write waits for the storage device
//	DeleteOnClose, UniqueOpen, Sequential
//
// Only rank 0 makes the file or makes it empty. If Open fails on a rank, it fails on all ranks,
// with the same error, and no rank has the file open. A file that existed then has its old content.
//
// Errors: those of os.OpenFile, such as fs.ErrNotExist, fs.ErrExist and fs.ErrPermission; ErrAccess
// for a directory; comm.ErrArg for flags that exclude each other, or for a wrong value of a hint;
// comm.ErrMismatch if the ranks pass different flags or hints; as for all collectives, see
// [comm.Comm.Barrier].
func Open(c *comm.Comm, name string, flag int, perm fs.FileMode, hints ...Hint) (*File, error) {
	f, err := mpiio.Open((*mpi.Comm)(c), name, flag, perm, hintsOf(hints))
	return (*File)(f), err
}

// Close closes the file on all ranks (MPI_File_close). It is collective. Close blocks until all
// operations of the file are complete and all ranks have called Close. It does not wait for the
// storage device; see [File.Sync]. If other ranks make another call on the file instead, Close
// returns comm.ErrMismatch, and the file stays open. After any other error the file is closed.
func (f *File) Close() error { return f.in().Close() }

// Name returns the name with which this rank has opened the file. It is local.
func (f *File) Name() string { return f.in().Name() }

// Flags returns the flags with which the file was opened (MPI_File_get_amode). It is local.
func (f *File) Flags() int { return f.in().Flags() }

// Group returns the group of the ranks that have the file open (MPI_File_get_group). It is local.
func (f *File) Group() comm.Group { return comm.Group(f.in().Group()) }

// Size returns the number of bytes of the file (MPI_File_get_size). It is local.
func (f *File) Size() (int64, error) { return f.in().Size() }

// Truncate sets the size of the file in bytes (MPI_File_set_size). If the file becomes longer, the
// new bytes are zero. Truncate is collective. It blocks until the file has this size. All ranks
// pass the same size. Errors: comm.ErrArg, comm.ErrMismatch, ErrAccess.
func (f *File) Truncate(size int64) error { return f.in().Truncate(size) }

// Preallocate allocates storage for the first size bytes of the file (MPI_File_preallocate). A
// shorter file becomes size bytes long; a longer one keeps its length. Preallocate is collective
// and blocks. All ranks pass the same size. If the file system cannot do this, rank 0 reads
// the bytes and writes them again, under locks that exclude other writes of the file; then the file
// must be open for reading, too. Errors: those of [File.Truncate]; syscall.ENOSPC;
// comm.ErrNotSupported if the file system has neither the call nor locks.
func (f *File) Preallocate(size int64) error { return f.in().Preallocate(size) }

// Sync blocks until everything that the ranks have written before is on the storage device, and
// visible to other hosts (MPI_File_sync). It is collective.
func (f *File) Sync() error { return f.in().Sync() }

// SetAtomic sets or clears the atomic mode (MPI_File_set_atomicity, MPI 4.1 §14.6.1). In atomic
// mode a read returns either all bytes or no byte of what one call of another rank writes at the
// same time, and each call sees what all calls that have already returned, on any rank, have
// written. Each call locks the range of the file that it accesses. SetAtomic is collective, and all
// ranks pass the same value. Errors: comm.ErrNotSupported if the file system has no locks;
// comm.ErrMismatch.
func (f *File) SetAtomic(on bool) error { return f.in().SetAtomic(on) }

// Atomic reports whether the file is in atomic mode (MPI_File_get_atomicity). It is local.
func (f *File) Atomic() bool { return f.in().Atomic() }

// SetHints changes hints (MPI_File_set_info). It is collective. A view that was made while
// romio_ds_write was disable keeps this value. Errors: comm.ErrArg for a wrong value of a hint;
// comm.ErrMismatch.
func (f *File) SetHints(hints ...Hint) error { return f.in().SetHints(hintsOf(hints)) }

// Hints returns the hints in effect (MPI_File_get_info). It is local.
func (f *File) Hints() []Hint {
	in := f.in().Hints()
	list := make([]Hint, len(in))
	for i, h := range in {
		list[i] = Hint(h)
	}
	return list
}

// ReadAt reads len(p) bytes of the file from the byte off on, as io.ReaderAt says: if the file ends
// first, the error is io.EOF. It is independent, and needs no view.
func (f *File) ReadAt(p []byte, off int64) (n int, err error) { return f.in().ReadAt(p, off) }

// WriteAt writes p to the file from the byte off on, as io.WriterAt says. It is independent, and
// needs no view.
func (f *File) WriteAt(p []byte, off int64) (n int, err error) { return f.in().WriteAt(p, off) }
