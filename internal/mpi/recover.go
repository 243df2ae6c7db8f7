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
	return c.s.job.home.world.Epoch
}

// FailedRanks implements comm.Comm.FailedRanks, which documents the call.
func (c *Comm) FailedRanks() []int {
	s, err := c.live()
	if err != nil {
		return nil
	}
	var ranks []int
	for r, gone := range s.job.eng.Absent(s.peerRanks) {
		if gone {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// FailedRanks implements comm.Win.FailedRanks, which documents the call.
func (x *Win) FailedRanks() []int {
	if x.live() != nil {
		return nil
	}
	return x.c.FailedRanks()
}

// IsRevoked implements comm.Comm.IsRevoked, which documents the call.
func (c *Comm) IsRevoked() bool {
	s, err := c.live()
	return err == nil && s.p2p.Err() != nil
}

// IsRevoked implements comm.Win.IsRevoked, which documents the call.
func (x *Win) IsRevoked() bool { return x.live() == nil && x.c.IsRevoked() }

// AckFailed implements comm.Comm.AckFailed, which documents the call.
func (c *Comm) AckFailed() []int {
	s, err := c.live()
	if err != nil {
		return nil
	}
	s.p2p.Acknowledge()
	if s.inter != nil {
		s.coll.Acknowledge() // for Agree, which also needs the processes of the own group
	}
	return s.p2p.Acknowledged()
}

// Agree implements comm.Comm.Agree, which documents the call.
func (c *Comm) Agree(flag int) (int, error) {
	s, err := c.live()
	if err != nil {
		return 0, c.fail("Agree", noRank, noRank, err)
	}
	t := c.timing()
	v, err := c.agree("Agree", s.job.agreements.Begin(s.agreements, agree.Agree, uint64(flag)))
	if err == nil {
		t.end(opAgree, noRank, noRank, 0)
	}
	return v, err
}

// Iagree implements comm.Comm.Iagree, which documents the call.
func (c *Comm) Iagree(flag *int) Request {
	s, err := c.live()
	if err == nil && flag == nil {
		err = fmt.Errorf("%w: the flag is nil", ErrArg)
	}
	if err != nil {
		return c.refused("Iagree", noRank, noRank, err)
	}
	started := s.job.agreements.Begin(s.agreements, agree.Agree, uint64(*flag))
	return c.inBackground(func() error {
		v, err := c.agree("Iagree", started)
		*flag = v
		return err
	})
}

// inBackground runs f, the rest of a nonblocking call, on another goroutine, and returns the request.
func (c *Comm) inBackground(f func() error) Request {
	return c.startedRequest(c.s.job.eng.Go(f), opCollective, noRank, noRank, 0)
}

// agree finishes an agreement for the call op.
func (c *Comm) agree(op string, started *agree.Started) (int, error) {
	s := c.s
	v, err := started.Finish(c.ctx)
	if err != nil {
		return 0, c.fail(op, noRank, noRank, s.agreed(err))
	}
	err = s.unacknowledged(v)
	if final := s.finalized(v); final != nil && err != nil {
		err = fmt.Errorf("%w; %w", final, err)
	} else if final != nil {
		err = final
	}
	return int(v.Flag), c.fail(op, noRank, noRank, err)
}

// finalized returns ErrFinalized if the decision names a rank that was in Finalize, and nil
// otherwise.
func (s *state) finalized(d *agree.Decision) error {
	if d.Finalized < 0 {
		return nil
	}
	return engine.FinalizedError(s.ranks[d.Finalized])
}

// unacknowledged returns ErrProcFailed if the decision contains a failed rank that not all ranks
// have acknowledged by AckFailed, and nil otherwise.
func (s *state) unacknowledged(d *agree.Decision) error {
	n := len(s.ranks)
	ranks := slices.DeleteFunc(d.Failed.Ranks(n), d.Known.Has)
	if len(ranks) == 0 {
		return nil
	}
	why := s.job.eng.Gone(s.ranks[ranks[0]])
	if why == nil { // the engine of this rank was closed or has failed, and so does not report the failure
		why = fmt.Errorf("%w: rank %d of the world", ErrProcFailed, s.ranks[ranks[0]])
	}
	if s.inter != nil {
		ranks = s.remoteRanks(ranks)
	}
	if len(ranks) > 1 {
		why = fmt.Errorf("%w; ranks %v of the communicator failed in all", why, ranks)
	}
	return &ProcFailedError{Ranks: ranks, why: why}
}

// Shrink implements comm.Comm.Shrink, which documents the call.
func (c *Comm) Shrink() (*Comm, error) {
	s, err := c.live()
	if err != nil {
		return nil, c.fail("Shrink", noRank, noRank, err)
	}
	t := c.timing()
	live, err := c.shrink("Shrink", s.job.agreements.Begin(s.agreements, agree.Shrink, 0))
	if err == nil {
		t.end(opShrink, noRank, noRank, 0)
	}
	return live, err
}

// Ishrink implements comm.Comm.Ishrink, which documents the call.
func (c *Comm) Ishrink(into func(*Comm)) Request {
	s, err := c.live()
	if err == nil && into == nil {
		err = fmt.Errorf("%w: there is no variable for the communicator", ErrArg)
	}
	if err != nil {
		return c.refused("Ishrink", noRank, noRank, err)
	}
	started := s.job.agreements.Begin(s.agreements, agree.Shrink, 0)
	return c.inBackground(func() error {
		n, err := c.shrink("Ishrink", started)
		into(n)
		return err
	})
}

// shrink finishes a Shrink for the call op.
func (c *Comm) shrink(op string, started *agree.Started) (*Comm, error) {
	s := c.s
	v, err := started.Finish(c.ctx)
	if err == nil {
		err = s.finalized(v)
	}
	if err != nil {
		return nil, c.fail(op, noRank, noRank, s.agreed(err))
	}
	var ranks []int
	for r := range s.ranks {
		if !v.Failed.Has(r) {
			ranks = append(ranks, r)
		}
	}
	live := c.part(v.Next, ranks)
	if live == nil {
		return nil, c.fail("Shrink", noRank, noRank, fmt.Errorf("%w: all processes of the remote group", ErrProcFailed))
	}
	return live, nil
}
