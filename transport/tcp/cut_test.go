package tcp

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// relayed returns the two ranks of a connection with checks. The test reads what a rank writes
// from the rank's descriptor in fds, and writes it to the other one.
func relayed(t *testing.T) (n [2]*testRank, fds [2]int) {
	t.Helper()
	s := wire.TCPSession{JobID: "job", Size: 2, To: 1}
	for i := range n {
		n[i], fds[i] = socketRank(t)
		p, err := s.Protection(wire.TCPPlain, i == 0)
		require.NoError(t, err)
		n[i].dom.peer(1).protect(p)
	}
	return n, fds
}

// frames splits a stream into whole frames.
func frames(t *testing.T, b []byte) (all [][]byte) {
	t.Helper()
	for len(b) > 0 {
		size := 0
		if _, n, ok := wire.TCPMsgLen(b); ok {
			size = wire.TCPPrefixSize + n
		} else {
			var f wire.TCPFrame
			k, err := f.Parse(b)
			require.NoError(t, err)
			size = k + int(f.Length)
		}
		all = append(all, b[:size])
		b = b[size:]
	}
	return all
}

// If the last frames of a class are left out, or moved behind the bye, the receiver detects it.
func TestFramesLeftOut(t *testing.T) {
	for name, c := range map[string]struct {
		edit func([][]byte) [][]byte
		want error
	}{
		"nothing":  {func(f [][]byte) [][]byte { return f }, nil},
		"last":     {func(f [][]byte) [][]byte { return slices.Delete(f, 2, 3) }, errFramesMissing},
		"messages": {func(f [][]byte) [][]byte { return f[3:] }, errFramesMissing},
		"controls": {func(f [][]byte) [][]byte {
			return slices.DeleteFunc(f, func(b []byte) bool { return b[0] == byte(wire.TCPRefuse) })
		}, errHeaderCheck}, // the bye is of the same class, so its number is wrong
		"behind": {func(f [][]byte) [][]byte {
			last := f[2]
			return append(slices.Delete(f, 2, 3), last)
		}, errFramesMissing},
	} {
		t.Run(name, func(t *testing.T) {
			n, fds := relayed(t)
			request := &transport.Op{Peer: 1, Data: make([]byte, 1)} // of no region, so the answer is a refusal
			require.NoError(t, n[1].ep.Read(request))
			for i := range 3 {
				done, err := n[0].ep.Send(numbered(i, 12))
				require.NoError(t, err)
				require.True(t, done)
			}
			_, err := send(fds[0], readSome(t, n[1], fds[1], wire.TCPReadSize))
			require.NoError(t, err)
			var b []byte
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			for len(b) < 3*(wire.TCPPrefixSize+12)+wire.TCPRefuseSize+wire.TCPByeSize {
				require.ErrorIs(t, n[0].ep.Shutdown(ctx), context.Canceled)
				b = append(b, readSome(t, n[0], fds[0], 1)...)
			}
			all := frames(t, b)
			require.Len(t, all, 5)
			_, err = send(fds[1], bytes.Join(c.edit(all), nil))
			require.NoError(t, err)
			end := await(t, n[1:], n[1], func(c *transport.Completion) bool {
				return c.Kind == transport.PeerLeft || c.Kind == transport.PeerDown
			})
			if c.want == nil {
				require.Equal(t, transport.PeerLeft, end.Kind)
				return
			}
			require.Equal(t, transport.PeerDown, end.Kind)
			require.ErrorIs(t, end.Err, c.want)
		})
	}
}

// The error for a changed header says so, also if the change makes the header invalid.
func TestChangedBeforeMalformed(t *testing.T) {
	n, fds := relayed(t)
	require.NoError(t, n[0].ep.Write(&transport.Op{Peer: 1, Data: make([]byte, 8)}))
	b := readSome(t, n[0], fds[0], wire.TCPWriteSize+8)
	b[wire.TCPWriteSize-1]++ // of the offset
	_, err := send(fds[1], b)
	require.NoError(t, err)
	require.ErrorIs(t, await(t, n[1:], n[1], kind(transport.PeerDown)).Err, errHeaderCheck)
}
