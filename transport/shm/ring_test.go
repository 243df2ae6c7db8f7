//go:build linux && !portable

package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// newRing returns the writer's and the reader's side of a message ring of 16 lines, all of which
// the writer uses from the beginning. start is the position of the first message.
func newRing(start uint64) (*outRing, *inRing) {
	return newRingOf(16, 16, 0, start)
}

// newRingOf returns the writer's and the reader's side of a ring of the given number of lines.
// first is the number of lines that the writer uses at first (outRing.end). wholeLeft is the
// initial value of what outRing.wholeLeft points to. start is the position of the first message.
func newRingOf(lines, first, wholeLeft int, start uint64) (*outRing, *inRing) {
	mem := make([]byte, pageSize+lines*lineSize)
	o, i := &outRing{}, &inRing{}
	o.init(mem, start, &wholeLeft)
	o.end = uint64(first)
	i.init(mem, start)
	return o, i
}

// put writes a message with the data b and a kind to the ring. It returns false if there is no
// room.
func (r *outRing) put(t *testing.T, b []byte, kind uint8) bool {
	t.Helper()
	k := linesOf(len(b))
	i, err := r.reserve(k)
	if err != nil {
		require.ErrorIs(t, err, transport.ErrAgain)
		return false
	}
	copy(r.bytes[i*lineSize+wordSize:], b)
	r.publish(i, k, len(b), kind)
	return true
}

// TestRing writes and reads random messages, and compares the ring with a plain queue. Some
// messages contain, at the beginnings of lines, forged words, which the reader would take for the
// beginning of a message if it read at that place.
func TestRing(t *testing.T) {
	for seed := range uint64(9) {
		rng := rand.New(rand.NewPCG(seed, 5))
		lines := 16 << rng.IntN(4)
		start := []uint64{0, 1<<32 - uint64(rng.IntN(200)), 1<<40 + uint64(rng.IntN(100))}[seed%3]
		first := []int{lines, 2, 6}[seed/3]
		o, r := newRingOf(lines, first, int(seed%2), start)
		limit := maxMessage(lines)
		var queue [][]byte
		var kinds []uint8
		put, got, full := 0, 0, 0
		for range 8_000 {
			if rng.IntN(2) == 0 {
				b := make([]byte, rng.IntN(1+rng.IntN(limit+1)))
				for i := range b {
					b[i] = byte(rng.Uint32())
				}
				// Put a forged word at the beginning of every line that the message fills.
				if rng.IntN(2) == 0 {
					for i := lineSize - wordSize; i+8 <= len(b); i += lineSize {
						at := o.pos + linesOf(i)
						w := wire.NewShmWord(uint32(at)+uint32(rng.IntN(3)*lines)+1, rng.IntN(50), kindMessage)
						for j := range 8 {
							b[i+j] = byte(w >> (8 * j))
						}
					}
				}
				kind := uint8(kindMessage)
				if rng.IntN(3) == 0 {
					kind = firstControl + uint8(rng.IntN(200))
				}
				if o.put(t, b, kind) {
					queue, kinds = append(queue, b), append(kinds, kind)
					put++
				} else {
					full++
					require.True(t, len(queue) > 0 || r.published < r.pos, "no room in an empty ring")
				}
				continue
			}
			r.free = r.pos
			r.publishFree()
			for range 1 + rng.IntN(4) {
				waiting := r.waiting()
				b, kind, err := r.next()
				require.NoError(t, err)
				require.Equal(t, waiting, kind != 0)
				if kind == kindSkip {
					require.NoError(t, r.skip(b))
					continue
				}
				require.Equal(t, len(queue) > 0, kind != 0)
				if kind == 0 {
					break
				}
				require.Equal(t, kinds[0], kind)
				require.True(t, bytes.Equal(queue[0], b))
				queue, kinds = queue[1:], kinds[1:]
				got++
			}
		}
		require.Equal(t, put, got+len(queue))
		require.NotZero(t, full)
	}
}

// TestRingRefuses writes words to a ring that no correct writer writes, and then counts of freed
// lines that no correct reader writes. The other side must return an error.
func TestRingRefuses(t *testing.T) {
	for _, w := range []wire.ShmWord{
		wire.NewShmWord(2, 0, kindMessage), // the sequence number of a later position
		wire.NewShmWord(0, 0, kindMessage), // the sequence number of an earlier position
		wire.NewShmWord(1, 0, 0),           // kind 0, which no message has
		wire.NewShmWord(1, 16*lineSize, kindMessage),
		wire.NewShmWord(1, wire.ShmMaxLength, kindMessage),
		1, 1 << 63,
	} {
		_, r := newRing(0)
		r.lines[0].word.Store(uint64(w))
		_, _, err := r.next()
		require.Error(t, err, "%x", w)
	}
	_, r := newRing(0)
	// A skip is a word that sends the reader to the ring's beginning. At that beginning it is
	// invalid.
	r.lines[0].word.Store(uint64(wire.NewShmWord(1, 0, kindSkip)))
	b, kind, err := r.next()
	require.NoError(t, err)
	require.EqualValues(t, kindSkip, kind)
	require.Error(t, r.skip(b))

	for _, freed := range []uint64{3, 1<<64 - 1, 1 << 63} {
		o, _ := newRing(0)
		for range 2 {
			require.True(t, o.put(t, nil, kindMessage))
		}
		o.freed.Store(freed)
		require.ErrorIs(t, o.readFreed(), transport.ErrProtocol, "%d", freed)
	}
	o, _ := newRing(0)
	for range 5 {
		require.True(t, o.put(t, nil, kindMessage))
	}
	o.freed.Store(4)
	require.NoError(t, o.readFreed())
	o.freed.Store(3)
	require.ErrorIs(t, o.readFreed(), transport.ErrProtocol)
}

