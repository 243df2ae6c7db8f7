package mpi

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/agree"
)

// How a program continues after failures (ULFM; not part of MPI 4.1)
//
//	a call fails with ErrProcFailed ─► Revoke: the calls of the other ranks fail, too
//	                                   Shrink: returns a communicator of the live ranks

// Epoch implements comm.Comm.Epoch, which documents the call.
func (c *Comm) Epoch() int {
	if c == nil || c.s == nil {
		return 0
	}
	return c.s.job.world.Epoch
}

// FailedRanks implements comm.Comm.FailedRanks, which documents the call.
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

// AckFailed implements comm.Comm.AckFailed, which documents the call.
func (c *Comm) AckFailed() []int {
	s, err := c.live()
	if err != nil {
		return nil
	}
	s.p2p.Acknowledge()
	return s.p2p.Acknowledged()
}

// Agree implements comm.Comm.Agree, which documents the call.
func (c *Comm) Agree(flag int) (int, error) {
	s, err := c.live()
	if err != nil {
		return 0, c.fail("Agree", noRank, noRank, err)
	}
	v, err := s.job.agreements.Do(c.ctx, s.agreements, agree.Agree, uint64(flag))
	if err != nil {
		return 0, c.fail("Agree", noRank, noRank, err)
	}
	err = s.unacknowledged(v)
	if final := s.finalized(v); final != nil && err != nil {
		err = fmt.Errorf("%w; %w", final, err)
	} else if final != nil {
		err = final
	}
	return int(v.Flag), c.fail("Agree", noRank, noRank, err)
}

// finalized returns ErrFinalized if the decision names a rank that was in Finalize, and nil
// otherwise.
func (s *state) finalized(d *agree.Decision) error {
	if d.Finalized < 0 {
		return nil
	}
	return engine.FinalizedError(s.group.ranks[d.Finalized])
}

// unacknowledged returns ErrProcFailed if the decision contains a failed rank that not all ranks
// have acknowledged by AckFailed, and nil otherwise.
func (s *state) unacknowledged(d *agree.Decision) error {
	n := len(s.group.ranks)
	ranks := slices.DeleteFunc(d.Failed.Ranks(n), d.Known.Has)
	if len(ranks) == 0 {
		return nil
	}
	why := s.job.eng.Gone(s.group.ranks[ranks[0]])
	if why == nil { // the engine of this rank was closed or has failed, and so does not report the failure
		why = fmt.Errorf("%w: rank %d of the world", ErrProcFailed, s.group.ranks[ranks[0]])
	}
	if len(ranks) > 1 {
		return fmt.Errorf("%w; ranks %v of the communicator failed in all", why, ranks)
	}
	return why
}

// Shrink implements comm.Comm.Shrink, which documents the call.
func (c *Comm) Shrink() (*Comm, error) {
	s, err := c.live()
	if err != nil {
		return nil, c.fail("Shrink", noRank, noRank, err)
	}
	v, err := s.job.agreements.Do(c.ctx, s.agreements, agree.Shrink, 0)
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
		if !v.Failed.Has(r) {
			ranks = append(ranks, world)
		}
	}
	return &Comm{s: s.job.newState(v.Next, Group{ranks: ranks, self: s.group.self}, own), ctx: c.ctx}, nil
}
