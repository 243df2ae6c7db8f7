package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/fault"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/tcp"
)

// exchangeAtRandom runs a test on all ranks: each sends messages of random sizes, modes and tags to
// every rank, and receives those of the others in another order. Everything that is random follows
// from seed. A hang fails the test. Wrong data or another error on a rank fails the test too,
// unless lossy is set. If lossy is set, the rank kills its engine instead, as a crash would.
func exchangeAtRandom(t *testing.T, cs []*Context, seed uint64, lossy bool) {
	const messages, tags = 60, 4
	n := len(cs)
	size := func(from, to, i int) int {
		rng := rand.New(rand.NewPCG(seed, uint64(from<<40|to<<20|i)))
		return []int{rng.IntN(40), rng.IntN(3000), rng.IntN(60000)}[rng.IntN(3)]
	}
	ranks(t, cs, func(c *Context, rank int) error {
		err := func() error {
			rng := rand.New(rand.NewPCG(seed, uint64(rank)))
			var sends []Request
			next := make([][tags]int, n)
			left := messages * n
			sent := make([]int, n)
			for left > 0 || len(sends) > 0 {
				if to := rng.IntN(n); sent[to] < messages {
					i := sent[to]
					sent[to]++
					env := Env{Peer: to, Tag: i % tags}
					if i%5 == 0 {
						env.Mode = Synchronous
					}
					sends = append(sends, c.Isend(pattern(size(rank, to, i), i), env))
					continue
				}
				if left > 0 {
					env := Env{Peer: AnySource, Tag: AnyTag}
					m, st, err := c.Mprobe(background, env)
					if err != nil {
						return err
					}
					if st.Tag >= tags || st.Bytes > 60000 { // the fault plan may have flipped bits of the header
						return fmt.Errorf("message of %d bytes with tag %d", st.Bytes, st.Tag)
					}
					buf := make([]byte, st.Bytes)
					if _, err := m.Recv(background, buf); err != nil {
						return err
					}
					i := next[st.Source][st.Tag]*tags + st.Tag
					if i >= messages {
						return fmt.Errorf("message %d of %d", i, messages)
					}
					next[st.Source][st.Tag]++
					left--
					if len(buf) != size(st.Source, rank, i) {
						return fmt.Errorf("message %d of %d has %d bytes", i, st.Source, len(buf))
					}
					if err := check(buf, pattern(len(buf), i)); err != nil {
						return fmt.Errorf("message %d of %d: %w", i, st.Source, err)
					}
					continue
				}
				if _, err := sends[0].Wait(background); err != nil {
					return err
				}
				sends = sends[1:]
			}
			return nil
		}()
		if err != nil && lossy {
			t.Logf("rank %d: %v", rank, err)
			c.e.Kill()
			return nil
		}
		return err
	})
}

func TestLegalFaultsAreTolerated(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5} {
		for seed := range uint64(4) {
			plan := fault.Legal(seed)
			t.Run(fmt.Sprintf("inproc/%d/%v", n, plan), func(t *testing.T) {
				everyFlavour(t, n, func(t *testing.T, _ []*Engine, cs []*Context) { exchangeAtRandom(t, cs, seed, false) })
				p := fault.Wrap(inproc.NewFabric(), plan)
				exchangeAtRandom(t, world(openJob(t, n, p, nil)), seed, false)
				p = fault.Wrap(inproc.NewFabric(inproc.WithoutRMA(), inproc.WithMaxMsgSize(2000)), plan)
				exchangeAtRandom(t, world(openJob(t, n, p, nil)), seed, false)
			})
		}
	}
	plan := fault.Legal(99)
	exchangeAtRandom(t, world(openJob(t, 3, fault.Wrap(tcp.New(), plan), nil)), 99, false)
}

// TestIllegalFaultsAreErrors: the fabric repeats messages, flips bits of headers, or kills a rank.
// Each rank then gets an error or correct messages, and none hangs. Wrong data counts as an error.
func TestIllegalFaultsAreErrors(t *testing.T) {
	for name, plan := range map[string]fault.Plan{
		"duplicate": {Duplicate: 0.02},
		"corrupt":   {Corrupt: 0.02},
		"kill":      {KillAt: 40, Ranks: []int{1}},
	} {
		for seed := range uint64(5) {
			plan.Seed = seed
			t.Run(fmt.Sprintf("%s/%v", name, plan), func(t *testing.T) {
				exchangeAtRandom(t, world(openJob(t, 3, fault.Wrap(inproc.NewFabric(), plan), nil)), seed, true)
			})
		}
	}
}

func TestALostMessageIsFoundAtTheNext(t *testing.T) {
	plan := fault.Plan{Seed: 1, Drop: 0.05, Ranks: []int{0}}
	cs := world(openJob(t, 2, fault.Wrap(inproc.NewFabric(), plan), nil))
	go func() { // ends when Send fails, because rank 1 has marked rank 0 as failed or the engine closes
		for {
			if err := cs[0].Send(background, []byte{1}, Env{Peer: 1}); err != nil {
				return
			}
		}
	}()
	for {
		_, err := cs[1].Recv(background, make([]byte, 1), Env{Peer: 0})
		if err != nil {
			require.ErrorIs(t, err, ErrProcFailed)
			require.ErrorIs(t, err, transport.ErrProtocol)
			require.True(t, errors.Is(err, errSequence), err)
			break
		}
	}
	cs[1].e.Kill()
}