// TestBadSkip has a peer write a skip (a word that sends the reader to the ring's beginning) with a
// length other than 0. The rank must report PeerDown with a protocol error.
func TestBadSkip(t *testing.T) {
	all := nodes(t, 2, New())
	all[0].send(t, 1, nil)
	all[1].await(t, transport.RecvDone)
	out := &all[0].local(1).out
	i, err := out.reserve(1)
	require.NoError(t, err)
	out.publish(i, 1, 8, kindSkip)
	down := all[1].await(t, transport.PeerDown)
	require.ErrorIs(t, down.Err, transport.ErrPeerDown)
	require.ErrorIs(t, down.Err, transport.ErrProtocol)
}

// FuzzRing reads a ring to which a writer has written arbitrary bytes. Every message that the
// reader returns must lie within the ring, and the reader must stay at its position after an error.
func FuzzRing(f *testing.F) {
	const lines = 16
	word := func(w wire.ShmWord) []byte { return binary.NativeEndian.AppendUint64(nil, uint64(w)) }
	line := func(w wire.ShmWord) []byte { return append(word(w), make([]byte, lineSize-wordSize)...) }
	f.Add(word(wire.NewShmWord(1, 8, kindMessage)), uint64(0), uint64(0))
	f.Add(append(append(line(wire.NewShmWord(1, 0, kindMessage)), line(wire.NewShmWord(2, 60, kindMessage))...), make([]byte, lineSize)...), uint64(0), uint64(1))
	f.Add(line(wire.NewShmWord(10, lineSize*7-wordSize, kindSkip)), uint64(9), uint64(0))
	f.Add(word(wire.NewShmWord(0, 0, kindMessage)), uint64(1<<32-1), ^uint64(0))
	f.Fuzz(func(t *testing.T, in []byte, start, freed uint64) {
		o, r := newRing(start)
		copy(r.bytes[start&r.mask*lineSize:], in)
		for range 2 * lines {
			before := r.pos
			b, kind, err := r.next()
			if err != nil || kind == 0 {
				require.Equal(t, before, r.pos)
				require.Equal(t, err != nil, r.waiting())
				break
			}
			require.LessOrEqual(t, r.pos-before, uint64(lines))
			require.LessOrEqual(t, uint64(len(b)), (r.pos-before)*lineSize)
			if kind == kindSkip && r.skip(b) != nil {
				break
			}
			r.free = r.pos
			r.publishFree()
		}
		// Undo the reader's count of freed lines, because o has not written the messages that the
		// reader has found.
		o.freed.Store(0)
		require.True(t, o.put(t, make([]byte, 100), kindMessage))
		o.freed.Store(freed)
		if err := o.readFreed(); err != nil {
			require.ErrorIs(t, err, transport.ErrProtocol)
		} else {
			require.LessOrEqual(t, freed, o.pos-start)
		}
	})
}

// TestRoomIsShown has a writer lack room for a message, although the reader has used enough
// messages, because the reader publishes only now and then how many lines it has freed. The reader
// must publish the freed lines after publishIdle polls without a message, or when it calls Arm.
func TestRoomIsShown(t *testing.T) {
	for _, sleeps := range []bool{false, true} {
		all := nodes(t, 17, New()) // with 17 ranks a ring has 1024 lines, and a message takes up to 512
		w, r := all[0], all[1]
		w.send(t, 1, nil)
		r.await(t, transport.RecvDone)
		out, in := &w.local(1).out, &r.local(0).in
		// Use the whole ring, as in a ring that carries messages without a pause.
		out.end, in.batch = out.mask+1, in.mask/batchPart
		for range 19 {
			for range 30 {
				w.send(t, 1, nil)
			}
			n, err := r.cq.Read(r.comp[:30])
			require.NoError(t, err)
			require.Equal(t, 30, n)
		}
		big := &transport.Op{Peer: 1, Data: make([]byte, w.maxMsg)}
		_, err := w.ep.Send(big)
		require.ErrorIs(t, err, transport.ErrAgain)
		if sleeps {
			require.Empty(t, r.read(t))
			require.True(t, r.cq.Arm())
		} else {
			for range publishIdle {
				require.Empty(t, r.read(t))
			}
		}
		_, err = w.ep.Send(big)
		require.NoError(t, err)
	}
}

