package launcher

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/wire"
)

// world returns the answers of one round of an inspection, by rank. A nil state means that the rank
// does not answer.
func world(states ...*wire.RankState) round {
	o := round{states: states, silent: make([]bool, len(states))}
	for r, s := range states {
		o.silent[r] = s == nil
	}
	return o
}

// stateOf returns the answer of a rank that waits in calls, each in a goroutine of its own. The rank
// has two communicators: the world and the one of Finalize.
func stateOf(calls ...wire.RankCall) *wire.RankState {
	s := &wire.RankState{Comms: []wire.RankComm{{ID: worldID, Seq: 1}, {ID: finalID}}}
	for i, c := range calls {
		c.Goroutine, c.Still = i+1, true
		s.Calls = append(s.Calls, c)
		for k := range s.Comms {
			if c.Wait == wire.WaitCollective && s.Comms[k].ID == c.ID {
				s.Comms[k].Seq = c.Seq
			}
		}
	}
	return s
}

// modified returns a copy of s that change has modified. s stays as it is.
func modified(s *wire.RankState, change func(s *wire.RankState)) *wire.RankState {
	c := *s
	c.Calls = append([]wire.RankCall(nil), s.Calls...)
	change(&c)
	return &c
}

// in returns a call of the collective with this name. It is the second collective on the world, and
// waits for rank peer.
func in(name string, peer int) wire.RankCall {
	return wire.RankCall{Name: name, Comm: "world", Wait: wire.WaitCollective, Seq: 2, Peer: peer, World: peer, Tag: -1}
}

// link returns the numbers of messages that a rank has sent to peer and received from peer.
func link(peer, sent, received uint32) wire.RankLink { return wire.RankLink{peer, sent, received} }

