package launcher

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/wire"
)

// TestDeadlocksOfRandomRanks compares the results of the searches with those of simple but slow
// functions, on random answers of a few ranks.
func TestDeadlocksOfRandomRanks(t *testing.T) {
	const graphs = 20000
	g := rand.New(rand.NewPCG(1, 2))
	var possible, certain, differ int
	for i := range graphs {
		before, now := randomRounds(g)
		w := newWaits(now, &before)
		text := fmt.Sprintf("graph %d", i)
		require.Equal(t, simpleStuck(w, anyRank, false), w.possible(), text)
		require.Equal(t, simpleStuck(w, w.sure, true), w.certain(), text)
		require.Equal(t, simpleStuck(w, w.sure, false), w.stuck(w.sure, false), text)
		for _, s := range now.states {
			if s == nil {
				continue
			}
			for _, c := range s.Calls {
				for r := range now.states {
					k := collective{c.ID, c.Seq}
					require.Equal(t, simpleLate(now, r, k), w.late(r, k), text)
				}
			}
		}
		if slices.Contains(w.possible(), true) {
			possible++
		}
		if slices.Contains(w.certain(), true) {
			certain++
		}
		if w.again() {
			differ++
		}
	}
	for _, n := range [...]int{possible, certain, differ} {
		require.Greater(t, n, graphs/50) // the random answers must have deadlocks of each kind
	}
}

// randomRounds returns the answers of two to seven ranks in two rounds. Most of the ranks wait, and
// most of them give the same answer in both rounds.
func randomRounds(g *rand.Rand) (before, now round) {
	one := func(n int) bool { return g.IntN(n) == 0 }
	// Each unusual property of an answer has the probability 1/calm.
	ranks, comms, calm := 2+g.IntN(6), 1+g.IntN(4), 4+g.IntN(100)
	states := make([]*wire.RankState, ranks)
	for r := range states {
		s := &wire.RankState{Busy: one(calm), Moves: one(calm), MoreComms: one(8), MoreLinks: one(8)}
		ids := []uint64{worldID}
		for id := 1; id < comms; id++ {
			if one(2) {
				ids = append(ids, uint64(id))
			}
		}
		for _, id := range append(slices.Clone(ids), finalID) {
			s.Comms = append(s.Comms, wire.RankComm{ID: id, Seq: uint32(g.IntN(3))})
		}
		if one(calm) {
			s.Comms = s.Comms[1:]
		}
		if one(calm) {
			s.Later = []string{"sleep"}
		}
		for range 1 + g.IntN(2) {
			c := wire.RankCall{Name: "Recv", Comm: "comm", ID: ids[g.IntN(len(ids))], Still: true, Bounded: one(calm), Wait: wire.WaitRecv, Peer: -1, World: -1, Seq: 1 + uint32(g.IntN(2))}
			if one(calm) {
				c.ID = finalID
			}
			if one(2) {
				c.World = g.IntN(ranks)
			}
			if one(4) && c.World >= 0 {
				c.Wait = wire.WaitCollective
			}
			s.Calls = append(s.Calls, c)
		}
		states[r] = s
	}
	for a := range states {
		for b := range a {
			if !one(2) {
				continue
			}
			sent, received := uint32(g.IntN(3)), uint32(g.IntN(3))
			if !one(calm) {
				states[a].Links = append(states[a].Links, link(uint32(b), sent, received))
			}
			if one(calm) {
				sent++
			}
			if !one(calm) {
				states[b].Links = append(states[b].Links, link(uint32(a), received, sent))
			}
		}
	}
	before, now = world(states...), world(states...)
	for r, s := range states {
		change := func(s *wire.RankState) {
			s.Links = slices.Clone(s.Links)
			switch g.IntN(4) {
			case 0:
				s.Calls[0].Event = "another"
			case 1:
				s.MoreLinks = !s.MoreLinks
			case 2:
				if s.MoreLinks = true; len(s.Links) > 0 {
					s.Links = s.Links[1:]
				}
			case 3:
				if len(s.Links) > 0 {
					s.Links[0][1]++
				}
			}
		}
		if one(calm) {
			before.states[r] = modified(s, change)
		}
		if one(calm) {
			now.states[r] = modified(s, change)
		}
		if one(4 * calm) {
			now.states[r], now.silent[r] = nil, one(2)
		}
	}
	return before, now
}

// simpleStuck computes the result of [waits.stuck] directly from the definition of that function. It
// compares each rank with each other rank.
func simpleStuck(w *waits, may func(rank int) bool, quiet bool) []bool {
	set := make([]bool, len(w.needs))
	for r, needs := range w.needs {
		set[r] = len(needs) > 0 && may(r)
	}
	// remove removes from set each rank that needs a peer for which fits returns false. It reports
	// whether it has removed any.
	remove := func(fits func(rank, peer int) bool) (removed bool) {
		for r, needs := range w.needs {
			for _, n := range needs {
				for peer := range set {
					if of := peer == n.rank || n.any && simpleMayHave(w.round, peer, n.comm); set[r] && of && !fits(r, peer) {
						set[r], removed = false, true
					}
				}
			}
		}
		return removed
	}
	inSet := func(_, peer int) bool { return set[peer] }
	for remove(inSet) {
	}
	if quiet {
		remove(func(rank, peer int) bool { return simpleQuiet(w, rank, peer) })
		for remove(inSet) {
		}
	}
	return set
}

// simpleMayHave computes the result of [waits.mayHave] directly from the answers.
func simpleMayHave(o round, rank int, id uint64) bool {
	s := o.states[rank]
	_, has := simpleSeq(s, id)
	return has || id == worldID || id == finalID || o.silent[rank] || s != nil && s.MoreComms
}

// simpleSeq returns the number of collectives that a rank has started on communicator id, and
// whether its answer s lists the communicator.
func simpleSeq(s *wire.RankState, id uint64) (seq uint32, has bool) {
	if s != nil {
		for _, c := range s.Comms {
			if c.ID == id {
				return c.Seq, true
			}
		}
	}
	return 0, false
}

// simpleLate computes the result of [waits.late] directly from the answers.
func simpleLate(o round, rank int, k collective) bool {
	s := o.states[rank]
	if seq, has := simpleSeq(s, k.id); has {
		return seq < k.seq
	}
	return (k.id == worldID || k.id == finalID) && !o.silent[rank] && (s == nil || !s.MoreComms)
}

// simpleQuiet computes the result of [waits.quiet] directly from the answers: whether the counters
// of messages between ranks a and b are known and equal, on both sides and in both rounds.
func simpleQuiet(w *waits, a, b int) bool {
	count := func(s *wire.RankState, peer int) (sent, received uint32, known bool) {
		for _, l := range s.Links {
			if int(l[0]) == peer {
				return l[1], l[2], true
			}
		}
		return 0, 0, !s.MoreLinks
	}
	type end struct {
		s           *wire.RankState
		peer, order int
	}
	var all [][2]uint32
	for _, e := range [...]end{{w.before[a], b, 0}, {w.states[a], b, 0}, {w.before[b], a, 1}, {w.states[b], a, 1}} {
		sent, received, known := count(e.s, e.peer)
		if !known {
			return a == b
		}
		counts := [2]uint32{sent, received}
		if e.order == 1 {
			counts = [2]uint32{received, sent}
		}
		all = append(all, counts)
	}
	return a == b || len(slices.Compact(all)) == 1
}
