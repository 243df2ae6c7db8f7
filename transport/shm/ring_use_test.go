//go:build linux && !portable

package shm

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// taken returns the memory that the ranks' file takes, in bytes.
func (n *node) taken(t testing.TB) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(n.file.Fd()), &st))
	return st.Blocks * 512
}

// allToAll sends a message from every node to every other node, and reads them all.
func allToAll(t testing.TB, all []*node, data []byte) {
	t.Helper()
	for i, n := range all {
		for k := 1; k < len(all); k++ {
			if _, err := n.ep.Send(&transport.Op{Peer: transport.Addr((i + k) % len(all)), Data: data}); err != nil {
				require.NoError(t, err)
			}
		}
	}
	for _, n := range all {
		got := 0
		for end := time.Now().Add(deadline); got < len(all)-1 && time.Now().Before(end); {
			k, err := n.cq.Read(n.comp)
			require.NoError(t, err)
			for _, c := range n.comp[:k] {
				if c.Kind != transport.RecvDone || len(c.Msg) != len(data) {
					require.Fail(t, "another message", "kind %d, %d bytes", c.Kind, len(c.Msg))
				}
				got++
			}
		}
		require.Equal(t, len(all)-1, got)
	}
}

// TestRingsTakeWhatIsUsed checks the memory of the rings after all-to-alls of small
// messages among many ranks: one page for each pair, and at most busyRings rings per rank that
// are used in full because they are busy.
func TestRingsTakeWhatIsUsed(t *testing.T) {
	page := int64(max(pageSize, os.Getpagesize()))
	for _, c := range []struct {
		name            string
		n, size, rounds int
		busy            bool
	}{
		{"one message", 64, 8, 1, false},
		{"more than a page of lines", 64, 8, 100, false},
		{"1 KiB", 64, 1 << 10, 3 * (busyLaps - 2), false},
		{"busy", 24, 1 << 10, 20 * busyLaps, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := c.n
			all := nodes(t, n, New())
			before := all[0].taken(t)
			for range c.rounds {
				allToAll(t, all, make([]byte, c.size))
			}
			took := all[0].taken(t) - before
			t.Logf("%d rounds of %d bytes: %.2f KiB per pair, a whole ring is %d KiB", c.rounds, c.size, float64(took)/1024/float64(n*(n-1)), all[0].seg.ringSize()/1024)
			most := int64(n*(n-1)) * page
			if c.busy {
				most += int64(n*busyRings) * all[0].seg.ringSize()
			}
			require.LessOrEqual(t, took, most+most/8) // one eighth more for the ranks' cards
			for _, a := range all {
				whole := 0
				for _, p := range a.locals {
					if p != nil && p.out.lines != nil && p.out.end == p.out.mask+1 {
						whole++
					}
				}
				if c.busy {
					require.Equal(t, busyRings, whole)
				} else {
					require.Zero(t, whole)
				}
			}
		})
	}
}

// TestRingGrows: the reader reads some messages, and then the writer writes while there is
// room. It must be able to fill the whole ring: at once, unless it has just returned to
// the beginning; then after some rounds.
func TestRingGrows(t *testing.T) {
	const whole = 512
	for _, before := range []int{0, 1, 30, 40, firstLines, 100} {
		o, r := newRingOf(whole, firstLines, 0, 0)
		sent, got := uint64(0), uint64(0)
		send := func() bool {
			if !o.put(t, binary.LittleEndian.AppendUint64(nil, sent), kindMessage) {
				return false
			}
			sent++
			return true
		}
		take := func() {
			for {
				b, kind, err := r.next()
				require.NoError(t, err)
				if kind == 0 {
					break
				}
				if kind == kindSkip {
					require.NoError(t, r.skip(b))
					continue
				}
				require.Equal(t, got, binary.LittleEndian.Uint64(b))
				got++
			}
			require.Equal(t, sent, got)
			r.free = r.pos
			r.publishFree()
		}
		for range before {
			require.True(t, send())
			take()
		}
		require.EqualValues(t, firstLines, o.end)
		rounds := 0
		for o.end < whole {
			for send() {
			}
			if before < firstLines/2 {
				require.EqualValues(t, whole, sent-got, "messages of a line")
			}
			require.GreaterOrEqual(t, sent-got, uint64(firstLines/2))
			require.Less(t, rounds, 8)
			rounds++
			take()
		}
		for range 2000 {
			require.True(t, send())
			take()
		}
		require.EqualValues(t, whole, o.end)
	}
}

// TestRingInOrder: two ranks send to each other at the same time, with pauses, so
// that the rings' ends move while both sides use the rings.
func TestRingInOrder(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range uint64(6) {
		all := nodes(t, []int{2, 17, 130}[round%3], provider{start: round / 3 * (1<<32 - 500)})
		for _, n := range all[:2] {
			n.wholeLeft = int(round % 2)
		}
		const each = 8000
		done := make(chan error, 2)
		for i := range 2 {
			n, rng := all[i], rand.New(rand.NewPCG(seed, round*2+uint64(i)))
			go func() { done <- n.converse(transport.Addr(1-i), each, rng) }() // ends when it has all messages, or with an error; received below
		}
		for range 2 {
			require.NoError(t, <-done)
		}
	}
}