// TestDeadlocks gives newWaits the answers of two rounds, before and now. If before is nil, both
// rounds have the same answers. want holds the lines about late ranks and deadlocks, and again is
// whether gorun should ask the ranks once more.
func TestDeadlocks(t *testing.T) {
	waits01, waits10 := stateOf(recvFrom(1, 5)), stateOf(recvFrom(0, 5))
	linked := func(s *wire.RankState, links ...wire.RankLink) *wire.RankState {
		return modified(s, func(s *wire.RankState) { s.Links = links })
	}
	later := func(s *wire.RankState, states ...string) *wire.RankState {
		return modified(s, func(s *wire.RankState) { s.Later = states })
	}
	certain := []string{"deadlock: rank 0 waits for 1, 1 for 0"}
	const possible = "possible deadlock: rank 0 waits for 1, 1 for 0"
	const underWay = "not certain, because messages between these ranks seem to be on their way"
	row := func(peer, world int) wire.RankCall {
		return wire.RankCall{Name: "Recv", Comm: "comm 0.1", ID: 1, Wait: wire.WaitRecv, Peer: peer, World: world}
	}
	hasRow := func(s *wire.RankState) *wire.RankState {
		return modified(s, func(s *wire.RankState) { s.Comms = append([]wire.RankComm{{ID: 1}}, s.Comms...) })
	}
	finalize := wire.RankCall{Name: "Finalize", Comm: "world", ID: finalID, Wait: wire.WaitCollective, Seq: 1, Peer: 0, World: 0}
	for name, test := range map[string]struct {
		before, now []*wire.RankState
		want        []string
		again       bool
	}{
		"certain": {nil, []*wire.RankState{waits01, waits10}, certain, false},
		"a rank has continued meanwhile": {
			[]*wire.RankState{waits01, waits10},
			[]*wire.RankState{waits01, modified(waits10, func(s *wire.RankState) { s.Calls[0].Event = "another" })},
			nil, false,
		},
		"a rank ran before":        {[]*wire.RankState{modified(waits01, func(s *wire.RankState) { s.Busy = true }), waits10}, []*wire.RankState{waits01, waits10}, nil, false},
		"a rank had more calls":    {[]*wire.RankState{modified(waits01, func(s *wire.RankState) { s.More = 1 }), waits10}, []*wire.RankState{waits01, waits10}, nil, false},
		"a rank has answered once": {[]*wire.RankState{waits01, nil}, []*wire.RankState{waits01, waits10}, nil, false},
		"a rank does not answer":   {[]*wire.RankState{waits01, waits10}, []*wire.RankState{waits01, nil}, nil, false},
		"all messages have come": {nil, []*wire.RankState{
			linked(waits01, link(1, 3, 9)), linked(waits10, link(0, 9, 3)),
		}, certain, false},
		"a message is on its way": {nil, []*wire.RankState{
			linked(waits01, link(1, 3, 9)), linked(waits10, link(0, 10, 3)),
		}, []string{possible, underWay}, true},
		"a message has come meanwhile": {
			[]*wire.RankState{linked(waits01, link(1, 3, 8)), linked(waits10, link(0, 9, 3))},
			[]*wire.RankState{linked(waits01, link(1, 3, 9)), linked(waits10, link(0, 9, 3))},
			[]string{possible, underWay}, true,
		},
		"a link that was left out": {nil, []*wire.RankState{
			modified(waits01, func(s *wire.RankState) { s.MoreLinks = true }), waits10,
		}, []string{possible, underWay}, true},
		"a message to a rank that is not stuck": {nil, []*wire.RankState{
			linked(waits01, link(2, 1, 0)), waits10, {Busy: true, Comms: waits01.Comms},
		}, certain, false},
		"a transfer moves": {nil, []*wire.RankState{waits01, modified(waits10, func(s *wire.RankState) { s.Moves = true })}, nil, false},
		"a goroutine sleeps": {nil, []*wire.RankState{waits01, later(waits10, "sleep", "IO wait")}, []string{
			possible, "not certain, because rank 1 has goroutines that read, write or are in system calls, and goroutines that sleep",
		}, false},
		"a goroutine slept before": {[]*wire.RankState{waits01, later(waits10, "sleep")}, []*wire.RankState{waits01, waits10}, []string{
			possible, "not certain, because rank 1 has goroutines that sleep",
		}, false},
		"a goroutine of another rank sleeps": {nil, []*wire.RankState{waits01, waits10, later(stateOf(recvFrom(0, 5)), "select")}, []string{
			certain[0], "possible deadlock: 1 more rank that waits for these", "not certain, because rank 2 has goroutines that wait for channels or timers",
		}, false},
		"a context may end the call": {nil, []*wire.RankState{waits01, modified(waits10, func(s *wire.RankState) { s.Calls[0].Bounded = true })}, []string{
			possible, "not certain, because rank 1 waits in a call that its context may end",
		}, false},
		"a goroutine sleeps, and a context may end the call": {nil, []*wire.RankState{waits01, later(modified(waits10, func(s *wire.RankState) { s.Calls[0].Bounded = true }), "sleep")}, []string{
			possible, "not certain, because rank 1 has goroutines that sleep, and waits in a call that its context may end",
		}, false},
		"any source, and a message is on its way": {nil, []*wire.RankState{
			linked(stateOf(recvFrom(-1, 5)), link(2, 1, 0)), waits10, stateOf(recvFrom(0, 5)),
		}, []string{possible, "possible deadlock: 1 more rank that waits for these", underWay}, true},
		"any source, and a message of another rank is on its way": {nil, []*wire.RankState{
			stateOf(recvFrom(-1, 5)), waits10, linked(stateOf(recvFrom(0, 5)), link(0, 1, 0)),
		}, []string{possible, "possible deadlock: 1 more rank that waits for these", underWay}, true},
		"any source, and all messages have come": {nil, []*wire.RankState{
			linked(stateOf(recvFrom(-1, 5)), link(1, 1, 2), link(2, 0, 7)), linked(waits10, link(0, 2, 1)), linked(stateOf(recvFrom(0, 5)), link(0, 7, 0)),
		}, []string{certain[0], "deadlock: 1 more rank that waits for these"}, false},
		"any source, and links that were left out": {nil, []*wire.RankState{
			modified(stateOf(recvFrom(-1, 5)), func(s *wire.RankState) { s.MoreLinks = true }), waits10,
		}, []string{possible, underWay}, true},
		"any source, and links that another rank left out": {nil, []*wire.RankState{
			stateOf(recvFrom(-1, 5)), modified(waits10, func(s *wire.RankState) { s.MoreLinks = true }),
		}, []string{possible, underWay}, true},
		"any source, and links that other ranks left out are to others": {nil, []*wire.RankState{
			hasRow(linked(stateOf(row(-1, -1)), link(1, 0, 1))), hasRow(modified(linked(stateOf(row(0, 0)), link(0, 1, 0)), func(s *wire.RankState) { s.MoreLinks = true })),
			{Busy: true, MoreLinks: true, Comms: waits01.Comms},
		}, certain, false},
		"barrier": {nil, []*wire.RankState{stateOf(in("Barrier", 2)), stateOf(in("Barrier", 0)), stateOf(in("Barrier", 3)), stateOf(recvFrom(0, 9))}, []string{
			"comm.Barrier(world) waits for rank 3",
			"deadlock: rank 0 waits for 3, 3 for 0", "deadlock: 2 more ranks that wait for these",
		}, false},
		"a broadcast needs its root alone": {nil, []*wire.RankState{stateOf(recvFrom(2, 9)), stateOf(in("Bcast", 0)), stateOf(recvFrom(0, 9)), stateOf(recvFrom(0, 9))}, []string{
			"comm.Bcast(world) waits for rank 0",
			"deadlock: rank 0 waits for 2, 2 for 0", "deadlock: 2 more ranks that wait for these",
		}, false},
		"no rank of a broadcast waits for a late one": {nil, []*wire.RankState{{Busy: true, Comms: []wire.RankComm{{ID: worldID, Seq: 2}}}, stateOf(in("Bcast", 0)), stateOf(recvFrom(1, 9))}, nil, false},
		"a collective with a silent rank": {nil, []*wire.RankState{stateOf(in("Barrier", 1)), nil, stateOf(recvFrom(0, 9))}, []string{
			"comm.Barrier(world) waits for rank 2, and perhaps for rank 1, which did not answer",
		}, false},
		"only a silent rank is missing": {nil, []*wire.RankState{stateOf(in("Barrier", 2)), stateOf(in("Barrier", 0)), nil}, []string{
			"comm.Barrier(world) waits perhaps for rank 2, which did not answer",
		}, false},
		"any source, and a silent rank": {nil, []*wire.RankState{hasRow(stateOf(row(-1, -1))), hasRow(stateOf(row(0, 0))), nil}, nil, false},
		"any source, and a rank with many communicators": {nil, []*wire.RankState{
			hasRow(stateOf(row(-1, -1))), hasRow(stateOf(row(0, 0))), {Busy: true, MoreComms: true, Comms: waits01.Comms},
		}, nil, false},
		"any source, and a rank without the communicator": {nil, []*wire.RankState{
			hasRow(stateOf(row(-1, -1))), hasRow(stateOf(row(0, 0))), {Busy: true, Comms: waits01.Comms},
		}, certain, false},
		"a rank is in Finalize":       {nil, []*wire.RankState{waits01, stateOf(finalize)}, []string{"comm.Finalize(world) waits for rank 0"}, false},
		"any source, and Finalize":    {nil, []*wire.RankState{stateOf(recvFrom(-1, 5)), stateOf(finalize)}, []string{"comm.Finalize(world) waits for rank 0", certain[0]}, false},
		"a call whose rank is hidden": {nil, []*wire.RankState{stateOf(recvFrom(1<<40, 5)), waits10}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			before, now := world(test.before...), world(test.now...)
			if test.before == nil {
				before = now
			}
			w := newWaits(now, &before)
			require.Equal(t, test.want, append(lateLines(w), w.deadlocks()...))
			require.Equal(t, test.again, w.again())
		})
	}
}

