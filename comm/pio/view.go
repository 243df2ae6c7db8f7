package pio

import (
	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpiio"
)

// View describes the elements of a file that a rank sees (MPI_File_set_view, MPI 4.1 §14.3). The
// file from a displacement on is a sequence of layouts, one after the other, each as long as the
// extent of the layout. The elements that the layouts describe are the elements 0, 1, 2, … of the
// view:
//
//	NewView[T](f, disp, comm.Vector(2, 1, 2).Resized(0, 4))
//
//	disp │ 0 · 1 · │ 2 · 3 · │ 4 · 5 · │ …
//
// A view has a file pointer of its own: the number of the element at which [Read] and [Write]
// begin. With [SharedPointer] it also has a pointer that all ranks share. A file may have several
// views. A view can be used until the file is closed.
//
// Any number of goroutines may use a View at the same time, except for collective calls.
type View[T any] struct {
	x      *mpiio.View
	layout comm.Layout
}

func (v *View[T]) in() *mpiio.View {
	if v == nil {
		return nil
	}
	return v.x
}

// ViewOption is an option of [NewView].
type ViewOption func(*mpiio.ViewConfig)

// External32 stores elements in the representation external32 (MPI 4.1 §14.5.2): big endian, each
// of a size that is the same on all machines, and structs without padding. int, uint and uintptr
// have 8 bytes. A call with such a view converts a copy of the data.
func External32() ViewOption { return func(c *mpiio.ViewConfig) { c.Rep = mpiio.External32 } }

// InternalRepresentation stores elements in the representation internal, which is the same as
// native: as in memory, padding included.
func InternalRepresentation() ViewOption {
	return func(c *mpiio.ViewConfig) { c.Rep = mpiio.Internal }
}

// SharedPointer gives the view a shared file pointer. The pointer is an element of a window, so
// while the file is open, the ranks must serve the window; see [comm.NewWin].
func SharedPointer() ViewOption { return func(c *mpiio.ViewConfig) { c.Shared = true } }

// NewView makes a view of a file on all its ranks (MPI_File_set_view, MPI 4.1 §14.3). disp is the
// offset in bytes at which the first layout begins. disp must not be negative. disp and l may
// differ between ranks. T is any type without pointers, of the same size on all ranks.
//
// The places of the elements must ascend without overlap, within l and from one layout to the next.
// comm.Contiguous(1) is the layout of a view that has all elements. If l has no elements, the rank
// can still make collective calls, with empty memory.
//
// NewView is collective over the ranks of the file, and blocks. Errors: comm.ErrLayout,
// comm.ErrType, comm.ErrArg; comm.ErrMismatch if the ranks pass different options or sizes of
// elements.
func NewView[T any](f *File, disp int64, l comm.Layout, opts ...ViewOption) (*View[T], error) {
	cfg := mpiio.ViewConfig{Type: elem.Of[T](), Disp: disp, Layout: layoutOf(l), Rep: mpiio.Native}
	for _, o := range opts {
		if o != nil {
			o(&cfg)
		}
	}
	x, err := mpiio.NewView(f.in(), cfg)
	if err != nil {
		return nil, err
	}
	return &View[T]{x, l}, nil
}

// File returns the file of the view, or nil for a nil view. It is local.
func (v *View[T]) File() *File { return (*File)(v.in().File()) }

// Get returns the displacement, the layout and the name of the representation of the view
// (MPI_File_get_view). It is local.
func (v *View[T]) Get() (disp int64, l comm.Layout, representation string) {
	disp, representation = v.in().Get()
	if v != nil {
		l = v.layout
	}
	return disp, l, representation
}

// ElemSize returns the number of bytes of an element in the file (MPI_File_get_type_extent), or 0
// for a nil view. It is local.
func (v *View[T]) ElemSize() int { return v.in().ElemSize() }

// ByteOffset returns the offset in the file, in bytes, of element i of the view
// (MPI_File_get_byte_offset). It is local. Errors: comm.ErrArg; comm.ErrCount if the view has no
// elements.
func (v *View[T]) ByteOffset(i int64) (int64, error) { return v.in().ByteOffset(i) }

// Position returns the file pointer of this rank, in elements (MPI_File_get_position). It is local.
func (v *View[T]) Position() int64 { return v.in().Position() }

// Seek sets the file pointer of this rank, and returns its new value (MPI_File_seek). off is in
// elements. whence is io.SeekStart, io.SeekCurrent or io.SeekEnd; the end is the first element that
// begins at or after the end of the file. Seek is local. Errors: comm.ErrArg if the result is
// negative; ErrAccess for a sequential file.
func (v *View[T]) Seek(off int64, whence int) (int64, error) { return v.in().Seek(off, whence) }

// SeekShared sets the shared file pointer (MPI_File_seek_shared). It is collective, and all ranks
// pass the same arguments, which are those of [View.Seek]; the end is that of rank 0. SeekShared
// blocks until the pointer is set. Errors: those of Seek; ErrNoShared; comm.ErrMismatch.
func (v *View[T]) SeekShared(off int64, whence int) error { return v.in().SeekShared(off, whence) }

// PositionShared returns the shared file pointer (MPI_File_get_position_shared). It blocks until
// rank 0 has sent it. Errors: ErrNoShared.
func (v *View[T]) PositionShared() (int64, error) { return v.in().PositionShared() }
