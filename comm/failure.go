package comm

import "github.com/weft-hpc/weft/internal/mpi"

// Recovery from failures: User-Level Failure Mitigation (ULFM), which MPI 4.1 does not have.
//
//	a call fails with ErrProcFailed ─► Revoke: the calls of the other ranks fail, too
//	                                   Shrink: makes a communicator of the live ranks

// Epoch returns how often the launcher has restarted the job after a failure (gorun -on-failure
// restart). The result is 0 in the first run, and for a nil communicator. If it is not 0, the
// program may find data that an earlier run has saved. Epoch is local.
func (c *Comm) Epoch() int { return c.in().Epoch() }

// FailedRanks returns the ranks of c that have failed or ended, as far as this process knows, in
// ascending order (MPIX_Comm_get_failed). Other processes may know more. FailedRanks is local. For
// a nil or freed communicator it returns nil.
func (c *Comm) FailedRanks() []int { return c.in().FailedRanks() }

// AckFailed acknowledges the failures that [Comm.FailedRanks] reports at this moment, and returns
// all ranks of c that this process has acknowledged so far (MPIX_Comm_ack_failed). A receive or
// probe from AnySource fails as long as a failed rank that is not acknowledged might be its source.
// A request of [Irecv] does not complete then: Wait and Test return [ErrProcFailedPending]. After
// AckFailed such calls ignore the acknowledged ranks, and drop their messages whose data is lost.
// [Comm.Agree] does not report a failed rank that all ranks have acknowledged. AckFailed is local.
func (c *Comm) AckFailed() []int { return c.in().AckFailed() }

// IsRevoked reports whether this process knows that c was revoked, by [Comm.Revoke] or because a
// collective has failed (MPIX_Comm_is_revoked). For a nil or freed communicator it returns false.
// IsRevoked is local and does not block.
func (c *Comm) IsRevoked() bool { return c.in().IsRevoked() }

// Agree blocks until every live rank of c has called it, and returns the bitwise and of all flags
// (MPIX_Comm_agree). All ranks that return without ErrClosed or the context's error get the same
// result, even if ranks fail during the call. Agree is collective over the live ranks, which must
// call Agree and Shrink in the same order. It also works on a revoked communicator. If a rank waits
// in another call of c, it does not reach Agree unless c is revoked.
//
// Errors:
//   - ErrProcFailed on all ranks, with the agreed bits, if a rank of c has failed and not all
//     ranks have acknowledged its failure (AckFailed);
//   - ErrProcFailed on a rank that the other ranks regard as failed;
//   - ErrFinalized on all ranks, with the bits of the ranks that called Agree, if a rank of c
//     has called Finalize instead;
//   - ErrMismatch if some ranks called Shrink;
//   - ErrClosed;
//   - the context's error. The call still counts for the other ranks.
func (c *Comm) Agree(flag int) (int, error) { return c.in().Agree(flag) }

// Shrink makes a communicator of the live ranks of c, in their order, with the context of c
// (MPIX_Comm_shrink). It is collective over the live ranks, which must call Agree and Shrink in the
// same order. It blocks until all of them have called it. It also works on a revoked communicator.
// Revoke c first if some ranks may wait in another call of c, because they would not reach Shrink.
//
// All ranks agree on the members of the new communicator. If a member fails later, the first call
// that needs it fails. Shrink does not free c.
//
// Errors: ErrProcFailed on a rank that the other ranks regard as failed; ErrFinalized on all ranks
// if a rank of c has called Finalize instead; ErrMismatch if some ranks called Agree; ErrClosed;
// the context's error.
func (c *Comm) Shrink() (*Comm, error) {
	n, err := c.in().Shrink()
	return (*Comm)(n), err
}

// Iagree is [Comm.Agree], except that it does not block (MPIX_Comm_iagree). flag points to the flag
// of this rank. When the request is complete, the variable holds the result of Agree, even if Wait
// returns ErrProcFailed or ErrFinalized. The variable belongs to the request until then. A rank may
// start more agreements before the first one is complete; they complete in their order.
//
// Errors of Wait: those of Agree; ErrArg if flag is nil.
func (c *Comm) Iagree(flag *int) Request { return Request(c.in().Iagree(flag)) }

// Ishrink is [Comm.Shrink], except that it does not block (MPIX_Comm_ishrink). When the request is
// complete, the variable that into points to holds the new communicator, or nil if Wait returns an
// error. Errors of Wait: those of Shrink; ErrArg if into is nil.
func (c *Comm) Ishrink(into **Comm) Request {
	if into == nil {
		return Request(c.in().Ishrink(nil))
	}
	return Request(c.in().Ishrink(func(n *mpi.Comm) { *into = (*Comm)(n) }))
}
