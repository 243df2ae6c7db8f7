//go:build linux && !portable

package shm

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// TestKeysAreNotUsedAgain registers and closes memory 1000 times. All registrations use the same
// entry of the table of regions (its slot), and all have different keys.
func TestKeysAreNotUsedAgain(t *testing.T) {
	d := sides(t, 1, "auto")[0]
	seen := map[uint64]bool{}
	for range 1000 {
		mr, err := d.RegisterMemory(make([]byte, 8), transport.RemoteRead)
		require.NoError(t, err)
		require.False(t, seen[mr.Key()])
		seen[mr.Key()] = true
		require.Equal(t, uint64(keyValid), mr.Key()&(keyValid|keyShared))
		require.NoError(t, mr.Close())
	}
	require.Len(t, d.transfers.regions.slots, 1)
}

// TestFullTable registers as many regions as the table has entries. RegisterMemory refuses another
// region until one of them is closed.
func TestFullTable(t *testing.T) {
	all := sides(t, 2, "auto")
	a, b := all[0], all[1]
	require.Len(t, b.transfers.regions.entries, maxRegions)
	mem := []byte("0123456789")
	var last, first transport.MemoryRegion
	for i := range maxRegions {
		mr, err := b.RegisterMemory(mem, transport.RemoteRead)
		require.NoError(t, err)
		if last = mr; i == 0 {
			first = mr
		}
	}
	read := func(key uint64) error {
		o := &outcome{Op: transport.Op{Peer: 1, RemoteKey: key, RemoteAddr: 3, Data: make([]byte, 4)}}
		require.NoError(t, a.post(o, false))
		pollUntilDone(t, o, a, b)
		if o.err == nil {
			require.Equal(t, "3456", string(o.Data))
		}
		return o.err
	}
	_, err := b.RegisterMemory(mem, transport.RemoteRead)
	require.ErrorIs(t, err, transport.ErrAgain)
	require.NoError(t, read(first.Key()))
	require.NoError(t, read(last.Key()))
	require.ErrorIs(t, read(last.Key()+1<<randomBits), transport.ErrKey)
	require.ErrorIs(t, read(last.Key()+5), transport.ErrKey, "no such slot")
	gone := last.Key()
	require.NoError(t, last.Close())
	require.ErrorIs(t, read(gone), transport.ErrKey)
	again, err := b.RegisterMemory(mem, transport.RemoteRead)
	require.NoError(t, err)
	require.NoError(t, read(again.Key()))
}

// TestRegistrationBeforeThePeers registers memory before the addresses are inserted, so there is no
// shared memory yet. After the insertion, the region must be in the table in shared memory.
func TestRegistrationBeforeThePeers(t *testing.T) {
	cfg := transport.Config{Size: 1, JobID: "alone"}
	d, err := New().Open(cfg)
	require.NoError(t, err)
	defer d.Close()
	mr, err := d.RegisterMemory([]byte("hello"), transport.RemoteRead)
	require.NoError(t, err)
	av, err := d.OpenAV()
	require.NoError(t, err)
	cq, err := d.OpenCQ()
	require.NoError(t, err)
	ep, err := d.OpenEndpoint(av, cq)
	require.NoError(t, err)
	_, err = av.Insert([]transport.Address{ep.Address()})
	require.NoError(t, err)
	x := d.(*domain)
	e, addr, err := x.lookup(x.local(0), mr.Key(), 1, 4, transport.RemoteRead)
	require.NoError(t, err)
	got := make([]byte, 4)
	require.NoError(t, x.local(0).pull(got, addr))
	require.Equal(t, "ello", string(got))
	require.Equal(t, mr.Key(), e.key.Load())
}

// TestCloseAwaitsWriters closes a region while a peer announces in its hazard line, as with hazard
// pointers, that it is writing to the region. Close must not return before the peer clears the
// line.
func TestCloseAwaitsWriters(t *testing.T) {
	all := sides(t, 2, "auto")
	a, b := all[0], all[1]
	mr, err := b.RegisterMemory(make([]byte, 8), transport.RemoteWrite)
	require.NoError(t, err)
	hazard := &a.seg.claims(0).hazards.key
	hazard.Store(mr.Key())
	closed := make(chan error)
	key := mr.Key()
	go func() { closed <- mr.Close() }() // ends when the hazard line is cleared; received below
	entry := &b.transfers.regions.entries[key&slotMask]
	for entry.key.Load() == key { // until Close has removed the key
	}
	select {
	case err := <-closed:
		require.Fail(t, "closed while a peer writes", "%v", err)
	default:
	}
	hazard.Store(0)
	require.NoError(t, <-closed)
}

