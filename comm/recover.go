package comm

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/internal/engine"
)

// Going on after failures (ULFM, MPI 4.1 has none of it)
//
//	a call fails with ErrProcFailed ─► Revoke: the others leave their calls too
//	                                   Shrink: a communicator of those that live

// Epoch counts how often the launcher has started the whole job anew after a
// failure (gorun -on-failure restart): 0 in the first run, so that a program knows
// whether to look for what an earlier run has saved. It is local.
func (c *Comm) Epoch() int {
	if c == nil || c.s == nil {
		return 0
	}
	return c.s.job.world.Epoch
}

// FailedRanks gives the ranks of c that this process knows to have failed, or to
// have ended, in ascending order; others may know more (MPIX_Comm_get_failed). It
// is local.
func (c *Comm) FailedRanks() []int {
	s, err := c.live()
	if err != nil {
		return nil
	}
	var ranks []int
	for r, gone := range s.job.eng.Absent(s.group.ranks) {
		if gone {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// AckFailed says that the program knows of the failures that FailedRanks gives at
// this moment, and returns all that it was ever called for. From now on receives
// and probes of c from AnySource, which fail as long as one who failed might be
// whom they wait for, go on without those ranks, and Agree does not report them
// (MPIX_Comm_ack_failed). It is local.
func (c *Comm) AckFailed() []int {
	s, err := c.live()
	if err != nil {
		return nil
	}
	s.p2p.Acknowledge()
	return s.p2p.Acknowledged()
}

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
func (c *Comm) Agree(flag int) (int, error) {
	s, err := c.live()
	if err != nil {
		return 0, c.fail("Agree", noRank, noRank, err)
	}
	v, err := s.job.council.agree(c.ctx, s, agreeCall, uint64(flag))
	if err != nil {
		return 0, c.fail("Agree", noRank, noRank, err)
	}
	err = s.unknown(v)
	if final := s.finalized(v); final != nil && err != nil {
		err = fmt.Errorf("%w; %w", final, err)
	} else if final != nil {
		err = final
	}
	return int(v.flag), c.fail("Agree", noRank, noRank, err)
}

// finalized returns an error if a verdict says that a rank is in Finalize.
func (s *state) finalized(v *ballot) error {
	if v.final == 0 {
		return nil
	}
	return engine.FinalizedError(s.group.ranks[v.final-1])
}

// unknown is an error where a verdict has failures that not all ranks knew of.
func (s *state) unknown(v *ballot) error {
	n := len(s.group.ranks)
	ranks := slices.DeleteFunc(v.failed.ranks(n), v.known.has)
	if len(ranks) == 0 {
		return nil
	}
	why := s.job.eng.Gone(s.group.ranks[ranks[0]])
	if why == nil { // this engine has ended meanwhile
		why = fmt.Errorf("%w: rank %d of the world", ErrProcFailed, s.group.ranks[ranks[0]])
	}
	if len(ranks) > 1 {
		return fmt.Errorf("%w; ranks %v of the communicator failed in all", why, ranks)
	}
	return why
}

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
	s, err := c.live()
	if err != nil {
		return nil, c.fail("Shrink", noRank, noRank, err)
	}
	v, err := s.job.council.agree(c.ctx, s, shrinkCall, 0)
	if err == nil {
		err = s.finalized(v)
	}
	if err != nil {
		return nil, c.fail("Shrink", noRank, noRank, err)
	}
	var ranks []int
	own := 0
	for r, world := range s.group.ranks {
		if r == s.rank {
			own = len(ranks)
		}
		if !v.failed.has(r) {
			ranks = append(ranks, world)
		}
	}
	return &Comm{s: s.job.newState(v.next, Group{ranks: ranks, self: s.group.self}, own), ctx: c.ctx}, nil
}
