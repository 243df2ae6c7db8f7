//go:build linux && !portable

package shm

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// begin posts the atomic o.
func (o *outcome) begin(s *side) error {
	o.done, o.err, o.User = false, nil, o
	return s.e.Atomic(&o.Op)
}

// sumOf returns an atomic that adds n and fetches the former value.
func sumOf(peer transport.Addr, key, addr, n uint64) *outcome {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], n)
	return &outcome{Op: transport.Op{
		Peer: peer, RemoteKey: key, RemoteAddr: addr, Atomic: transport.AtomicSum, Datatype: transport.Uint64, Data: b[:], Fetch: make([]byte, 8),
	}}
}

// TestAtomicValid checks which operations are possible on which types.
func TestAtomicValid(t *testing.T) {
	e := &endpoint{}
	eight := make([]byte, 8)
	for typ := range transport.Datatypes + 1 {
		for op := range transport.AtomicOps + 1 {
			float := typ == transport.Float32 || typ == transport.Float64
			ok := typ < transport.Float32 || float || typ == transport.Complex64
			switch op {
			case transport.AtomicRead, transport.AtomicWrite, transport.AtomicCswap, transport.AtomicSum, transport.AtomicProd:
			case transport.AtomicBor, transport.AtomicBand, transport.AtomicBxor:
				ok = ok && typ < transport.Float32
			case transport.AtomicOps:
				ok = false
			default:
				ok = ok && typ != transport.Complex64
			}
			x := transport.Op{Atomic: op, Datatype: typ, Data: eight, Fetch: eight}
			if op == transport.AtomicCswap {
				x.Compare = eight
			}
			n, valid := e.AtomicValid(&x)
			require.Equal(t, ok, valid, "operation %d on type %d", op, typ)
			if valid {
				require.Equal(t, atomicMax, n*typ.Size())
			}
		}
	}
	for name, x := range map[string]transport.Op{
		"read into nothing":       {Atomic: transport.AtomicRead, Data: eight},
		"write of nothing":        {Atomic: transport.AtomicWrite, Fetch: eight},
		"sum of nothing":          {Atomic: transport.AtomicSum, Fetch: eight},
		"swap without a fetch":    {Atomic: transport.AtomicCswap, Data: eight, Compare: eight},
		"swap without a value":    {Atomic: transport.AtomicCswap, Data: eight, Fetch: eight},
		"sum that compares":       {Atomic: transport.AtomicSum, Data: eight, Compare: eight},
		"read that is to compare": {Atomic: transport.AtomicRead, Fetch: eight, Compare: eight},
	} {
		_, ok := e.AtomicValid(&x)
		require.False(t, ok, name)
	}
}

// TestAtomicRefusals checks which atomics are refused: on a peer's private memory, on the rank's
// own memory, and on the shared heap. A refused atomic must not change the elements.
func TestAtomicRefusals(t *testing.T) {
	all := sides(t, 2, "auto")
	mem := make([]byte, 64)
	for _, owner := range []transport.Addr{0, 1} {
		d := all[owner].domain
		both, err := d.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
		require.NoError(t, err)
		reads, err := d.RegisterMemory(mem, transport.RemoteRead)
		require.NoError(t, err)
		writes, err := d.RegisterMemory(mem, transport.RemoteWrite)
		require.NoError(t, err)
		closed, err := d.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
		require.NoError(t, err)
		closedKey := closed.Key()
		require.NoError(t, closed.Close())
		_, heap, err := d.Alloc(64)
		require.NoError(t, err)
		for _, c := range []struct {
			key, addr uint64
			err       error
		}{
			{both.Key(), 0, nil},
			{both.Key(), 56, nil},
			{both.Key(), 57, transport.ErrBounds},
			{both.Key(), 64, transport.ErrBounds},
			{both.Key(), 1 << 63, transport.ErrBounds},
			{both.Key(), 4, errUnaligned},
			{reads.Key(), 0, transport.ErrAccess},
			{writes.Key(), 0, transport.ErrAccess},
			{closedKey, 0, transport.ErrKey},
			{both.Key() ^ 1<<40, 0, transport.ErrKey},
			{0, 0, transport.ErrKey},
			{heap.Key(), 56, nil},
			{heap.Key(), 57, transport.ErrBounds},
			{heap.Key(), 4, errUnaligned},
			{heap.Key() ^ 1<<40, 0, transport.ErrKey},
		} {
			clear(mem)
			o := sumOf(owner, c.key, c.addr, 5)
			require.NoError(t, o.begin(all[0]))
			pollUntilDone(t, o, all...)
			if c.err == nil {
				require.NoError(t, o.err)
				continue
			}
			require.ErrorIs(t, o.err, c.err, "%+v", c)
			var whole *transport.Error
			require.ErrorAs(t, o.err, &whole)
			require.Equal(t, "atomic", whole.Op)
			require.Equal(t, make([]byte, 64), mem)
		}
		o := sumOf(owner, writes.Key(), 8, 5) // permitted without a fetch
		o.Fetch = nil
		require.NoError(t, o.begin(all[0]))
		pollUntilDone(t, o, all...)
		require.NoError(t, o.err)
		require.EqualValues(t, 5, binary.NativeEndian.Uint64(mem[8:]))
	}
}

