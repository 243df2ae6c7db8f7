package launcher

import (
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/tree"
)

// inspectionOf returns the summary of an inspection of size ranks on one host. It has one round, in
// which the host has answered with groups.
func inspectionOf(size int, groups ...proto.Group) []string {
	r := newRun(&session{}, "id")
	r.hosts, r.ranks, r.size = []host{{Host: hosts.Host{Name: "host"}}}, make([]rank, size), size
	a := &groupAnswers{groups: groups}
	return r.summary(r.group, a, newWaits(r.observe(r.group, a), nil)).lines
}

// waiting returns the answer of a rank that waits in calls, each in a goroutine of its own. started
// is the number of collectives that the rank has started on the world.
func waiting(rank int, started uint32, calls ...wire.RankCall) proto.Group {
	for i := range calls {
		calls[i].Still = true
	}
	return proto.Group{Ranks: []int{rank}, State: &wire.RankState{Calls: calls, Comms: []wire.RankComm{{ID: 0, Seq: started}}}}
}

func recvFrom(peer, tag int) wire.RankCall {
	return wire.RankCall{Name: "Recv", Where: "main.go:18", Comm: "world", Wait: wire.WaitRecv, Peer: peer, World: peer, Tag: tag}
}

func barrier(seq uint32) wire.RankCall {
	return wire.RankCall{Name: "Barrier", Where: "main.go:22", Comm: "world", Wait: wire.WaitCollective, Seq: seq, Peer: 1, World: 1, Tag: -1}
}

