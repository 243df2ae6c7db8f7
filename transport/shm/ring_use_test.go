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

// taken returns the number of bytes of memory that the pages of the ranks' memory file take.
func (n *node) taken(t testing.TB) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(n.file.Fd()), &st))
	return st.Blocks * 512
}

// allToAll has every rank send a message to every other rank, and receives all messages.
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

// TestRingsTakeWhatIsUsed checks how much memory the message rings take after all-to-alls of small
// messages among many ranks. Each ring takes one page. Only if the ranks send often ("busy"), each
// rank uses all pages of busyRings rings.
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
			// One eighth more is for the other pages that the ranks touch.
			require.LessOrEqual(t, took, most+most/8)
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

// TestRingGrows has the reader follow the writer for some messages, so that the writer uses only
// the first lines of the ring. Then the writer writes until there is no room, again and again. It
// must come to use the whole ring: at once if there were few messages before; otherwise, because it
// may first return to the ring's beginning, after some rounds.
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

// TestRingInOrder has two ranks send to each other at the same time, in bursts of random length, so
// that the part of each ring that its writer uses grows while both sides use the ring. All messages
// must arrive in order.
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
			// The goroutine ends when n has all messages, or with an error. The test receives
			// from done below.
			go func() { done <- n.converse(transport.Addr(1-i), each, rng) }()
		}
		for range 2 {
			require.NoError(t, <-done)
		}
	}
}

// converse sends a number of messages (each) of varying lengths to a peer, and checks as many
// messages from the peer.
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
			if !ok && err != transport.ErrAgain { //nolint:errorlint // Send does not wrap it
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

// TestWriterEndsAtSkip has a writer end after it has written a skip (a word that sends the reader
// to the ring's beginning), and before it has written the message at the beginning. The reader must
// get the messages before the skip, and then report PeerDown.
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

// FuzzRingQueue has a writer and a reader of a ring do the steps of the input, and compares the
// ring with a plain queue. The writer must not touch lines beyond the part of the ring that it uses
// (outRing.end).
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
			if s < 128 { // write a message; its length is at most the limit
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