// TestAtomicCalls: if Atomic returns an error, no completion follows.
func TestAtomicCalls(t *testing.T) {
	all := sides(t, 2, "auto")
	key := keyValid | uint64(1)
	for err, spoil := range map[error]func(o *transport.Op){
		transport.ErrAddress:      func(o *transport.Op) { o.Peer = 2 },
		transport.ErrNotSupported: func(o *transport.Op) { o.Datatype = transport.Complex128 },
		transport.ErrTooLarge: func(o *transport.Op) {
			o.Data, o.Fetch = make([]byte, atomicMax+8), nil
		},
		transport.ErrBounds: func(o *transport.Op) { o.Fetch = make([]byte, 16) },
	} {
		o := sumOf(1, key, 0, 1)
		spoil(&o.Op)
		require.ErrorIs(t, o.begin(all[0]), err)
	}
	require.NoError(t, all[0].poll())
	require.NoError(t, all[0].Close())
	require.ErrorIs(t, sumOf(1, key, 0, 1).begin(all[0]), transport.ErrClosed)
}

// TestAtomicsWithoutAnswer: a rank can begin maxCalls atomics with a peer that does not answer, and
// no more. They end if the peer ends.
func TestAtomicsWithoutAnswer(t *testing.T) {
	all := sides(t, 2, "auto")
	mem := make([]byte, 8)
	mr, err := all[1].RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
	require.NoError(t, err)
	var sums [maxCalls]*outcome
	for i := range sums {
		sums[i] = sumOf(1, mr.Key(), 0, 1)
		require.NoError(t, sums[i].begin(all[0]))
	}
	one := sumOf(1, mr.Key(), 0, 1)
	require.ErrorIs(t, one.begin(all[0]), transport.ErrAgain)
	require.NoError(t, all[0].poll())
	for _, o := range sums {
		require.False(t, o.done)
	}
	for _, o := range sums {
		pollUntilDone(t, o, all...)
		require.NoError(t, o.err)
	}
	require.EqualValues(t, maxCalls, binary.NativeEndian.Uint64(mem))
	require.NoError(t, one.begin(all[0]))
	require.NoError(t, all[1].Close()) // without an answer
	for end := time.Now().Add(deadline); !one.done && time.Now().Before(end); {
		require.NoError(t, all[0].poll())
	}
	require.True(t, one.done)
	require.ErrorIs(t, one.err, transport.ErrPeerDown)
	require.ErrorIs(t, sumOf(1, mr.Key(), 0, 1).begin(all[0]), transport.ErrPeerDown)
}

// TestAnswersThatFindNoRoom: the ring to the rank that waits for answers is full of messages. The
// answers must arrive after the messages.
func TestAnswersThatFindNoRoom(t *testing.T) {
	all := sides(t, 2, "auto")
	mem := make([]byte, 8)
	mr, err := all[1].RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
	require.NoError(t, err)
	var sums [maxCalls]*outcome
	for i := range sums {
		sums[i] = sumOf(1, mr.Key(), 0, 1)
		require.NoError(t, sums[i].begin(all[0]))
	}
	sent := 0
	for ; err == nil; sent++ {
		_, err = all[1].e.Send(&transport.Op{Peer: 0, Data: make([]byte, 8)})
	}
	require.ErrorIs(t, err, transport.ErrAgain)
	for range 3 {
		require.NoError(t, all[1].poll())
		require.True(t, all[1].progress(), "answers wait")
	}
	require.EqualValues(t, maxCalls, binary.NativeEndian.Uint64(mem))
	require.False(t, sums[0].done)
	seen := map[uint64]bool{}
	for _, o := range sums {
		pollUntilDone(t, o, all...)
		require.NoError(t, o.err)
		seen[binary.NativeEndian.Uint64(o.Fetch)] = true
	}
	require.Len(t, seen, maxCalls)
	require.Len(t, all[0].received, sent-1)
	require.False(t, all[1].progress())
}

