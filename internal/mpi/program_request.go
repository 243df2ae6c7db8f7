package mpi

import (
	"fmt"
	"runtime/debug"
)

// Requests of operations that the program performs (generalized requests, MPI 4.1 §13.2)
//
//	NewRequest ─► in progress ─► complete(status, err) ─► Wait, Test, WaitAny, …
//	                  │
//	                  └─ Request.Cancel calls the program's function cancel
//
// The engine keeps such a request as it keeps those of its own operations, so that the calls for
// several requests accept both kinds. MPI asks the program for the status when a Wait returns
// (query_fn); here the status is an argument of complete. The garbage collector does the work of
// free_fn.

// NewRequest implements comm.Comm.NewRequest, which documents the call.
func (c *Comm) NewRequest(cancel func()) (r Request, complete func(st Status, err error)) {
	s, err := c.live()
	if err != nil {
		return c.refused("NewRequest", noRank, noRank, err), func(Status, error) {}
	}
	q := s.job.eng.Begin()
	own := &Comm{s: c.s, ctx: c.ctx, cancel: cancel}
	r = own.startedRequest(q, opNewRequest, noRank, noRank, 1)
	return r, q.Complete
}

// cancelProgram calls the program's function that cancels the operation of r, unless the operation
// has ended.
func (r Request) cancelProgram() (err error) {
	if r.c.cancel == nil || r.r.Done() {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = r.c.fail("Cancel", noRank, noRank, fmt.Errorf("%w: panic: %v\n%s", ErrOp, p, debug.Stack()))
		}
	}()
	r.c.cancel()
	return nil
}
