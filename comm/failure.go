package comm

// Going on after failures (ULFM, MPI 4.1 has none of it)
//
//	a call fails with ErrProcFailed ─► Revoke: the others leave their calls too
//	                                   Shrink: a communicator of those that live

// Epoch counts how often the launcher has started the whole job anew after a
// failure (gorun -on-failure restart): 0 in the first run, so that a program knows
// whether to look for what an earlier run has saved. It is local.
func (c *Comm) Epoch() int { return c.in().Epoch() }

// FailedRanks gives the ranks of c that this process knows to have failed, or to
// have ended, in ascending order; others may know more (MPIX_Comm_get_failed). It
// is local.
func (c *Comm) FailedRanks() []int { return c.in().FailedRanks() }

// AckFailed says that the program knows of the failures that FailedRanks gives at
// this moment, and returns all that it was ever called for. From now on receives
// and probes of c from AnySource, which fail as long as one who failed might be
// whom they wait for, go on without those ranks, and Agree does not report them
// (MPIX_Comm_ack_failed). It is local.
func (c *Comm) AckFailed() []int { return c.in().AckFailed() }

// Agree blocks until every rank of c that lives has called it, and returns the
// bits that all of them have set in flag: the same on all, whoever fails meanwhile
// (MPIX_Comm_agree). It is collective over those that live, in one order with
// Shrink, and works on a communicator that was revoked too. A rank that waits in
// another call of c does not come here unless c is revoked.
//
// Errors:
//   - ErrProcFailed on all ranks, with the agreed bits, if a rank of c has failed and not all
//     ranks have acknowledged its failure (AckFailed);
//   - ErrProcFailed on a rank that the other ranks have given up;
//   - ErrFinalized on all ranks, with the bits of the ranks that called Agree, if a rank of c
//     has called Finalize instead;
//   - ErrMismatch if some ranks called Shrink;
//   - ErrClosed;
//   - the context's error. The call still counts for the other ranks.
func (c *Comm) Agree(flag int) (int, error) { return c.in().Agree(flag) }

// Shrink makes a communicator of the ranks of c that live, in c's order, with the
// context of c (MPIX_Comm_shrink). It is collective over those that live, in one
// order with Agree, blocks until all have called it, and works on a communicator
// that was revoked, as it mostly is: ranks that wait in another call of c would not
// come here. All ranks agree on who is left; one that fails later is in it, and
// fails the first call that needs it. c remains, to be freed.
//
// Errors: ErrProcFailed on a rank that the other ranks have given up; ErrFinalized on all
// ranks if a rank of c has called Finalize instead; ErrMismatch if some ranks called Agree;
// ErrClosed; the context's error.
func (c *Comm) Shrink() (*Comm, error) {
	n, err := c.in().Shrink()
	return (*Comm)(n), err
}
