//go:build linux && !portable

package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// retireSilent reads the queue of n, which must return nothing, so often that n stops polling the
// rings from peers that send nothing.
func (n *node) retireSilent(t testing.TB) {
	t.Helper()
	for range 2*retirePolls + 2 {
		require.Empty(t, n.read(t))
	}
}

// silentJob opens n ranks. Each has sent one message to rank 0, and then nothing for so long that
// rank 0 has stopped polling the ring from that rank.
func silentJob(t testing.TB, n int) []*node {
	t.Helper()
	all := nodes(t, n, New())
	for i := 1; i < n; i++ {
		all[i].send(t, 0, nil)
		all[0].await(t, transport.RecvDone)
	}
	all[0].retireSilent(t)
	return all
}

// TestSilentRingsLeave checks that rank 0 stops polling the rings of many peers that have sent one
// message each. Then each peer sends again, while rank 0 polls or sleeps, and rank 0 must receive
// the messages.
func TestSilentRingsLeave(t *testing.T) {
	const n = 70 // more ranks than a word has bits, because bitmaps mark the rings that are polled
	all := silentJob(t, n)
	require.Equal(t, 1, len(all[0].active), "rings that a Read polls")
	for i := 1; i < n; i++ {
		sleeps := i%2 == 0
		var woken <-chan error
		if sleeps {
			woken = asleepRank(t, all[0])
		}
		for k := range byte(3) {
			all[i].send(t, 0, []byte{k})
		}
		if sleeps {
			wakes(t, woken)
		}
		got := all[0].read(t)
		require.Len(t, got, 3)
		for k, c := range got {
			require.EqualValues(t, i, c.Peer)
			require.Equal(t, []byte{byte(k)}, c.Msg)
		}
	}
	all[0].retireSilent(t)
	require.Len(t, all[0].active, 1)
}

// TestSilentRingShowsRoom has a writer lack room for a message, because the reader has not
// published the lines of the ring that it has freed. The reader must publish them when it stops
// polling the ring.
func TestSilentRingShowsRoom(t *testing.T) {
	all := nodes(t, 17, New()) // with 17 ranks a ring has 1024 lines, and a message takes up to 512
	w, r := all[1], all[0]
	for i := range 600 {
		w.send(t, 0, nil)
		if i%30 == 0 {
			r.read(t)
		}
	}
	all[2].send(t, 0, nil)
	for len(r.read(t)) > 0 {
	}
	in := &r.peers[1].in
	in.published, in.idle = in.start, -10*retirePolls // as if the reader had published nothing
	in.freed.Store(0)
	w.peers[0].out.limit = w.start + 1024
	big := &transport.Op{Peer: 0, Data: make([]byte, w.maxMsg)}
	_, err := w.ep.Send(big)
	require.ErrorIs(t, err, transport.ErrAgain)
	all[2].send(t, 0, nil)
	r.await(t, transport.RecvDone)
	for r.isListed(r.peers[1]) {
		// After this message the reader goes on to poll the ring from rank 2, and stops to poll
		// the ring from rank 1.
		all[2].send(t, 0, nil)
		r.await(t, transport.RecvDone)
	}
	_, err = w.ep.Send(big)
	require.NoError(t, err)
	require.Len(t, r.await(t, transport.RecvDone).Msg, w.maxMsg)
}

