//go:build linux && !portable

package shm

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// begun is an RMA Read or Write of about 1 MiB that rank 0, the initiator, has posted and that has
// not ended. Both ranks copy such a block: it is cut in pieces, and rank 1, the helper, gets a
// request to copy pieces from the end of the block. A rank claims pieces in a claim line, which is
// a line in shared memory with counters, before it copies them (see split.go).
type begun struct {
	a, b     *side                  // rank 0 and rank 1
	mem, dst []byte                 // the memory of rank 1's region; the buffer of rank 0
	intact   func() bool            // reports whether the bytes around mem and dst are unchanged
	mr       transport.MemoryRegion // of mem
	o        *outcome               // the Read or Write
	want     []byte                 // the content that mem and dst must have after the operation
}

// begin opens two ranks, and posts a Write or a Read of rank 0.
func begin(t testing.TB, write bool) *begun {
	t.Helper()
	all := sides(t, 2, "auto")
	x := &begun{a: all[0], b: all[1]}
	require.NoError(t, x.b.authenticate(x.b.local(0)))
	const n = 1<<20 + 333
	var here, there func() bool
	x.mem, there = fenced(n)
	x.dst, here = fenced(n)
	x.intact = func() bool { return here() && there() }
	copy(x.mem, noise(1, n))
	copy(x.dst, noise(2, n))
	x.want = bytes.Clone(x.mem)
	if write {
		x.want = bytes.Clone(x.dst)
	}
	var err error
	x.mr, err = x.b.RegisterMemory(x.mem, transport.RemoteRead|transport.RemoteWrite)
	require.NoError(t, err)
	x.o = &outcome{Op: transport.Op{Peer: 1, RemoteKey: x.mr.Key(), Data: x.dst}}
	require.NoError(t, x.a.post(x.o, write))
	require.NotNil(t, x.a.transfers.first)
	return x
}

// check checks the result of the operation, which has ended.
func (x *begun) check(t testing.TB) {
	t.Helper()
	require.NoError(t, x.o.err)
	require.True(t, bytes.Equal(x.want, x.mem), "memory of the target")
	require.True(t, bytes.Equal(x.want, x.dst), "memory of the initiator")
	require.True(t, x.intact(), "memory around it")
}

// line returns the claim line of the operation. It is the last of rank 0's lines, which is used
// first.
func (x *begun) line() *claim { return &x.a.seg.claims(0).lines[claimLines-1] }

// TestBothSidesCopy polls both ranks alternately until the operation has ended. Each rank must copy
// about half of the pieces.
func TestBothSidesCopy(t *testing.T) {
	for _, write := range []bool{false, true} {
		x := begin(t, write)
		pollUntilDone(t, x.o, x.b, x.a)
		x.check(t)
		done := x.line().done.Load()
		require.Zero(t, done&failedBit)
		pieces := pieceCount(len(x.dst), pieceSize(len(x.dst)))
		require.InDelta(t, pieces/2, int(done&maxPieces), 1, "each rank must copy half of %d pieces", pieces)
	}
}

// TestClaimSize checks the number of pieces that a rank claims at a time, for blocks of many sizes:
// it never grows towards the end of the block, and all pieces are claimed in the end.
func TestClaimSize(t *testing.T) {
	for pieces := 1; pieces < 1000; pieces++ {
		last := claimMost
		for left := pieces; left > 0; {
			n := claimSize(left)
			require.True(t, n > 0 && n <= left && n <= last, "%d of %d", n, left)
			left, last = left-n, n
		}
		require.Zero(t, claimSize(0))
	}
}

// TestHelpersAlone has the initiator make no progress after it has copied its first pieces. The
// helper must copy all other pieces.
func TestHelpersAlone(t *testing.T) {
	for _, write := range []bool{false, true} {
		x := begin(t, write)
		for range 100 {
			require.NoError(t, x.b.poll())
		}
		require.Zero(t, x.b.transfers.helps.n)
		_, front, back := claimParts(x.line().claimed.Load())
		require.Equal(t, pieceCount(len(x.dst), pieceSize(len(x.dst))), front+back)
		pollUntilDone(t, x.o, x.a)
		x.check(t)
	}
}

