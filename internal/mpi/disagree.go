package mpi

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Ranks that disagree about a collective
//
// Each message of a collective carries the call's fingerprint, a hash of 16 bits. So a rank
// detects, except with a probability of 2^-16, that another rank made a different call. The
// fingerprint does not say which call that was. So the rank sends a query that holds its own last
// calls in full. The other rank compares them with its own calls and revokes the communicator with
// a text that names both calls.
//
//	rank 0: Barrier      ◄── fingerprint of Bcast ──      rank 1: Bcast
//	   │
//	   └── query: communicator, last calls of rank 0 ──► compares them with its own
//	 all ranks ◄── revoked: rank 0 called Barrier, rank 1 Bcast of 10 float64 ──┘
//
// A rank that waits for a long time sends the same query; see stallDetector.
//
// A rank that takes no part in a collective of an intercommunicator sends no message, so its call has no
// fingerprint. Other ranks notice by a query if it should have taken part.

// sendQuery sends the query q to a rank of the communicator, in the point-to-point context of
// Finalize's communicator. It does not block.
func (s *state) sendQuery(rank int, q calls.Query) {
	s.job.final.p2p.SendBuffered(q, engine.Env{Peer: s.ranks[rank]})
}

// handleQuery handles a query from world rank sender. It compares the calls of the query with the
// calls of this rank. If they differ, handleQuery revokes the communicator with both calls in the
// text. It ignores a malformed query, one about a communicator that is not open on this rank, and
// one of a rank outside of the communicator.
func (j *job) handleQuery(q calls.Query, sender int) {
	id, records, ok := q.Parse()
	if !ok {
		return
	}
	s := j.stall.find(id)
	if s == nil {
		return
	}
	rank := slices.Index(s.ranks, sender)
	if rank < 0 {
		return
	}
	hood := s.hood.Load()
	inGroup := func(world int, mine bool) bool { // see Differs
		of := rank
		if mine {
			of = s.rank
		}
		at := slices.Index(s.ranks, world)
		return at >= 0 && s.inter != nil && s.inter.Local.Has(at) == s.inter.Local.Has(of)
	}
	a, b, ok := s.called.Differs(records, hood != nil && hood.connects(rank), inGroup)
	switch {
	case !ok:
	case a.String() == b.String(): // the calls differ in something that String does not show
		s.revoke(fmt.Errorf("%w: %s and %s called %v with other counts, with elements of another layout, or with another remote group", ErrMismatch, s.rankName(rank), s.rankName(s.rank), &a))
	default:
		s.revoke(fmt.Errorf("%w: %s called %v, %s called %v", ErrMismatch, s.rankName(rank), &a, s.rankName(s.rank), &b))
	}
}

// disagreement returns the error of a collective in which rank made a different call. It sends
// queries to that rank, and waits for at most replyIntervals intervals of the stall detector. If
// that rank revokes the communicator in this time, the error names both calls.
func (l *link) disagreement(rank int) error {
	s, j := l.s, l.s.job
	if l.unrecorded {
		l.recordCall()
	}
	if q := s.called.Query(s.id, uint32(l.env.Tag)); q != nil && rank != s.rank {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for i := range int(replyIntervals * j.stall.interval / (10 * time.Millisecond)) {
			// Every 250 ms, because the other rank may not have recorded its call when the last
			// query arrived.
			if i%25 == 0 {
				s.sendQuery(rank, q)
			}
			<-tick.C
			// The other rank may have sent a query to this rank, so handle queries here too.
			if !j.handleQueries() || l.ctx.Err() != nil || j.eng.Gone(s.ranks[rank]) != nil {
				break
			}
			var revoked *engine.RevokedError
			if errors.As(s.coll.Err(), &revoked) {
				if what, ok := strings.CutPrefix(revoked.Cause, ErrMismatch.Error()+": "); ok {
					return fmt.Errorf("%w: %s", ErrMismatch, what)
				}
				break
			}
		}
	}
	own := s.rankName(s.rank)
	return fmt.Errorf("%w: %s made another call than %s, in this collective or an earlier one; %s called %v", ErrMismatch, s.rankName(rank), own, own, &l.signed)
}

// replyIntervals is the maximum number of intervals of the stall detector for which a rank whose
// collective has failed waits until the rank that got its query revokes the communicator.
const replyIntervals = 4
