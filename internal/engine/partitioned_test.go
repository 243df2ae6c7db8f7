package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// TestPartitionedMessages sends partitioned messages in both directions between two ranks. Two
// goroutines of each rank write the partitions and make them ready, in random order. The receiver
// checks each partition as soon as Arrived reports it.
func TestPartitionedMessages(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, _ []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			for k, x := range []struct{ n, bytes int }{{1, 1}, {16, 4096}, {7, 100_000}, {200, 33}} {
				ps, pr := NewPartitions(x.n, x.bytes), NewPartitions(x.n, x.bytes)
				out, in := make([]byte, x.n*x.bytes), make([]byte, x.n*x.bytes)
				for round := range 3 {
					data := func(rank, i int) []byte { return pattern(x.bytes, 1000*rank+100*round+i) }
					clear(out)
					var s, r Request
					start := []func(){
						func() { r = c.IrecvPartitioned(in, Env{Peer: 1 - rank, Tag: k}, pr) },
						func() { s = c.IsendPartitioned(out, Env{Peer: 1 - rank, Tag: k}, ps) },
					}
					start[round&1]()
					start[1-round&1]()
					var writers sync.WaitGroup
					order := rand.Perm(x.n)
					for w := range 2 {
						writers.Go(func() {
							for _, i := range order {
								if i&1 == w {
									copy(out[i*x.bytes:], data(rank, i))
									s.Ready(i)
								}
							}
						})
					}
					seen := make([]bool, x.n)
					for left := x.n; left > 0; {
						missing := r.Missing()
						before := left
						for i := range seen {
							if seen[i] {
								continue
							}
							if ok, err := r.Arrived(i, i+1); err != nil {
								return err
							} else if ok {
								seen[i] = true
								left--
								if !bytes.Equal(in[i*x.bytes:(i+1)*x.bytes], data(1-rank, i)) {
									return fmt.Errorf("partition %d has arrived, but has other data", i)
								}
							}
						}
						if left == before {
							if err := r.AwaitPartition(background, missing); err != nil {
								return err
							}
						}
					}
					writers.Wait()
					st, err := r.Wait(background)
					if err == nil && st.Bytes != len(in) {
						err = fmt.Errorf("status %+v", st)
					}
					_, serr := s.Wait(background)
					if err := errors.Join(err, serr); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

// partitionedPair is a receive of a partitioned message by rank 0, whose engine a rawPeer sends the
// messages of rank 1. pull is the MsgPull that rank 0 has sent.
type partitionedPair struct {
	c    *Context
	s    *rawPeer
	h    *hooks
	r    Request
	in   []byte
	out  []byte
	pull wire.Message
	// Number of the message that ready names.
	round int32
}

// openPartitionedPair starts the receive of a message of n partitions with the given length.
func openPartitionedPair(t *testing.T, n, size int) *partitionedPair {
	x := &partitionedPair{h: &hooks{}, round: 1, in: make([]byte, n*size), out: pattern(n*size, 1)}
	x.c, x.s = openHooked(t, x.h, noAsync)
	x.r = x.c.IrecvPartitioned(x.in, Env{Peer: 1, Tag: 3}, NewPartitions(n, size))
	mr, err := x.s.dom.RegisterMemory(x.out, transport.RemoteRead)
	require.NoError(t, err)
	x.s.sendMessage(t, wire.Message{Kind: wire.MsgRTS, Tag: 3, Length: len(x.out), Handle: 77, Key: mr.Key(), Addr: mr.Base()})
	x.pull = x.next(t)
	require.Equal(t, wire.MsgPull, x.pull.Kind)
	require.EqualValues(t, 77, x.pull.Handle)
	return x
}

// next polls both ranks until rank 1 gets a message, and returns its header.
func (x *partitionedPair) next(t *testing.T) (m wire.Message) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); m.Kind == 0; {
		require.True(t, time.Now().Before(deadline), "no message")
		x.c.e.Poll()
		x.s.receiveOne(t, func(c *transport.Completion) {
			if c.Kind == transport.RecvDone {
				_, err := m.Parse(c.Msg)
				require.NoError(t, err)
			}
		})
	}
	return m
}

// ready sends rank 0 the message that n partitions from the given one on are ready.
func (x *partitionedPair) ready(t *testing.T, from, n int) {
	m := wire.Message{Kind: wire.MsgReady, Tag: x.round, Handle: x.pull.Key, Addr: uint64(from), Key: uint64(n)}
	x.s.sendMessage(t, m)
	x.c.e.Poll()
}

// TestPartitionsShareReads: while the receiver reads partition 5, eight others become ready. The
// receiver has one read in flight, and reads adjacent partitions at once.
func TestPartitionsShareReads(t *testing.T) {
	x := openPartitionedPair(t, 12, 100)
	x.h.hold = true
	x.ready(t, 5, 1)
	for _, i := range []int{2, 9, 3, 6, 7, 1} {
		x.ready(t, i, 1)
	}
	x.ready(t, 10, 2)
	require.Equal(t, []int{100}, x.h.reads)
	arrived := func() (all []int) {
		for i := range 12 {
			if ok, err := x.r.Arrived(i, i+1); ok {
				require.Equal(t, x.out[100*i:100*(i+1)], x.in[100*i:100*(i+1)])
				all = append(all, i)
			} else {
				require.NoError(t, err)
			}
		}
		return all
	}
	require.Empty(t, arrived(), "the first read has not ended")
	x.h.hold = false
	for range 10 {
		x.c.e.Poll()
	}
	require.Equal(t, []int{100, 300, 300, 200}, x.h.reads, "partitions 5; 1 to 3; 9 to 11; 6 and 7")
	require.Equal(t, []int{1, 2, 3, 5, 6, 7, 9, 10, 11}, arrived())
	require.Equal(t, 3, x.r.Missing())
	x.ready(t, 0, 1)
	x.ready(t, 8, 1)
	x.ready(t, 4, 1)
	st, err := x.r.Wait(background)
	require.NoError(t, err)
	require.Equal(t, Status{Source: 1, Tag: 3, Bytes: 1200}, st)
	require.Equal(t, x.out, x.in)
	require.Equal(t, wire.MsgFin, x.next(t).Kind)
}

// TestPartitionedProtocol sends an engine messages about partitions that no correct peer sends. The
// engine marks the peer as failed, and the requests with it end.
func TestPartitionedProtocol(t *testing.T) {
	ready := func(from, n uint64) func(*partitionedPair) wire.Message {
		return func(x *partitionedPair) wire.Message {
			return wire.Message{Kind: wire.MsgReady, Tag: 1, Handle: x.pull.Key, Addr: from, Key: n}
		}
	}
	for name, bad := range map[string]func(*partitionedPair) wire.Message{
		"behind the end":     ready(4, 1),
		"far behind the end": ready(1<<63, 1),
		"too many":           ready(3, 2),
		"far too many":       ready(3, 1<<63),
		"ready before":       ready(0, 2),
		"of the next message": func(x *partitionedPair) wire.Message {
			return wire.Message{Kind: wire.MsgReady, Tag: 2, Handle: x.pull.Key, Key: 1}
		},
		"pull of a receive": func(x *partitionedPair) wire.Message {
			return wire.Message{Kind: wire.MsgPull, Handle: x.r.r.handle(), Key: 1}
		},
		"ready of a slot -1": func(*partitionedPair) wire.Message { return wire.Message{Kind: wire.MsgReady, Handle: 1 << 63, Key: 1} },
		"data for the reader": func(x *partitionedPair) wire.Message {
			return wire.Message{Kind: wire.MsgData, Handle: x.r.r.handle(), Length: 40}
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := openPartitionedPair(t, 4, 10)
			x.ready(t, 1, 1)
			m := bad(x)
			x.s.sendMessage(t, m, make([]byte, m.Length)...)
			_, err := x.r.Wait(background)
			require.ErrorIs(t, err, transport.ErrProtocol)
		})
	}
	for name, twice := range map[string][2]wire.Message{
		"pull twice":      {{Kind: wire.MsgPull, Key: 1}, {Kind: wire.MsgPull, Key: 1}},
		"pull without id": {{Kind: wire.MsgPull}, {Kind: wire.MsgCredit}},
		"CTS and pull":    {{Kind: wire.MsgCTS, Length: 40, Addr: 1}, {Kind: wire.MsgPull, Key: 1}},
		"CTS twice":       {{Kind: wire.MsgCTS, Length: 40, Addr: 1}, {Kind: wire.MsgCTS, Length: 40, Addr: 1}},
		"CTS without id":  {{Kind: wire.MsgCTS, Length: 40}, {Kind: wire.MsgCredit}},
		"CTS of no bytes": {{Kind: wire.MsgCTS, Addr: 1}, {Kind: wire.MsgCredit}},
		"early FIN":       {{Kind: wire.MsgPull, Key: 1}, {Kind: wire.MsgFin}},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := openHooked(t, &hooks{}, noAsync)
			r := c.IsendPartitioned(make([]byte, 40), Env{Peer: 1}, NewPartitions(4, 10))
			for _, m := range twice {
				m.Handle = r.r.handle()
				s.sendMessage(t, m)
			}
			_, err := r.Wait(background)
			require.ErrorIs(t, err, transport.ErrProtocol)
		})
	}
	t.Run("pull of an ordinary send", func(t *testing.T) {
		c, s := openHooked(t, &hooks{}, noAsync)
		r := c.Isend(make([]byte, 1<<20), Env{Peer: 1})
		s.sendMessage(t, wire.Message{Kind: wire.MsgPull, Handle: r.r.handle()})
		_, err := r.Wait(background)
		require.ErrorIs(t, err, transport.ErrProtocol)
	})
}