// TestCloseUnderUnhelpedProcess has rank 0 close regions while the child writes to them. The child
// copies all bytes itself, in pieces of up to 512 KiB, and does not request that rank 0 copies a
// part of them. Close must wait until the child has written its piece, and no byte may change after
// Close.
func TestCloseUnderUnhelpedProcess(t *testing.T) {
	const n = 1 << 20
	if asChild(t, func(s *side, _ string) error {
		// While a rank has a message that peers will fetch, it does not ask the peer to copy a part of its
		// transfers. So this region makes the child copy all bytes itself.
		if _, err := s.RegisterMemory(make([]byte, 8), messageAccess); err != nil {
			return err
		}
		w := &outcome{Op: transport.Op{Data: bytes.Repeat([]byte{0xAA}, n)}}
		for {
			if len(s.received) > 0 {
				w.RemoteKey, s.received = s.received[len(s.received)-1], nil
			}
			if w.RemoteKey == 1 {
				return nil
			}
			if err := s.post(w, true); err != nil {
				return err
			}
			if s.transfers.lines.n != claimLines {
				return errors.New("the child has requested help")
			}
			if err := s.finish(w); err != nil && !errors.Is(err, transport.ErrKey) {
				return err
			}
			if err := s.poll(); err != nil {
				return err
			}
		}
	}) {
		return
	}
	s, cmd := withChild(t, "auto")
	mem, canary := make([]byte, n), bytes.Repeat([]byte{0xEE}, n)
	amid := 0
	for i := range 100 {
		clear(mem)
		mr, err := s.RegisterMemory(mem, transport.RemoteWrite)
		require.NoError(t, err)
		require.NoError(t, s.tell(mr.Key()))
		for end := time.Now().Add(deadline); mem[0] == 0; {
			require.NoError(t, s.poll())
			require.True(t, time.Now().Before(end), "the child does not write")
		}
		for range i % 50 {
			require.NoError(t, s.poll())
		}
		if mem[n-1] == 0 {
			amid++
		}
		closed := make(chan error, 1)
		go func() { closed <- mr.Close() }() // ends when Close returns; the test receives from closed below, or fails
		select {
		case err := <-closed:
			require.NoError(t, err)
		case <-time.After(deadline):
			require.FailNow(t, "Close does not return")
		}
		// Go from the end to the beginning, against the direction of the copies, so that a late
		// copy overwrites some of the bytes.
		for to := n; to > 0; to -= pageSize {
			copy(mem[to-pageSize:to], canary)
		}
		for range 50 {
			require.NoError(t, s.poll())
		}
		require.True(t, bytes.Equal(canary, mem), "touched after Close")
	}
	t.Logf("%d of 100 Closes were in the middle of the first piece", amid)
	require.NoError(t, s.tell(1))
	for end := time.Now().Add(deadline); len(s.ends) == 0; {
		require.NoError(t, s.poll())
		require.True(t, time.Now().Before(end), "the child does not leave")
	}
	require.NoError(t, cmd.Wait())
}

// TestEntriesOfABadPeer writes wrong addresses and sizes to the table in which rank 1 lists its
// regions. A read or write by rank 0 must fail, without a change of memory of rank 0 outside of the
// buffer.
func TestEntriesOfABadPeer(t *testing.T) {
	all := sides(t, 2, "auto")
	a, b := all[0], all[1]
	mem := make([]byte, 100)
	mr, err := b.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
	require.NoError(t, err)
	e := &b.transfers.regions.entries[mr.Key()&slotMask]
	for _, write := range []bool{false, true} {
		for _, addr := range []uint64{0, 4096, 1<<64 - 50, 1 << 63} {
			e.addr.Store(addr)
			e.size.Store(1<<64 - 1)
			dst, intact := fenced(100)
			o := &outcome{Op: transport.Op{Peer: 1, RemoteKey: mr.Key(), Data: dst}}
			require.NoError(t, a.post(o, write))
			pollUntilDone(t, o, b, a)
			require.Error(t, o.err)
			require.True(t, intact())
		}
	}
	require.Empty(t, a.ends)
	require.EqualValues(t, 0, a.seg.claims(0).hazards.key.Load())
}