func TestWhatRanksDo(t *testing.T) {
	for name, test := range map[string]struct {
		size   int
		groups []proto.Group
		want   []string
	}{
		"missing rank": {4, []proto.Group{waiting(0, 2, barrier(2)), waiting(1, 1, recvFrom(0, 99)), waiting(2, 2, barrier(2)), waiting(3, 2, barrier(2))}, []string{
			"3 ranks (0, 2-3): comm.Barrier(world) at main.go:22",
			"rank 1: comm.Recv(world, from 0, tag 99) at main.go:18",
			"comm.Barrier(world) waits for rank 1",
			"possible deadlock: rank 0 waits for 1, 1 for 0",
			"possible deadlock: 2 more ranks that wait for these",
			"not certain, because each of ranks 0-3 has answered only once",
		}},
		"two circles": {5, []proto.Group{
			waiting(0, 0, recvFrom(1, 1)), waiting(1, 0, recvFrom(0, 1)), waiting(2, 0, recvFrom(3, 1)), waiting(3, 0, recvFrom(4, 1)), waiting(4, 0, recvFrom(2, 1)),
		}, []string{
			"5 ranks (0-4): comm.Recv(world, from 1, 0, 3, 4, …, tag 1) at main.go:18",
			"possible deadlock: rank 0 waits for 1, 1 for 0",
			"possible deadlock: rank 2 waits for 3, 3 for 4, 4 for 2",
			"not certain, because each of ranks 0-4 has answered only once",
		}},
		"a rank that can continue": {3, []proto.Group{
			waiting(0, 0, recvFrom(1, 1)), waiting(1, 0, recvFrom(2, 1)), {Ranks: []int{2}, State: &wire.RankState{At: "main.f at main.go:3 (running)", Busy: true}},
		}, []string{
			"2 ranks (0-1): comm.Recv(world, from 1, 2, tag 1) at main.go:18",
			"rank 2: main.f at main.go:3 (running)",
		}},
		"any source": {3, []proto.Group{
			waiting(0, 0, recvFrom(-1, -1)), waiting(1, 0, recvFrom(0, 1)), waiting(2, 0, recvFrom(0, 1)),
		}, []string{
			"2 ranks (1-2): comm.Recv(world, from 0, tag 1) at main.go:18",
			"rank 0: comm.Recv(world, from any rank, any tag) at main.go:18",
			"possible deadlock: rank 0 waits for 1, 1 for 0",
			"possible deadlock: 1 more rank that waits for these",
			"not certain, because each of ranks 0-2 has answered only once",
		}},
		"any source, and one that may send": {3, []proto.Group{
			waiting(0, 0, recvFrom(-1, -1)), waiting(1, 0, recvFrom(0, 1)), {Ranks: []int{2}, Process: "app runs"},
		}, []string{
			"rank 0: comm.Recv(world, from any rank, any tag) at main.go:18",
			"rank 1: comm.Recv(world, from 0, tag 1) at main.go:18",
			"rank 2: not in comm: app runs",
		}},
		"two goroutines, and one may continue": {2, []proto.Group{
			waiting(0, 0, recvFrom(1, 1), recvFrom(1, 2)),
			// Still is false, so the call may continue.
			{Ranks: []int{1}, State: &wire.RankState{Calls: []wire.RankCall{recvFrom(0, 1)}}},
		}, []string{
			"rank 0: comm.Recv(world, from 1, tag 1) at main.go:18; comm.Recv(world, from 1, tag 2) at main.go:18",
			"rank 1: comm.Recv(world, from 0, tag 1) at main.go:18",
		}},
		"one call behind": {2, []proto.Group{
			waiting(0, 5, barrier(5)),
			// Still is false, so the call may continue.
			{Ranks: []int{1}, State: &wire.RankState{Calls: []wire.RankCall{barrier(4)}, Comms: []wire.RankComm{{Seq: 4}}}},
		}, []string{
			"rank 0: comm.Barrier(world) at main.go:22, its collective 5",
			"rank 1: comm.Barrier(world) at main.go:22, its collective 4",
			"comm.Barrier(world) waits for rank 1",
		}},
		"ended": {2, []proto.Group{waiting(0, 1, recvFrom(1, 1))}, []string{
			"rank 0: comm.Recv(world, from 1, tag 1) at main.go:18",
			"rank 1: has ended",
		}},
		"itself": {1, []proto.Group{waiting(0, 0, recvFrom(0, 1))}, []string{
			"rank 0: comm.Recv(world, from 0, tag 1) at main.go:18",
			"possible deadlock: rank 0 waits for itself",
			"not certain, because rank 0 has answered only once",
		}},
		"ranks of a communicator": {2, []proto.Group{
			waiting(0, 0, wire.RankCall{Name: "Recv", Where: "main.go:18", Comm: "comm 1.2", ID: 1<<32 + 2, Wait: wire.WaitRecv, Peer: 0, World: 1, Tag: 7}),
		}, []string{
			"rank 0: comm.Recv(comm 1.2, from 0 (rank 1 of the world), tag 7) at main.go:18",
			"rank 1: has ended",
		}},
		"connections": {3, []proto.Group{
			waiting(0, 0, wire.RankCall{Name: "Recv", Where: "main.go:18", Comm: "connection", Connection: true, Wait: wire.WaitRecv, Peer: 1, World: -1, Tag: 7}),
			waiting(1, 0, wire.RankCall{Name: "Barrier", Where: "main.go:22", Comm: "comm 0.1 of a connection", Connection: true, Wait: wire.WaitCollective, Peer: 0, World: -1, Tag: -1}),
			waiting(2, 0, wire.RankCall{Name: "Allreduce", Comm: "connection", Connection: true, Wait: wire.WaitCollective, Peer: 0, World: -1, Tag: -1}, recvFrom(0, 1)),
		}, []string{
			"rank 0: comm.Recv(connection, from 1, tag 7) at main.go:18",
			"rank 1: comm.Barrier(comm 0.1 of a connection) at main.go:22",
			"rank 2: comm.Allreduce(connection) under way; comm.Recv(world, from 0, tag 1) at main.go:18",
		}},
		"invalid ranks": {2, []proto.Group{waiting(0, 0, recvFrom(1<<40, 1)), waiting(1, 0, recvFrom(-7, 1))}, []string{
			"rank 0: comm.Recv(world, from 1099511627776, tag 1) at main.go:18",
			"rank 1: comm.Recv(world, from any rank, tag 1) at main.go:18",
		}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.want, inspectionOf(test.size, test.groups...)) })
	}
}

// inspectedRun returns a run in phaseRunning of two ranks on two hosts, n0 and n1. It has no tree of
// agents, so the tests must not let it send messages.
func inspectedRun(t *testing.T) *run {
	t.Helper()
	r := newRun(&session{}, "id")
	r.phase, r.ranks, r.size = phaseRunning, []rank{{host: 0}, {host: 1}}, 2
	r.hosts = []host{{Host: hosts.Host{Name: "n0"}}, {Host: hosts.Host{Name: "n1"}}}
	r.plans = []proto.Plan{{Index: 0, Ranks: []proto.Rank{{Rank: 0}}}, {Index: 1, Ranks: []proto.Rank{{Rank: 1}}}}
	return r
}

// TestNextInspectionWaitsForFiles: an inspection ends, and its stacks are still being written to
// files. Requests wait for the next inspection, which must not begin before the files are written,
// because its files may have the same names.
func TestNextInspectionWaitsForFiles(t *testing.T) {
	r := inspectedRun(t)
	dir := t.TempDir()
	var answers []inspected
	q := inspectRequest{stacks: true, dir: dir, then: func(a inspected) { answers = append(answers, a) }}
	r.inspecting = &inspection{requests: []inspectRequest{q}, files: map[string]*stackFiles{dir: newStackFiles(dir, 2, nil)}}
	r.inspectQueue = []inspectRequest{q}
	r.endRound()
	r.inspect(inspectRequest{then: q.then})
	require.Nil(t, r.inspecting)
	require.Len(t, r.inspectQueue, 2)
	require.Empty(t, answers)
	r.background.Wait()
	r.phase = phaseOver // so that gorun answers the waiting requests at once, without another inspection
	for _, m := range r.mail.take() {
		r.handle(m)
	}
	require.Len(t, answers, 3)
	require.Contains(t, answers[0].lines, "no rank has sent its stacks")
	require.Empty(t, r.inspectQueue)
}