// TestHelpComesLate has the helper get a request after the operation has ended, when its claim line
// is in use for another operation. The helper must ignore that request and serve the one for the
// second operation.
func TestHelpComesLate(t *testing.T) {
	for _, write := range []bool{false, true} {
		x := begin(t, write)
		pollUntilDone(t, x.o, x.a)
		x.check(t)
		copy(x.mem, noise(3, len(x.mem)))
		copy(x.dst, noise(4, len(x.dst)))
		x.want = bytes.Clone(x.mem)
		require.NoError(t, x.a.post(x.o, false))
		_, front, _ := claimParts(x.line().claimed.Load())
		require.NoError(t, x.b.poll())
		_, _, back := claimParts(x.line().claimed.Load())
		pieces := pieceCount(len(x.dst), pieceSize(len(x.dst)))
		first := claimSize(pieces)
		require.Equal(t, []int{first, claimSize(pieces - first)}, []int{front, back}, "the helper must serve only the second request")
		pollUntilDone(t, x.o, x.b, x.a)
		x.check(t)
	}
}

// request returns the request that rank 0 has sent to the helper for the operation.
func (x *begun) request(write bool) *help {
	s := x.a.transfers.first.split
	return &help{
		slot: s.slot, write: write, gen: s.gen, n: len(x.dst), key: x.mr.Key(), buffer: addressOf(x.dst),
	}
}

// deliver gives the request to rank 1 as if rank 0 had sent it.
func (x *begun) deliver(t testing.TB, h *help) {
	t.Helper()
	var b [helpSize]byte
	h.put(&b)
	require.NoError(t, x.b.control(x.b.local(0), kindHelp, b[:]))
}

// TestHelpAskedTwice delivers the same request to the helper many times, also after the operation
// has ended. The result must be right.
func TestHelpAskedTwice(t *testing.T) {
	for _, write := range []bool{false, true} {
		x := begin(t, write)
		h := x.request(write)
		for range 80 { // more than the helper's queue of requests has room for
			x.deliver(t, h)
		}
		for range 3 {
			require.NoError(t, x.b.poll())
		}
		require.NoError(t, x.a.poll())
		x.deliver(t, h)
		pollUntilDone(t, x.o, x.b, x.a)
		x.check(t)
		x.deliver(t, h)
		require.NoError(t, x.b.poll())
		require.NoError(t, x.b.poll())
		x.check(t)
	}
}

// TestHelpFails delivers a request with an invalid buffer address. The helper must mark the failure
// in the claim line, and the initiator must copy the whole block and free the claim line.
func TestHelpFails(t *testing.T) {
	for _, write := range []bool{false, true} {
		x := begin(t, write)
		h := x.request(write)
		h.buffer = 4096 // no process has memory there
		x.deliver(t, h)
		x.b.advance()
		require.NotZero(t, x.line().done.Load()&failedBit)
		pollUntilDone(t, x.o, x.a)
		x.check(t)
		require.EqualValues(t, claimLines, x.a.transfers.lines.n)
	}
}

// TestCloseUnderHelp has rank 1 close the region after it has copied pieces. The operation must end
// with ErrKey, and the memory must not change after Close.
func TestCloseUnderHelp(t *testing.T) {
	for _, write := range []bool{false, true} {
		x := begin(t, write)
		require.NoError(t, x.b.poll())
		require.NoError(t, x.mr.Close())
		was := noise(9, len(x.mem))
		copy(x.mem, was)
		pollUntilDone(t, x.o, x.b, x.a)
		require.ErrorIs(t, x.o.err, transport.ErrKey)
		require.True(t, bytes.Equal(was, x.mem), "touched after Close")
		require.EqualValues(t, claimLines, x.a.transfers.lines.n)
	}
}

// TestCloseBeforeTheEnd has rank 1 close the region when all pieces of a Read are copied, and rank
// 0 has not polled since. The Read must fail with ErrKey, because rank 0 looks for the key again
// after the copy.
func TestCloseBeforeTheEnd(t *testing.T) {
	x := begin(t, false)
	for range 100 {
		require.NoError(t, x.b.poll())
	}
	require.NoError(t, x.mr.Close())
	pollUntilDone(t, x.o, x.a)
	require.ErrorIs(t, x.o.err, transport.ErrKey)
}

