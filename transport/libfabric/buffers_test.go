//go:build libfabric

package libfabric

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// TestLostBuffer breaks a message of rank 1 into a multi-receive buffer of a provider that puts
// messages into it without gaps and releases it early. The buffer must not be posted while a
// message of rank 2 may still arrive in it, and must become a spare one after that.
func TestLostBuffer(t *testing.T) {
	d := &domain{lane: &lane{info: fi.NewInfo()}, cfg: config(0, 5), multiRecv: true, packed: true, peers: make([]peer, 5)}
	a, err := newArena(1000, 5, 0, true)
	require.NoError(t, err)
	defer a.release()
	d.arena, a.toPost = a, nil
	at := make([]int, len(a.bufs))
	got := 0
	arrive := func(from transport.Addr, i int, flags fi.Flags) {
		p := d.tokens(from)
		b := a.bufs[i].mem[at[i]:][:frameSize+1]
		frame{p.rx, uint32(from), kindData, p.got + 1}.put(b)
		at[i] += len(b)
		require.NoError(t, d.received(i, &fi.RawEntry{Len: uint64(len(b)), Buf: fi.AddressOf(b), Flags: flags}))
		got++
	}
	for from := range transport.Addr(3) {
		arrive(from+1, 1, 0)
	}
	fail := func() {
		require.NoError(t, d.receiveFailed(0, &fi.RawError{Err: fi.ErrCanceled}))
	}
	fail()
	require.Empty(t, a.lost, "the provider has not released the buffer")
	arrive(3, 0, 0)
	require.Empty(t, a.toPost)
	at[0] += 500 // a message of rank 2 is under way here
	arrive(3, 0, fi.FlagMultiRecv)
	require.Equal(t, []int{0}, a.lost)
	require.Len(t, a.toPost, 1, "a spare buffer instead")
	require.Len(t, a.spares, spareBuffers-1)
	arrive(3, 1, 0)
	require.Equal(t, []int{0}, a.lost)
	_ = d.peerDown(1, "receive", errRefused)
	arrive(3, 1, 0)
	require.Equal(t, []int{0}, a.lost, "the message of rank 2 may still arrive")
	arrive(2, 1, 0) // the next message of rank 2, so that in buffer 0 is complete
	require.Equal(t, []int{0}, a.lost, "the first message of rank 4 may be under way")
	arrive(4, 1, 0)
	require.Empty(t, a.lost)
	require.Len(t, a.spares, spareBuffers)
	require.Contains(t, a.spares, 0)
	require.Equal(t, 3+2+4, got)
}

// TestBrokenBuffer breaks a message into a multi-receive buffer of a provider that releases each buffer
// last. The buffer must be posted again when it is released, and not before.
func TestBrokenBuffer(t *testing.T) {
	d := &domain{lane: &lane{info: fi.NewInfo()}, cfg: config(0, 2), multiRecv: true, peers: make([]peer, 2)}
	a, err := newArena(1000, 2, 0, true)
	require.NoError(t, err)
	defer a.release()
	d.arena, a.toPost = a, nil
	require.NoError(t, d.receiveFailed(2, &fi.RawError{Err: fi.ErrIO}))
	require.Empty(t, a.toPost)
	require.NoError(t, d.receiveFailed(2, &fi.RawError{Err: fi.ErrIO, Flags: fi.FlagMultiRecv}))
	require.Equal(t, []int{2}, a.toPost)
	require.Len(t, a.spares, spareBuffers)
}