// TestMixedAtomics: both ranks change the same word, by instructions and by requests that the
// owner's progress serves. No change may be lost.
func TestMixedAtomics(t *testing.T) {
	all := sides(t, 2, "auto")
	mem, heap, err := all[1].Alloc(4096)
	require.NoError(t, err)
	private, err := all[1].RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite) // a second region of the same memory
	require.NoError(t, err)
	const rounds = 500
	done := make(chan error, 1)
	go func() { // ends after its rounds; received below
		s := all[1]
		var err error
		for i := 0; i < rounds && err == nil; i++ {
			o := sumOf(1, []uint64{heap.Key(), private.Key()}[i%2], 0, 1)
			if err = o.begin(s); err == nil {
				for !o.done && err == nil {
					err = s.poll()
				}
			}
		}
		for end := time.Now().Add(deadline); err == nil && binary.NativeEndian.Uint64(mem[8:]) == 0 && time.Now().Before(end); {
			err = s.poll()
			word := sumOf(1, heap.Key(), 8, 0)
			_ = word.begin(s)
		}
		done <- err
	}()
	for i := range rounds {
		o := sumOf(1, []uint64{heap.Key(), private.Key()}[i%2], 0, 1)
		require.NoError(t, o.begin(all[0]))
		pollUntilDone(t, o, all[0])
		require.NoError(t, o.err)
	}
	require.NoError(t, sumOf(1, heap.Key(), 8, 1).begin(all[0]))
	require.NoError(t, <-done)
	require.EqualValues(t, 2*rounds, binary.NativeEndian.Uint64(mem))
}

func TestAtomicsAllocateNothing(t *testing.T) {
	all := sides(t, 2, "auto")
	mem := make([]byte, 64)
	private, err := all[1].RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
	require.NoError(t, err)
	_, heap, err := all[1].Alloc(64)
	require.NoError(t, err)
	for name, key := range map[string]uint64{"heap": heap.Key(), "private": private.Key()} {
		o := sumOf(1, key, 8, 3)
		once := func() {
			if err := o.begin(all[0]); err != nil {
				panic(err)
			}
			for !o.done {
				_ = all[1].poll()
				_ = all[0].poll()
			}
		}
		once()
		require.Zero(t, testing.AllocsPerRun(100, once), name)
	}
}

// FuzzControlAtomic handles arbitrary control messages of atomics. They may only cause a protocol
// error, or change the elements of a region.
func FuzzControlAtomic(f *testing.F) {
	request := make([]byte, atomicHeader+16)
	binary.LittleEndian.PutUint32(request[24:], 8)
	request[28], request[29], request[30] = byte(transport.AtomicCswap), byte(transport.Uint64), flagsAll
	f.Add(byte(kindAtomic), append([]byte(nil), request...))
	request[28], request[30] = byte(transport.AtomicSum), flagData|flagFetch
	f.Add(byte(kindAtomic), request[:atomicHeader+8])
	f.Add(byte(kindAtomicDone), make([]byte, atomicDoneLen+8))
	f.Add(byte(kindAtomicDone), []byte{})
	f.Add(byte(63), []byte{1})
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		all := sides(t, 2, "off")
		guard := make([]byte, 24)
		mr, err := all[1].RegisterMemory(guard[8:16], transport.RemoteRead|transport.RemoteWrite)
		require.NoError(t, err)
		if len(b) >= 16 && len(b)%2 == 0 {
			binary.LittleEndian.PutUint64(b[8:], mr.Key()) // a random key would never match
		}
		waiting := sumOf(0, keyValid, 0, 1)
		require.NoError(t, waiting.begin(all[1]))
		err = all[1].controlAtomic(all[1].peers[0], kind, b)
		if err != nil {
			require.ErrorIs(t, err, transport.ErrProtocol)
		}
		require.Equal(t, make([]byte, 16), append(guard[:8:8], guard[16:]...), fmt.Sprint(err))
	})
}