// TestManySplit posts twice as many Reads as a rank has claim lines. A Read whose copy the peer
// shares needs one such cache line (see split.go); a Read that finds none copies alone. All Reads
// must return the right bytes, and all claim lines must be free at the end.
func TestManySplit(t *testing.T) {
	all := sides(t, 2, "auto")
	a, b := all[0], all[1]
	mem := noise(5, 100_000)
	mr, err := b.RegisterMemory(mem, transport.RemoteRead)
	require.NoError(t, err)
	var l [2 * claimLines]outcome
	for i := range l {
		l[i].Op = transport.Op{Peer: 1, RemoteKey: mr.Key(), Data: make([]byte, len(mem))}
		require.NoError(t, a.post(&l[i], false))
	}
	require.Zero(t, a.transfers.lines.n)
	for i := range l {
		pollUntilDone(t, &l[i], b, a)
		require.NoError(t, l[i].err)
		require.True(t, bytes.Equal(mem, l[i].Data), "read %d", i)
	}
	require.EqualValues(t, claimLines, a.transfers.lines.n)
}

// TestNoHelpInAnExchange checks that a rank which has registered data of messages does not request
// that the peer copies a part of a block. Such a rank probably exchanges messages with the peer, and
// the peer is busy with its own transfers.
func TestNoHelpInAnExchange(t *testing.T) {
	for _, access := range []transport.Access{messageAccess, transport.RemoteRead, transport.RemoteRead | transport.RemoteWrite} {
		for _, write := range []bool{false, true} {
			all := sides(t, 2, "auto")
			a, b := all[0], all[1]
			require.NoError(t, b.authenticate(b.local(0)))
			theirs, err := b.RegisterMemory(noise(6, 1<<20), transport.RemoteRead|transport.RemoteWrite)
			require.NoError(t, err)
			asks := func() bool {
				o := &outcome{Op: transport.Op{Peer: 1, RemoteKey: theirs.Key(), Data: make([]byte, 1<<20)}}
				require.NoError(t, a.post(o, write))
				asked := a.transfers.lines.n < claimLines
				pollUntilDone(t, o, b, a)
				require.NoError(t, o.err)
				require.EqualValues(t, claimLines, a.transfers.lines.n)
				return asked
			}
			require.True(t, asks())
			var open [2]transport.MemoryRegion
			for i := range open {
				open[i], err = a.RegisterMemory(make([]byte, 8), access)
				require.NoError(t, err)
			}
			for _, mr := range open {
				require.Equal(t, access != messageAccess, asks(), "access %v, write %v", access, write)
				require.NoError(t, mr.Close())
			}
			require.True(t, asks(), "after the regions are closed")
		}
	}
}

// TestNoHelpInAStream checks when a rank requests that the peer copies a part of a block. It does
// so for the first transfer since a Read of the queue. It does so for a later one only if that is
// larger than streamMax. It never does so if the peer sleeps.
func TestNoHelpInAStream(t *testing.T) {
	all := sides(t, 2, "auto")
	a, b := all[0], all[1]
	require.NoError(t, b.authenticate(b.local(0)))
	theirs, err := b.RegisterMemory(noise(6, 1<<20), transport.RemoteRead)
	require.NoError(t, err)
	require.NoError(t, a.poll())
	var l []*outcome
	asks := func(n int) bool {
		l = append(l, &outcome{Op: transport.Op{Peer: 1, RemoteKey: theirs.Key(), Data: make([]byte, n)}})
		// The number of claim lines in use says nothing, because post may return when the
		// transfer has ended and its line is free again.
		before := a.transfers.lines.gens
		require.NoError(t, a.post(l[len(l)-1], false))
		return a.transfers.lines.gens != before
	}
	require.True(t, asks(streamMax))
	require.False(t, asks(streamMax))
	require.True(t, asks(streamMax+1))
	for _, o := range l {
		pollUntilDone(t, o, a, b)
		require.NoError(t, o.err)
	}
	require.True(t, asks(streamMax), "the first transfer since a Read")
	pollUntilDone(t, l[len(l)-1], a, b)
	was := a.local(1).sleep.Swap(asleep)
	require.False(t, asks(1<<20))
	a.local(1).sleep.Store(was)
	pollUntilDone(t, l[len(l)-1], a)
}