// TestSilentPeerEnds checks that a rank reports the end of peers whose rings it does not poll. One
// peer calls Shutdown. One dies. One dies after it has stored a message in the ring, but before it
// has set the bit in shared memory that makes this rank poll the ring; the message must arrive. And
// from one this rank disconnects.
func TestSilentPeerEnds(t *testing.T) {
	all := silentJob(t, 6)
	n := all[0]
	n.retireSilent(t)
	var off []*node
	for _, p := range all[1:] {
		if !n.isListed(n.peers[p.rank]) {
			off = append(off, p)
		}
	}
	require.Len(t, off, 4)

	require.NoError(t, off[0].ep.Shutdown(t.Context()))
	require.Equal(t, off[0].rank, n.await(t, transport.PeerLeft).Peer)

	woken := asleepRank(t, n)
	off[1].liveness.end()
	wakes(t, woken)
	require.Equal(t, off[1].rank, n.await(t, transport.PeerDown).Peer)

	r := &off[2].peers[0].out
	i, err := r.reserve(1)
	require.NoError(t, err)
	r.publish(i, 1, 0, kindMessage)
	off[2].liveness.end()
	var kinds []transport.CompletionKind
	require.Eventually(t, func() bool {
		for _, c := range n.read(t) {
			require.Equal(t, off[2].rank, c.Peer)
			kinds = append(kinds, c.Kind)
		}
		return len(kinds) == 2
	}, deadline, time.Microsecond)
	require.Equal(t, []transport.CompletionKind{transport.RecvDone, transport.PeerDown}, kinds)

	require.NoError(t, n.ep.Disconnect(off[3].rank))
	require.Equal(t, off[3].rank, n.await(t, transport.PeerDown).Peer)
	off[3].send(t, 0, nil) // succeeds, because rank off[3] has not yet read that rank 0 has disconnected
	n.retireSilent(t)
	require.Equal(t, transport.Addr(0), off[3].await(t, transport.PeerDown).Peer)
	require.Len(t, n.active, 1)
}

// TestSilentRingsRace has rank 0 stop polling rings all the time, while the ranks at the other ends
// send. Each of them waits for the answer to its message before it sends the next one, so the test
// fails if rank 0 misses a message.
func TestSilentRingsRace(t *testing.T) {
	const senders = 3
	length := time.Second
	if testing.Short() {
		length /= 10
	}
	all := nodes(t, senders+1, New())
	errs := make(chan error, senders)
	for i := 1; i <= senders; i++ {
		// The goroutine ends after the time length, or when an answer is late. The loop below
		// receives from errs.
		go func() { errs <- all[i].pingRoot(length) }()
	}
	n, rng := all[0], rand.New(rand.NewPCG(1, 2))
	op := &transport.Op{Data: make([]byte, 8)}
	retired := 0
	for left := senders; left > 0; {
		before := len(n.active)
		if n.active = slices.DeleteFunc(n.active, n.tryUnlist); len(n.active) < before {
			retired++
		}
		got := n.read(t)
		for _, c := range got {
			op.Peer = c.Peer
			copy(op.Data, c.Msg)
			_, err := n.ep.Send(op)
			require.NoError(t, err)
		}
		select {
		case err := <-errs:
			require.NoError(t, err)
			left--
		default:
		}
		switch {
		case len(got) > 0:
		case rng.IntN(8) > 0:
			runtime.Gosched()
		case n.cq.Arm():
			// The timeout is longer than scanInterval, so that the test notices a message that
			// has not woken rank 0.
			require.NoError(t, n.cq.Wait(time.Second))
		}
	}
	t.Logf("rings left the list before %d polls", retired)
	require.NotZero(t, retired)
}

// pingRoot sends numbers to rank 0 for the time length. After each it waits until rank 0 has sent
// the number back.
func (n *node) pingRoot(length time.Duration) error {
	op, rng := &transport.Op{Peer: 0, Data: make([]byte, 8)}, rand.New(rand.NewPCG(uint64(n.rank), 3))
	for end, k := time.Now().Add(length), uint64(0); time.Now().Before(end); k++ {
		binary.NativeEndian.PutUint64(op.Data, k)
		if _, err := n.ep.Send(op); err != nil {
			return err
		}
		for sent, back := time.Now(), false; !back; {
			m, err := n.cq.Read(n.comp)
			switch {
			case err != nil:
				return err
			case m > 0:
				if back = binary.NativeEndian.Uint64(n.comp[0].Msg) == k; !back {
					return errors.New("rank 0 returned another number")
				}
			case rng.IntN(2) > 0:
				runtime.Gosched()
			case time.Since(sent) > deadline/4:
				return fmt.Errorf("no answer to message %d", k)
			}
		}
	}
	return nil
}

// BenchmarkPollSilent measures a Read that finds nothing, at a rank to which a number of peers have
// sent one message each, and then nothing for long. It also reports the number of rings that a Read
// polls.
func BenchmarkPollSilent(b *testing.B) {
	for _, silent := range []int{0, 255, 1023} {
		b.Run(fmt.Sprint(silent), func(b *testing.B) {
			n := silentJob(b, silent+2)[0]
			for b.Loop() {
				if _, err := n.cq.Read(n.comp); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(n.active)), "rings")
		})
	}
}