// TestPartitionedEnds: a partitioned message ends early, because the communicator is revoked, the
// peer dies, or the sender calls Finalize. The receive ends with that error also if a read is in
// flight, and then not before the end of the read.
func TestPartitionedEnds(t *testing.T) {
	for name, end := range map[string]struct {
		want error
		do   func(t *testing.T, x *partitionedPair)
	}{
		"revoked":  {ErrRevoked, func(_ *testing.T, x *partitionedPair) { x.c.Revoke(errors.New("test")) }},
		"failed":   {ErrProcFailed, func(_ *testing.T, x *partitionedPair) { x.c.e.MarkFailed("test", 1) }},
		"finalize": {ErrFinalized, func(t *testing.T, x *partitionedPair) { x.ready(t, 0, 0) }},
	} {
		for _, reading := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/reading=%v", name, reading), func(t *testing.T) {
				x := openPartitionedPair(t, 4, 10)
				x.ready(t, 2, 1)
				for range 10 {
					x.c.e.Poll()
				}
				if reading {
					x.h.hold = true
					x.ready(t, 1, 1)
				}
				end.do(t, x)
				require.Equal(t, !reading, x.r.Done())
				for i := range 4 {
					ok, err := x.r.Arrived(i, i+1)
					require.Equal(t, i == 2, ok, "partition %d", i)
					if i != 2 && !reading {
						require.ErrorIs(t, err, end.want)
					}
				}
				x.h.hold = false
				_, err := x.r.Wait(background)
				require.ErrorIs(t, err, end.want)
			})
		}
	}
}