// TestDeadlockIsAskedForTwice: after the first round, again must return true if two ranks wait for
// each other, and false if one of them runs.
func TestDeadlockIsAskedForTwice(t *testing.T) {
	require.True(t, newWaits(world(stateOf(recvFrom(1, 5)), stateOf(recvFrom(0, 5))), nil).again())
	require.False(t, newWaits(world(stateOf(recvFrom(1, 5)), &wire.RankState{Busy: true}), nil).again())
}

// maxSteps bounds waits.steps: the searches must take fewer steps than this number for each rank,
// call, communicator and link in the answers.
const maxSteps = 4

// TestDeadlocksOfManyRanks: for 65536 ranks the searches find the right deadlocks, and do not
// compare each rank with each other rank. The number of their steps must be below the bound of
// maxSteps. state returns the answer of rank r.
func TestDeadlocksOfManyRanks(t *testing.T) {
	const ranks = 1 << 16
	for name, test := range map[string]struct {
		state func(r int) *wire.RankState
		want  []string
	}{
		"any source": {func(int) *wire.RankState { return stateOf(recvFrom(-1, 5)) }, []string{
			"deadlock: rank 0 waits for 1, 1 for 0", "deadlock: 65534 more ranks that wait for these",
		}},
		"any source, and one rank computes": {func(r int) *wire.RankState {
			if r == ranks-1 {
				return &wire.RankState{Busy: true, Comms: stateOf().Comms}
			}
			return stateOf(recvFrom(-1, 5))
		}, nil},
		"any source, and links that were left out": {func(int) *wire.RankState {
			return modified(stateOf(recvFrom(-1, 5)), func(s *wire.RankState) { s.MoreLinks = true })
		}, []string{
			"possible deadlock: rank 0 waits for 1, 1 for 0", "possible deadlock: 65534 more ranks that wait for these",
			"not certain, because messages between these ranks seem to be on their way",
		}},
		"any source of a pair": {func(r int) *wire.RankState {
			id := uint64(1 + r/2)
			s := stateOf(wire.RankCall{Name: "Recv", Comm: "pair", ID: id, Wait: wire.WaitRecv, Peer: -1, World: -1})
			s.Comms = append(s.Comms, wire.RankComm{ID: id})
			return s
		}, []string{
			"deadlock: rank 0 waits for 1, 1 for 0", "deadlock: rank 2 waits for 3, 3 for 2", "deadlock: rank 4 waits for 5, 5 for 4", "deadlock: rank 6 waits for 7, 7 for 6",
			"deadlock: 65528 more ranks that wait for these",
		}},
		"a chain to a rank that computes": {func(r int) *wire.RankState {
			if r == ranks-1 {
				return &wire.RankState{Busy: true, Comms: stateOf().Comms}
			}
			return stateOf(recvFrom(r+1, 5))
		}, nil},
		"a collective in a ring": {func(r int) *wire.RankState { return stateOf(in("Allgather", (r+ranks-1)%ranks)) }, []string{
			"deadlock: rank 0 waits for 65535, 65535 for 65534, 65534 for 65533, 65533 for 65532, 65532 for 65531, 65531 for 65530, 65530 for 65529, 65529 for 65528, 65528 for 65527, 65527 for 65526, …, 1 for 0",
		}},
		"a collective without one rank": {func(r int) *wire.RankState {
			if r == 0 {
				return stateOf(recvFrom(1, 5))
			}
			return stateOf(in("Allgather", r-1))
		}, []string{
			"comm.Allgather(world) waits for rank 0",
			"deadlock: rank 0 waits for 1, 1 for 0", "deadlock: 65534 more ranks that wait for these",
		}},
		"collectives of pairs": {func(r int) *wire.RankState {
			s := stateOf()
			s.Comms = append(s.Comms, wire.RankComm{ID: uint64(1 + r/2), Seq: 3})
			s.Calls = []wire.RankCall{{Name: "Barrier", Comm: "pair", ID: uint64(1 + r/2), Still: true, Wait: wire.WaitCollective, Seq: 3, Peer: r ^ 1, World: r ^ 1}}
			s.Busy = true
			return s
		}, nil},
		"any source of one half, and links that the other half left out": {func(r int) *wire.RankState {
			if r%2 == 1 {
				return modified(stateOf(recvFrom(r, 5)), func(s *wire.RankState) { s.MoreLinks = true })
			}
			s := stateOf(wire.RankCall{Name: "Recv", Comm: "comm 0.1", ID: 1, Wait: wire.WaitRecv, Peer: -1, World: -1})
			s.Comms = append(s.Comms, wire.RankComm{ID: 1})
			return s
		}, []string{
			"deadlock: rank 0 waits for 2, 2 for 0",
			"deadlock: rank 1 waits for itself", "deadlock: rank 3 waits for itself", "deadlock: rank 5 waits for itself",
			"deadlock: 65531 more ranks that wait for these",
		}},
		"any source of one half, and links and communicators that the other half left out": {func(r int) *wire.RankState {
			if r%2 == 1 {
				return modified(stateOf(recvFrom(r, 5)), func(s *wire.RankState) { s.MoreLinks, s.MoreComms = true, true })
			}
			s := stateOf(wire.RankCall{Name: "Recv", Comm: "comm 0.1", ID: 1, Wait: wire.WaitRecv, Peer: -1, World: -1})
			s.Comms = append(s.Comms, wire.RankComm{ID: 1})
			return s
		}, []string{
			"deadlock: rank 1 waits for itself", "deadlock: rank 3 waits for itself", "deadlock: rank 5 waits for itself", "deadlock: rank 7 waits for itself",
			"deadlock: 32764 more ranks that wait for these",
			"possible deadlock: 32768 more ranks that wait for these",
			"not certain, because messages between these ranks seem to be on their way",
		}},
		"one rank for which all wait": {func(r int) *wire.RankState {
			if r > 0 {
				return modified(stateOf(recvFrom(0, 5)), func(s *wire.RankState) { s.Links = []wire.RankLink{link(0, 1, uint32(r))} })
			}
			s := stateOf(recvFrom(-1, 5), recvFrom(-1, 6))
			for peer := uint32(1); peer < ranks; peer++ {
				s.Links = append(s.Links, link(peer, peer, 1))
			}
			return s
		}, []string{"deadlock: rank 0 waits for 1, 1 for 0", "deadlock: 65534 more ranks that wait for these"}},
		"one rank for which all wait, with links and communicators that it left out": {func(r int) *wire.RankState {
			if r > 0 {
				return modified(stateOf(recvFrom(0, 5)), func(s *wire.RankState) { s.Links = []wire.RankLink{link(0, 1, 1)} })
			}
			s := stateOf(recvFrom(-1, 5), recvFrom(-1, 6))
			s.MoreLinks, s.MoreComms = true, true
			for peer := uint32(1); peer <= 1024; peer++ {
				s.Links = append(s.Links, link(peer, 1, 1))
			}
			return s
		}, []string{
			"possible deadlock: rank 0 waits for 1, 1 for 0", "possible deadlock: 65534 more ranks that wait for these",
			"not certain, because messages between these ranks seem to be on their way",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			states := make([]*wire.RankState, ranks)
			items := ranks
			for r := range states {
				states[r] = test.state(r)
				items += len(states[r].Calls) + len(states[r].Comms) + len(states[r].Links)
			}
			now := world(states...)
			w := newWaits(now, &now)
			require.Equal(t, test.want, append(lateLines(w), w.deadlocks()...))
			w.again()
			require.Less(t, w.steps, maxSteps*items)
		})
	}
}

func lateLines(w *waits) (lines []string) {
	for _, l := range w.lateCalls() {
		lines = append(lines, l.String())
	}
	return lines
}
