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

// relayed returns two ranks. Each has a connection, with keys for the checks of headers, to the
// test. The other end of the connection of n[i] is fds[i]. So the test is a relay: it reads from
// fds[0] what n[0] writes, and passes it on to n[1] by a write to fds[1], and the other way round.
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

// frames splits b, which consists of whole frames, into these frames.
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

// Rank 0 sends three messages, a refusal and the bye. The test changes the sequence of these frames
// on the way: it leaves out frames, or moves a message behind the bye. Rank 1 reports the change as
// PeerDown, and reports PeerLeft if nothing was changed.
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
		}, errHeaderCheck}, // the bye is in the class of the refusal, so its check is for another number
		"behind": {func(f [][]byte) [][]byte {
			last := f[2]
			return append(slices.Delete(f, 2, 3), last)
		}, errFramesMissing},
	} {
		t.Run(name, func(t *testing.T) {
			n, fds := relayed(t)
			request := &transport.Op{Peer: 1, Data: make([]byte, 1)} // its key names no region, so the answer is a refusal
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

// The test changes a byte in the header of a write frame, so that the header is no longer valid.
// The receiver reports that the header was changed on the way, and not that the peer sent an
// invalid one.
func TestChangedBeforeMalformed(t *testing.T) {
	n, fds := relayed(t)
	require.NoError(t, n[0].ep.Write(&transport.Op{Peer: 1, Data: make([]byte, 8)}))
	b := readSome(t, n[0], fds[0], wire.TCPWriteSize+8)
	b[wire.TCPWriteSize-1]++ // the highest byte of the offset
	_, err := send(fds[1], b)
	require.NoError(t, err)
	require.ErrorIs(t, await(t, n[1:], n[1], kind(transport.PeerDown)).Err, errHeaderCheck)
}