// TestPartitionedLeave: the sender calls Leave, which Finalize does, although a partition is not
// ready. The receive ends with ErrFinalized, whether it has matched before or not, and whether it
// reads the data by RMA or not.
func TestPartitionedLeave(t *testing.T) {
	for i := range 4 {
		late, second := i&1 != 0, i&2 != 0
		everyFlavour(t, 2, func(t *testing.T, _ []*Engine, cs []*Context) {
			var r, s Request
			ps, pr := NewPartitions(4, 10), NewPartitions(4, 10)
			recv := func() { r = cs[0].IrecvPartitioned(make([]byte, 40), Env{Peer: 1}, pr) }
			send := func() { s = cs[1].IsendPartitioned(pattern(40, 1), Env{Peer: 0}, ps) }
			ctx, cancel := context.WithTimeout(background, testTimeout)
			defer cancel()
			both := func() (sendErr, recvErr error) {
				sent := make(chan error)
				go func() { // ends when the send has ended; both waits for it
					_, err := s.Wait(ctx)
					sent <- err
				}()
				_, recvErr = r.Wait(ctx)
				return <-sent, recvErr
			}
			polls := func() {
				for range 1000 {
					cs[0].e.Poll()
					cs[1].e.Poll()
				}
			}
			if second { // the sender knows the receiver's Partitions
				recv()
				send()
				for i := range 4 {
					s.Ready(i)
				}
				sendErr, recvErr := both()
				require.NoError(t, errors.Join(sendErr, recvErr))
			}
			if !late {
				recv()
			}
			send()
			s.Ready(1)
			if !late { // until rank 1 has the answer of rank 0
				polls()
			}
			require.NoError(t, cs[1].Leave(background))
			if late {
				polls()
				recv()
			}
			polls()
			// Another goroutine of the program may still make partitions ready.
			for _, i := range []int{0, 2, 3} {
				s.Ready(i)
			}
			sendErr, recvErr := both()
			require.ErrorIs(t, sendErr, ErrFinalized)
			require.ErrorIs(t, recvErr, ErrFinalized)
		})
	}
}