// TestHelperDies has the helper end after it has claimed a piece, and before it has counted the
// piece as copied. The operation must not end while a thread of the helper may still be copying.
// Then it must end with ErrPeerDown.
func TestHelperDies(t *testing.T) {
	// If cleared is true, the helper clears its hazard line. Otherwise the line stays set, as if
	// the helper still copied, until exitGrace is over.
	for _, cleared := range []bool{true, false} {
		x := begin(t, false)
		line, s := x.line(), &x.a.transfers.first.split
		gen, front, back := claimParts(line.claimed.Load())
		hazard := &x.b.seg.claims(1).hazards.helping
		hazard.Store(helpName(0, s.slot, s.gen))
		line.claimed.Store(claimWord(gen, front, back+1))
		for range 10_000 {
			require.NoError(t, x.a.poll())
		}
		require.False(t, x.o.done, "the helper may still be copying")
		require.False(t, x.a.q.Arm(), "no peer will wake this rank")
		x.a.local(1).state.alive.Or(ownerDied)
		for range 10_000 {
			require.NoError(t, x.a.poll())
		}
		require.Len(t, x.a.ends, 1)
		require.False(t, x.o.done, "the helper's process runs, so one of its threads may still be copying")
		if cleared {
			hazard.Store(0)
		} else {
			s.goneSince = s.goneSince.Add(-exitGrace)
		}
		pollUntilDone(t, x.o, x.a)
		require.ErrorIs(t, x.o.err, transport.ErrPeerDown)
		require.EqualValues(t, claimLines-1, x.a.transfers.lines.n, "the line must not be used again")
		hazard.Store(0)
	}
}

// TestNoHelpForTheDead has the helper get a request after the initiator has ended. The helper must
// not copy, because the initiator's process id may be that of another process now.
func TestNoHelpForTheDead(t *testing.T) {
	for _, write := range []bool{false, true} {
		x := begin(t, write)
		mem, dst := bytes.Clone(x.mem), bytes.Clone(x.dst)
		x.b.takeEvents(x.b.events.Load()) // makes rank 1 poll the ring from rank 0 from now on
		x.a.liveness.end()
		require.NoError(t, x.b.poll())
		_, front, back := claimParts(x.line().claimed.Load())
		require.Equal(t, claimSize(pieceCount(len(dst), pieceSize(len(dst)))-front), back, "the helper must have served the request")
		require.True(t, bytes.Equal(mem, x.mem) && bytes.Equal(dst, x.dst), "touched after the end")
	}
}

// TestCorruptClaims writes invalid words to the claim line of an operation at random moments. The
// operation must end, with or without an error, and the memory around its buffers must not change.
func TestCorruptClaims(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	failures := 0
	for range 150 {
		write := rnd.IntN(2) == 0
		x := begin(t, write)
		moves := rnd.IntN(40)
		for range moves {
			if x.o.done {
				break
			}
			line := x.line()
			if rnd.IntN(4) == 0 {
				gen, front, back := claimParts(line.claimed.Load())
				words := []uint64{
					rnd.Uint64(), 0, 1<<64 - 1, claimWord(gen, front, back+rnd.IntN(20)), claimWord(gen+1, front, back),
					claimWord(gen, front+1, back), claimWord(gen, front, 0), claimWord(gen, 0xFFFF, 0xFFFF),
					uint64(gen)<<32 | rnd.Uint64N(1<<17), uint64(gen)<<32 | failedBit,
				}
				if w := words[rnd.IntN(len(words))]; rnd.IntN(2) == 0 {
					line.claimed.Store(w)
				} else {
					line.done.Store(w)
				}
			}
			side := x.a
			if rnd.IntN(2) == 0 {
				side = x.b
			}
			require.NoError(t, side.poll())
		}
		pollUntilDone(t, x.o, x.b, x.a)
		if x.o.err != nil {
			require.True(t, errors.Is(x.o.err, transport.ErrProtocol) || errors.Is(x.o.err, transport.ErrPeerDown), "%v", x.o.err)
			failures++
		}
		require.True(t, x.intact())
	}
	require.NotZero(t, failures)
}

func TestPieceSizes(t *testing.T) {
	for n := splitMin; n <= maxRMASize; n += n/7 + 1 {
		piece := pieceSize(n)
		pieces := pieceCount(n, piece)
		require.True(t, piece >= splitMin/2 && piece <= pieceMax && piece%pageSize == 0)
		require.True(t, pieces > 1 && pieces <= maxPieces && (pieces-1)*piece < n && pieces*piece >= n)
	}
	require.LessOrEqual(t, pieceCount(maxRMASize, pieceSize(maxRMASize)), maxPieces)
}

func FuzzHelp(f *testing.F) {
	h := help{slot: 3, write: true, gen: 77, n: 1 << 20, key: 1<<63 | 5, addr: 12, buffer: 1 << 40}
	var b [helpSize]byte
	h.put(&b)
	f.Add(b[:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, in []byte) {
		var h help
		if err := h.parse(in); err != nil {
			require.ErrorIs(t, err, transport.ErrProtocol)
			return
		}
		var b [helpSize]byte
		h.put(&b)
		require.Equal(t, in, b[:])
	})
}