// TestOneInspectionForAllRequestsThatWait: while one inspection is under way, maxQuestions
// processes and the timeout of the job ask what the ranks do. One further inspection must answer
// all of them, so that each process gets its answer within answerTime.
func TestOneInspectionForAllRequestsThatWait(t *testing.T) {
	r := inspectedRun(t)
	r.node = &tree.Node{}    // a node without connections, which sends nothing
	r.ranks, r.size = nil, 0 // without ranks and plans, no host has to answer
	r.plans = nil
	dir := t.TempDir()
	answers := make(map[string][]string)
	ask := func(name string, stacks bool) {
		q := inspectRequest{stacks: stacks, then: func(a inspected) { answers[name] = a.lines }}
		if stacks {
			q.dir = filepath.Join(dir, name)
		}
		r.inspect(q)
	}
	end := func() { // ends the inspection under way, and waits until its files are written
		r.endRound()
		r.background.Wait()
		for _, m := range r.mail.take() {
			r.handle(m)
		}
	}
	ask("first", true)
	for i := range maxQuestions {
		ask("asker "+strconv.Itoa(i), i%2 == 0)
	}
	ask("timeout", true)
	end()
	require.Len(t, answers, 1)
	require.Contains(t, answers, "first")
	end()
	require.Len(t, answers, 1+maxQuestions+1)
	require.Equal(t, []string{"no rank has sent its stacks"}, answers["timeout"])
	require.Equal(t, []string{"no rank has sent its stacks"}, answers["asker 0"])
	require.Empty(t, answers["asker 1"])
	require.Nil(t, r.inspecting)
}

// TestRequestsOfARunThatIsOver: when the run is over, nextInspection must answer all waiting
// requests: those that do not ask for stacks, and those that ask for them in a temporary or a given
// directory.
func TestRequestsOfARunThatIsOver(t *testing.T) {
	r := inspectedRun(t)
	r.phase = phaseOver
	answers := 0
	then := func(inspected) { answers++ }
	r.inspectQueue = []inspectRequest{{then: then}, {stacks: true, then: then}, {then: then}, {stacks: true, dir: filepath.Join("a", "dir"), then: then}}
	r.nextInspection()
	require.Equal(t, 4, answers)
	require.Empty(t, r.inspectQueue)
}

// TestAnswersOfEarlierRounds: in the last round only rank 0 answers: it waits for rank 1. In an
// earlier round rank 1 answered that it waits for rank 0. The summary must show the earlier answer
// of rank 1, and no deadlock. If rank 1 has ended since then, the summary must show that instead.
func TestAnswersOfEarlierRounds(t *testing.T) {
	known := map[int]*wire.RankState{1: waiting(1, 0, recvFrom(0, 1)).State}
	for name, test := range map[string]struct {
		groups []proto.Group
		silent map[int]bool
		want   string
	}{
		"a rank": {
			[]proto.Group{waiting(0, 0, recvFrom(1, 1)), {Ranks: []int{1}, NoAnswer: true, Process: "app is stopped"}}, nil,
			"rank 1: does not answer: app is stopped; before: comm.Recv(world, from 0, tag 1) at main.go:18",
		},
		"a host": {
			[]proto.Group{waiting(0, 0, recvFrom(1, 1))}, map[int]bool{1: true},
			"rank 1: host n1 has not answered; before: comm.Recv(world, from 0, tag 1) at main.go:18",
		},
		"a rank that has ended": {[]proto.Group{waiting(0, 0, recvFrom(1, 1))}, nil, "rank 1: has ended"},
	} {
		t.Run(name, func(t *testing.T) {
			var got inspected
			r := inspectedRun(t)
			r.inspecting = &inspection{requests: []inspectRequest{{then: func(a inspected) { got = a }}}, of: map[int]*groupAnswers{0: {known: known}}, groups: test.groups, silent: test.silent}
			r.endRound()
			require.Equal(t, []string{"rank 0: comm.Recv(world, from 1, tag 1) at main.go:18", test.want}, got.lines)
		})
	}
	r := inspectedRun(t)
	r.inspecting = &inspection{requests: []inspectRequest{{then: func(a inspected) { require.True(t, a.weft) }}}, of: map[int]*groupAnswers{0: {known: known}}, silent: map[int]bool{0: true, 1: true}}
	r.endRound()
}