// TestScribble writes random words to the shared memory of a running job. The ranks may
// get errors, but must not crash, and every Wait must end.
func TestScribble(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	for i := range rounds {
		s := &scribbler{rng: rand.New(rand.NewPCG(seed, uint64(i)))}
		s.run(t)
	}
}

// scribbler makes random calls of three ranks of a job, and corrupts their shared memory.
type scribbler struct {
	rng *rand.Rand
	all []*node
	t   *testing.T
}

func (s *scribbler) run(t *testing.T) {
	s.t = t
	start := []uint64{0, 1<<32 - 50}[s.rng.IntN(2)]
	s.all = nodes(t, 3, provider{start: start}, noSingleCopy)
	buf := make([]byte, 1<<16)
	steps := 50 + s.rng.IntN(400)
	at := s.rng.IntN(steps)
	for i := range steps {
		if i >= at && s.rng.IntN(20) == 0 {
			s.scribble()
		}
		n := s.all[s.rng.IntN(3)]
		peer := transport.Addr(s.rng.IntN(3))
		var err error
		switch s.rng.IntN(10) {
		case 0, 1, 2, 3:
			op := &transport.Op{Peer: peer, HeaderLen: s.rng.IntN(65), Data: buf[:s.rng.IntN(1<<s.rng.IntN(16))]}
			_, err = n.ep.Send(op)
		case 4:
			if n.cq.Arm() {
				err = n.cq.Wait(time.Duration(s.rng.IntN(100)) * time.Microsecond)
			}
		case 5:
			n.Notify(peer)
			n.Asleep()
			n.cq.Signal()
		default:
			_, err = n.cq.Read(n.comp)
			require.NoError(t, err)
		}
		if err != nil && !errors.Is(err, transport.ErrPeerDown) && !errors.Is(err, transport.ErrPeerLeft) {
			require.ErrorIs(t, err, transport.ErrAgain)
		}
	}
	s.waits()
	for _, n := range s.all {
		require.NoError(t, n.ep.Shutdown(t.Context()))
		require.NoError(t, n.Close())
	}
}

// waits has a rank call Arm and Wait. In between it corrupts one of the words on which Wait
// depends, or ends the sleep in a regular way. Wait must end before its timeout.
func (s *scribbler) waits() {
	n := s.all[s.rng.IntN(3)]
	for range 200 {
		if _, err := n.cq.Read(n.comp); err != nil {
			require.NoError(s.t, err)
		}
	}
	if !n.cq.Arm() {
		return
	}
	c := n.seg.card(n.self)
	next := n.local((n.self + 1) % 3)
	switch s.rng.IntN(4) {
	case 0:
		c.sleep.Store(s.rng.Uint32() | 2)
	case 1:
		n.seg.header().sleepers.Store(-s.rng.Int32())
	case 2:
		if n.knowsEnd(next.local) {
			n.Signal()
		}
		next.state.alive.Store(ownerDied)
	case 3:
		n.Signal()
	}
	before := time.Now()
	require.NoError(s.t, n.cq.Wait(deadline))
	require.Less(s.t, time.Since(before), deadline/2)
}

// scribble corrupts a random word of the shared memory.
func (s *scribbler) scribble() {
	n := s.all[s.rng.IntN(3)]
	mem, off := n.seg.front, 0
	switch s.rng.IntN(6) {
	case 0:
		off = s.rng.IntN(2 * lineSize)
	case 1, 2:
		off = int(n.seg.cards) + s.rng.IntN(3)*pageSize + s.rng.IntN(1408)
	case 3:
		off = s.rng.IntN(int(n.seg.tables) + 2*dirSize)
	default:
		mem = n.seg.ringFrom(s.rng.IntN(3))
		p := n.local(s.rng.IntN(3))
		off = []int{0, lineSize + s.rng.IntN(64)*lineSize, s.rng.IntN(len(mem))}[s.rng.IntN(3)]
		if n.isListed(p) && s.rng.IntN(2) == 0 {
			mem = n.seg.ringFrom(p.local)
			off = lineSize + int(p.in.pos&p.in.mask)*lineSize // the word that the reader reads next
		}
	}
	w := view[uint64](mem)[off/8:]
	switch s.rng.IntN(6) {
	case 0:
		w[0] = 0
	case 1:
		w[0] = 1<<64 - 1
	case 2:
		w[0] ^= 1 << s.rng.IntN(64)
	case 3:
		w[0] += uint64(s.rng.IntN(5)) - 2
	case 4:
		w[0] += uint64(s.rng.IntN(5)-2) << 32
	default:
		w[0] = s.rng.Uint64()
	}
}

// noSingleCopy switches off copies by the kernel (process_vm_writev). They would write to addresses
// from the corrupted tables. All ranks are in this process, so such a copy could overwrite any
// memory of the test.
func noSingleCopy(c *transport.Config) { c.Params = copying("off") }
