package mpiio

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/kernel"
	"github.com/weft-hpc/weft/internal/mpi"
)

// File pointers (MPI-4.1 §14.4.3 and §14.4.4)
//
// The individual file pointer is a variable of this rank. The shared file pointer is an element of
// a window, in the part of rank 0. A call fetches it and adds its number of elements in one atomic
// operation, so each call gets elements of its own.

// initPointers sets the file pointers of a new view: to 0, or with O_APPEND to the end of the file.
func (v *View) initPointers(op string, shared bool) error {
	f := v.f
	var at int64
	var err error
	if f.flag&os.O_APPEND != 0 {
		at, err = v.end()
	}
	if err := f.agree(op, err); err != nil {
		return err
	}
	v.pointer.Store(at)
	if !shared {
		return nil
	}
	n := 0
	if f.c.Rank() == 0 {
		n = 1
	}
	w, err := f.c.NewWin(elem.Of[int64](), n, mpi.WinOptions{})
	if err != nil {
		return f.broken(op, err)
	}
	if f.c.Rank() == 0 {
		copy(w.Local(), elem.Bytes([]int64{at}))
	}
	if err := f.c.Barrier(); err != nil {
		return f.broken(op, errors.Join(err, w.Revoke(), w.Free())) // revoked, so that Free does not wait
	}
	if err := w.LockAll(); err != nil {
		return f.broken(op, errors.Join(err, w.Revoke(), w.Free()))
	}
	f.mu.Lock()
	f.windows = append(f.windows, w)
	f.mu.Unlock()
	v.shared = w
	return nil
}

// end returns the number of the first element of the view that begins at or after the end of the
// file.
func (v *View) end() (int64, error) {
	size, err := v.f.size()
	if err != nil {
		return 0, err
	}
	s := v.own()
	return (s.before(size, s.limit) + v.size - 1) / v.size, nil
}

// fetchShared returns the shared file pointer and adds n to it. If the sum does not fit into an
// int64, fetchShared returns ErrArg, and takes n back, so that the pointer has its value again.
func (v *View) fetchShared(n int64) (int64, error) {
	at, err := v.updateShared(n, kernel.Sum)
	if err == nil && (at < 0 || n > math.MaxInt64-at) { // at < 0: another call has yet to take its n back
		_, err = v.updateShared(-n, kernel.Sum)
		if err == nil {
			err = fmt.Errorf("%w: %d elements from element %d of the view", mpi.ErrArg, n, uint64(at))
		}
		return 0, err
	}
	return at, err
}

func (v *View) updateShared(n int64, op kernel.Op) (int64, error) {
	old := make([]int64, 1)
	err := v.shared.FetchOp(elem.Bytes([]int64{n}), elem.Bytes(old), 0, 0, mpi.BuiltIn(op))
	return old[0], err
}

// Position implements pio.View.Position, which documents the call.
func (v *View) Position() int64 {
	if v == nil {
		return 0
	}
	return v.pointer.Load()
}

// Seek implements pio.View.Seek, which documents the call.
func (v *View) Seek(off int64, whence int) (int64, error) {
	err := v.check(Call{Pointer: Individual, Write: v.File().checkWriteOnly()})
	for err == nil {
		old := v.pointer.Load()
		var to int64
		if to, err = v.target(off, whence, old); err == nil && v.pointer.CompareAndSwap(old, to) {
			return to, nil
		}
	}
	return 0, v.File().fail("Seek", mpi.Undefined, err)
}

// checkWriteOnly reports whether the file was opened for writing only, so that a check of a call
// that neither reads nor writes succeeds.
func (f *File) checkWriteOnly() bool { return f != nil && f.flag&os.O_WRONLY != 0 }

// target returns the new value of a file pointer whose value is old.
func (v *View) target(off int64, whence int, old int64) (int64, error) {
	base := int64(0)
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		base = old
	case io.SeekEnd:
		var err error
		if base, err = v.end(); err != nil {
			return 0, err
		}
	default:
		return 0, fmt.Errorf("%w: whence %d", mpi.ErrArg, whence)
	}
	if off > 0 && base+off < base || base+off < 0 {
		return 0, fmt.Errorf("%w: element %d of the view", mpi.ErrArg, base+off)
	}
	return base + off, nil
}

// SeekShared implements pio.View.SeekShared, which documents the call.
func (v *View) SeekShared(off int64, whence int) error {
	const op = "SeekShared"
	if err := v.live(); err != nil {
		return v.File().fail(op, mpi.Undefined, err)
	}
	return v.f.collectively(op, func() error {
		err := v.check(Call{Pointer: Shared, Write: v.f.checkWriteOnly()})
		all, err := v.f.exchange(op, fmt.Sprint(op, " of ", v.reads), err, off, int64(whence))
		if err != nil {
			return err
		}
		for r := range v.f.c.Size() {
			if all[2*r] != all[0] || all[2*r+1] != all[1] {
				return v.f.fail(op, r, fmt.Errorf("%w: it passes other arguments than rank 0", mpi.ErrMismatch))
			}
		}
		if v.f.c.Rank() == 0 {
			var old, to int64
			if old, err = v.updateShared(0, mpi.OpNoOp); err == nil {
				if to, err = v.target(off, whence, old); err == nil {
					_, err = v.updateShared(to, mpi.OpReplace)
				}
			}
		}
		return v.f.agree(op, err)
	})
}

// PositionShared implements pio.View.PositionShared, which documents the call.
func (v *View) PositionShared() (int64, error) {
	err := v.check(Call{Pointer: Shared, Write: v.File().checkWriteOnly()})
	if err == nil {
		var at int64
		if at, err = v.updateShared(0, mpi.OpNoOp); err == nil {
			return at, nil
		}
	}
	return 0, v.File().fail("PositionShared", mpi.Undefined, err)
}