// converse sends messages of random lengths to a peer and checks the messages from the peer.
func (n *node) converse(to transport.Addr, each uint64, rng *rand.Rand) error {
	buf := make([]byte, n.maxMsg)
	size := func(seq uint64) int { return 8 + int(seq*0x9e3779b97f4a7c15>>40)%(1<<(seq/500%14)) }
	sent, got := uint64(0), uint64(0)
	for end := time.Now().Add(3 * deadline); sent < each || got < each; {
		if time.Now().After(end) {
			return os.ErrDeadlineExceeded
		}
		for burst := 1 + rng.IntN(1+rng.IntN(200)); burst > 0 && sent < each; burst-- {
			b := buf[:min(size(sent), len(buf))]
			for i := range b {
				b[i] = byte(sent)
			}
			binary.LittleEndian.PutUint64(b, sent)
			ok, err := n.ep.Send(&transport.Op{Peer: to, Data: b})
			if !ok && err != transport.ErrAgain { //nolint:errorlint // the very value
				return err
			}
			if !ok {
				break
			}
			sent++
		}
		for range 1 + rng.IntN(8) {
			k, err := n.cq.Read(n.comp)
			if err != nil {
				return err
			}
			for _, c := range n.comp[:k] {
				want := min(size(got), n.maxMsg)
				if c.Kind != transport.RecvDone || len(c.Msg) != want || binary.LittleEndian.Uint64(c.Msg) != got ||
					!bytes.Equal(c.Msg[8:], bytes.Repeat([]byte{byte(got)}, want-8)) {
					return errWord
				}
				got++
			}
		}
	}
	return nil
}

// TestWriterEndsAtSkip: a writer ends between a skip and the message after it. The reader
// must get the messages before the skip, and then report that the writer has ended.
func TestWriterEndsAtSkip(t *testing.T) {
	all := nodes(t, 17, New())
	w, r := all[1], all[0]
	for i := range byte(firstLines) {
		w.send(t, 0, []byte{i})
		require.Equal(t, []byte{i}, r.await(t, transport.RecvDone).Msg)
	}
	for range publishIdle + 1 {
		require.Empty(t, r.read(t))
	}
	i, err := w.local(0).out.reserve(1)
	require.NoError(t, err)
	require.Zero(t, i, "the writer is at the ring's beginning")
	w.seg.state(w.self).alive.Store(ownerDied)
	down := r.await(t, transport.PeerDown)
	require.EqualValues(t, 1, down.Peer)
	require.ErrorIs(t, down.Err, transport.ErrPeerDown)
}

// FuzzRingQueue makes a writer and a reader do the steps of the input, and compares the ring with
// a queue. Lines behind end must stay unchanged.
func FuzzRingQueue(f *testing.F) {
	f.Add([]byte{0, 1, 2, 200, 201, 3, 4, 255, 7, 7, 7, 7, 7, 7, 7, 128}, uint8(0))
	f.Add(bytes.Repeat([]byte{100, 130}, 300), uint8(9))
	f.Add(bytes.Repeat([]byte{1}, 700), uint8(3))
	f.Fuzz(func(t *testing.T, steps []byte, how uint8) {
		lines := 128 << (how % 3)
		start := []uint64{0, 1<<32 - 37*uint64(how)}[how>>2%2]
		o, r := newRingOf(lines, firstLines, int(how>>3%2), start)
		limit := maxMessage(lines)
		var queue [][]byte
		for at, s := range steps {
			if s < 128 { // a message, at most the longest one
				b := bytes.Repeat([]byte{s | 1}, min(int(s)*int(s)/2, limit))
				if o.put(t, b, kindMessage) {
					queue = append(queue, b)
				} else {
					require.True(t, len(queue) > 0 || r.published < r.pos, "no room in an empty ring")
				}
				continue
			}
			for range s % 8 {
				b, kind, err := r.next()
				require.NoError(t, err)
				if kind == kindSkip {
					require.NoError(t, r.skip(b))
					continue
				}
				require.Equal(t, len(queue) > 0, kind != 0, "step %d", at)
				if kind == 0 {
					break
				}
				require.True(t, bytes.Equal(queue[0], b))
				queue = queue[1:]
			}
			if r.free = r.pos; s&64 != 0 {
				r.publishFree()
			}
		}
		if end := int(o.end) + 1; start == 0 && end < lines {
			require.Equal(t, make([]byte, (lines-end)*lineSize), o.bytes[end*lineSize:], "memory behind the ring's end")
		}
	})
}
