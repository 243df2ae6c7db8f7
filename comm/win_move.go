package comm

import "github.com/weft-hpc/weft/internal/elem"

// Put writes len(buf) elements into rank target's part of the window, from its
// element disp on (MPI_Put, MPI 4.1 §12.3.1). It does not wait for them to be
// there: buf belongs to the window, and must not be written to, until FlushLocal
// or a call that says more; the elements are at the target after Flush, Unlock,
// Complete or Fence. The target does nothing for it. ProcNull as target: nothing
// is written. It waits only for a lock (see LockAll), or where many operations
// with the target are under way.
//
// Elements that Puts of several ranks write at once, or that are read while they
// are written, are undefined, and nothing worse; Accumulate orders updates.
//
// Errors: ErrRank; ErrDisp for a negative disp; ErrRMARange for elements beyond
// the target's part, none of which is then written; ErrRMASync outside of an
// epoch with the target (see Win); ErrWin, ErrProcFailed, ErrRevoked, ErrClosed,
// the context's. What fails after the call has returned is told by the next
// Flush of the target and by the end of the epoch.
//
// Hot path: no allocation in steady state.
func (w *Win[T]) Put(buf []T, target, disp int) error {
	x, at, err := w.reach(len(buf), target, disp)
	if err == nil && target != ProcNull {
		err = x.win.Put(x.c.ctx, target, at, elem.Bytes(buf))
	}
	if err != nil {
		return w.fail("Put", target, err)
	}
	return nil
}

// RPut is Put with a request: when that is complete, buf may be used again
// (MPI_Rput, MPI 4.1 §12.3.5). That the elements are at the target is told as
// for Put.
func (w *Win[T]) RPut(buf []T, target, disp int) Request {
	x, at, err := w.reach(len(buf), target, disp)
	if err != nil {
		return w.refused("RPut", target, err)
	}
	if target == ProcNull {
		return Request{c: hasLeft}
	}
	r, err := x.win.Rput(x.c.ctx, target, at, elem.Bytes(buf))
	return x.request(opRPut, target, r, err)
}

// Get reads len(buf) elements of rank target's part of the window, from its
// element disp on (MPI_Get, MPI 4.1 §12.3.2). It does not wait for them: buf
// belongs to the window until FlushLocal, Flush, Unlock, Complete or Fence, and
// then has the elements. ProcNull as target: buf is not touched. Errors: those
// of Put.
//
// Hot path: no allocation in steady state.
func (w *Win[T]) Get(buf []T, target, disp int) error {
	x, at, err := w.reach(len(buf), target, disp)
	if err == nil && target != ProcNull {
		err = x.win.Get(x.c.ctx, target, at, elem.Bytes(buf))
	}
	if err != nil {
		return w.fail("Get", target, err)
	}
	return nil
}

// RGet is Get with a request: when that is complete, buf has the elements
// (MPI_Rget, MPI 4.1 §12.3.5).
func (w *Win[T]) RGet(buf []T, target, disp int) Request {
	x, at, err := w.reach(len(buf), target, disp)
	if err != nil {
		return w.refused("RGet", target, err)
	}
	if target == ProcNull {
		return Request{c: hasLeft}
	}
	r, err := x.win.Rget(x.c.ctx, target, at, elem.Bytes(buf))
	return x.request(opRGet, target, r, err)
}
