package fault_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/fault"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/tcp"
	"github.com/weft-hpc/weft/transport/transporttest"
)

// The inproc provider with legal faults passes the conformance suite of package transporttest.
func TestLegalFaultsOverInproc(t *testing.T) {
	for _, seed := range []uint64{1, 2} {
		conform(t, fault.Legal(seed), func() (transport.Provider, func(int)) {
			f := inproc.NewFabric()
			return f, f.Kill
		})
	}
}

func TestLegalFaultsOverTCP(t *testing.T) {
	conform(t, fault.Legal(3), func() (transport.Provider, func(int)) { return tcp.New(), nil })
}

func conform(t *testing.T, plan fault.Plan, below func() (transport.Provider, func(int))) {
	t.Helper()
	t.Run(fmt.Sprintf("seed=%d", plan.Seed), func(t *testing.T) {
		t.Log(plan)
		transporttest.Run(t, transporttest.OpenWith(func(testing.TB) (transport.Provider, func(int)) {
			p, kill := below()
			return fault.Wrap(p, plan), kill
		}), transporttest.WithRanks(1, 2, 3, 4))
	})
}

type rank struct {
	dom transport.Domain
	cq  transport.CompletionQueue
	ep  transport.Endpoint
}

func open(t *testing.T, n int, plan fault.Plan) []rank {
	t.Helper()
	p := fault.Wrap(inproc.NewFabric(), plan)
	require.Equal(t, "inproc", p.Name())
	ranks := make([]rank, n)
	for i := range ranks {
		r := &ranks[i]
		var err error
		r.dom, err = p.Open(transport.Config{Self: transport.Addr(i), Size: n})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.dom.Close()) })
		r.cq, err = r.dom.OpenCQ()
		require.NoError(t, err)
		av, err := r.dom.OpenAV()
		require.NoError(t, err)
		_, err = av.InsertSym("process", 1, "0", n)
		require.NoError(t, err)
		r.ep, err = r.dom.OpenEndpoint(av, r.cq)
		require.NoError(t, err)
	}
	return ranks
}

// transcript opens three ranks with the faults of the plan. Ranks 1 and 2 each send count numbered
// messages to rank 0. transcript returns what happened, one line of text for each Read of rank 0
// and for each ErrAgain, and the messages that rank 0 received.
func transcript(t *testing.T, count int, plan fault.Plan) (lines []string, msgs [][]byte) {
	t.Helper()
	ranks := open(t, 3, plan)
	c := make([]transport.Completion, 4)
	read := func() {
		n, err := ranks[0].cq.Read(c)
		require.NoError(t, err)
		line := fmt.Sprintf("read %d", n)
		for _, e := range c[:n] {
			line += fmt.Sprintf(" %d:%x", e.Peer, e.Msg)
			msgs = append(msgs, bytes.Clone(e.Msg))
		}
		lines = append(lines, line)
	}
	for i := range count {
		for p := 1; p < len(ranks); p++ {
			op := &transport.Op{Peer: 0, Data: payload(p, i)}
			for {
				_, err := ranks[p].ep.Send(op)
				if !errors.Is(err, transport.ErrAgain) {
					require.NoError(t, err)
					break
				}
				lines = append(lines, fmt.Sprintf("again %d", p))
			}
		}
		read()
	}
	for !ranks[0].cq.Arm() {
		read()
	}
	return lines, msgs
}

func payload(from, i int) []byte {
	b := make([]byte, 16)
	binary.BigEndian.PutUint64(b, uint64(from))
	binary.BigEndian.PutUint64(b[8:], uint64(i))
	return b
}

func TestSameSeedSameFaults(t *testing.T) {
	plan := fault.Plan{Seed: 42, Again: 0.2, Delay: 0.2, ShortRead: 0.3, Drop: 0.1, Duplicate: 0.1, Corrupt: 0.1}
	first, _ := transcript(t, 200, plan)
	second, _ := transcript(t, 200, plan)
	require.Equal(t, first, second)
	plan.Seed++
	other, _ := transcript(t, 200, plan)
	require.NotEqual(t, first, other)
}

func TestDelayKeepsOrderPerPeer(t *testing.T) {
	_, msgs := transcript(t, 500, fault.Plan{Seed: 7, Delay: 0.3, ShortRead: 0.3})
	var next [3]int
	mixed := false
	for _, m := range msgs {
		p := int(binary.BigEndian.Uint64(m))
		require.Equal(t, payload(p, next[p]), m)
		next[p]++
		mixed = mixed || next[1] > next[2]+1 || next[2] > next[1]+1
	}
	require.Equal(t, [3]int{0, 500, 500}, next)
	require.True(t, mixed, "no message was delayed")
}

func TestDrop(t *testing.T) {
	_, msgs := transcript(t, 500, fault.Plan{Seed: 1, Drop: 0.1})
	require.InDelta(t, 900, len(msgs), 40)
	_, msgs = transcript(t, 100, fault.Plan{Seed: 1, Drop: 1, Ranks: []int{2}})
	require.Len(t, msgs, 100, "rank 1 has no faults")
	_, msgs = transcript(t, 100, fault.Plan{Seed: 1, Drop: 1, Peers: []int{1, 2}})
	require.Len(t, msgs, 200, "traffic with rank 0 has no faults")
}

func TestDuplicate(t *testing.T) {
	_, msgs := transcript(t, 500, fault.Plan{Seed: 1, Duplicate: 0.1})
	require.InDelta(t, 1100, len(msgs), 40)
	seen := map[string]int{}
	for _, m := range msgs {
		seen[string(m)]++
		require.LessOrEqual(t, seen[string(m)], 2)
	}
	require.Len(t, seen, 1000)
}

func TestCorrupt(t *testing.T) {
	_, msgs := transcript(t, 500, fault.Plan{Seed: 1, Corrupt: 0.1})
	require.Len(t, msgs, 1000)
	_, want := transcript(t, 500, fault.Plan{})
	wrong := 0
	for i := range msgs {
		flipped := 0
		for j := range msgs[i] {
			flipped += bits.OnesCount8(msgs[i][j] ^ want[i][j])
		}
		require.LessOrEqual(t, flipped, 3)
		if flipped > 0 {
			wrong++
		}
	}
	require.InDelta(t, 100, wrong, 40)
}

func TestKillAt(t *testing.T) {
	ranks := open(t, 2, fault.Plan{KillAt: 3, Ranks: []int{1}})
	op := &transport.Op{Peer: 0, Data: []byte("x")}
	for range 2 {
		_, err := ranks[1].ep.Send(op)
		require.NoError(t, err)
	}
	_, err := ranks[1].ep.Send(op)
	require.ErrorIs(t, err, transport.ErrClosed)
	_, err = ranks[1].cq.Read(make([]transport.Completion, 1))
	require.ErrorIs(t, err, transport.ErrClosed)

	c := make([]transport.Completion, 4)
	n, err := ranks[0].cq.Read(c)
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Equal(t, transport.PeerDown, c[2].Kind)
	for range 3 {
		_, err = ranks[0].ep.Send(&transport.Op{Peer: 0})
		require.NoError(t, err, "rank 0 has no faults")
	}
}

func TestPlanString(t *testing.T) {
	p := fault.Plan{Seed: 42, Drop: 0.5, Ranks: []int{1, 2}}
	require.Equal(t, "fault.Plan{Seed: 0x2a, Ranks: []int{1, 2}, Drop: 0.5}", p.String())
	require.False(t, p.IsLegal())
	require.True(t, fault.Legal(1).IsLegal())
}