// TestPulls: a message is worth to be partitioned if an ordinary one would be a rendezvous, also
// with another eager limit than that of the transport. A message to this rank itself never is.
func TestPulls(t *testing.T) {
	for limit, eager := range map[string]int{"0": 8 << 10, "64": 64, "60k": 60 << 10} {
		c, _ := openHooked(t, &hooks{}, map[string]string{"engine.eager_limit": limit})
		require.False(t, c.Pulls(1, 1, eager), limit)
		require.True(t, c.Pulls(1, 1, eager+1), limit)
		require.False(t, c.Pulls(1, 3, eager), "each partition is eager, and there are few")
		require.True(t, c.Pulls(1, pullMin/16, 16))
		require.False(t, c.Pulls(0, 16, 1<<20))
	}
}

// TestPartitionsOfTheNextMessage: after the first message, the sender knows the receiver's Partitions. It
// reports partitions of the second message before the receiver has the RTS, and before the receive is
// posted. There is no second MsgPull.
func TestPartitionsOfTheNextMessage(t *testing.T) {
	for _, posted := range []bool{false, true} {
		x := openPartitionedPair(t, 4, 10)
		p := x.r.r.parts
		x.ready(t, 0, 4)
		_, err := x.r.Wait(background)
		require.NoError(t, err)
		require.Equal(t, wire.MsgFin, x.next(t).Kind)

		copy(x.out, pattern(len(x.out), 2))
		x.ready(t, 3, 1) // late, and ignored
		x.round = 2
		recv := func() { x.r = x.c.IrecvPartitioned(x.in, Env{Peer: 1, Tag: 3}, p) }
		if posted {
			recv()
		}
		x.ready(t, 1, 2)
		mr, err := x.s.dom.RegisterMemory(x.out, transport.RemoteRead)
		require.NoError(t, err)
		x.s.sendMessage(t, wire.Message{Kind: wire.MsgRTS, Tag: 3, Length: len(x.out), Handle: 78, Key: mr.Key(), Addr: mr.Base()})
		if !posted {
			recv()
		}
		ok, err := x.r.Arrived(0, 1)
		require.NoError(t, err)
		require.False(t, ok)
		for !ok {
			ok, err = x.r.Arrived(1, 3)
			require.NoError(t, err)
		}
		x.ready(t, 0, 1)
		x.ready(t, 3, 1)
		_, err = x.r.Wait(background)
		require.NoError(t, err)
		require.Equal(t, x.out, x.in)
		fin := x.next(t)
		require.Equal(t, wire.MsgFin, fin.Kind)
		require.EqualValues(t, 78, fin.Handle)
	}
}

// TestPartitionsAfterAnError: the first message fails, because its type differs from that of the receive.
// What the sender has reported about its partitions is not for the second message, which succeeds.
func TestPartitionsAfterAnError(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, _ []*Engine, cs []*Context) {
		ps, pr := NewPartitions(4, 100), NewPartitions(4, 100)
		in := make([]byte, 400)
		for round := range 4 {
			sig := uint16(7)
			if round == 1 {
				sig = 8
			}
			s := cs[0].IsendPartitioned(pattern(400, round), Env{Peer: 1, Sig: 7}, ps)
			s.Ready(2)
			r := cs[1].IrecvPartitioned(in, Env{Peer: 0, Sig: sig}, pr)
			for _, i := range []int{3, 0, 1} {
				cs[1].e.Poll()
				s.Ready(i)
			}
			sent := make(chan error)
			go func() { // ends when the send has ended; the test waits for it
				_, err := s.Wait(background)
				sent <- err
			}()
			_, err := r.Wait(background)
			if round == 1 {
				require.ErrorIs(t, err, ErrMismatch)
				require.ErrorIs(t, <-sent, ErrMismatch)
				continue
			}
			require.NoError(t, errors.Join(err, <-sent))
			require.NoError(t, check(in, pattern(400, round)))
		}
		for _, c := range cs {
			n := 0
			for range c.e.partitions {
				n++
			}
			require.LessOrEqual(t, n, 1)
			c.e.ForgetPartitions(pr)
			require.Empty(t, c.e.partitions)
		}
	})
}
