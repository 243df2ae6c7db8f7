//go:build libfabric

package libfabric

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// FuzzMessage lets a rank receive messages of one peer: with valid frames of any number and kind,
// and with any other bytes. For each input, the state of the peer is that of a peer from which no
// message has arrived. The rank must deliver at most peer.got messages, have at most maxEarly early
// messages at a time, and report the peer as down at most once. The input is a sequence of
//
//	│ length: 1 byte │ how: 1 byte │ a message of length bytes │
//
// If bit 0 of how is set, the test puts the peer's token and rank into the message's frame. If bit
// 1 is set, too, the test puts a number into it: the next one in order plus how >> 2.
func FuzzMessage(f *testing.F) {
	part := func(how byte, k kind, text string) []byte {
		b := make([]byte, frameSize)
		frame{0, 1, k, 0}.put(b)
		b = append(b, text...)
		return append([]byte{byte(len(b)), how}, b...)
	}
	next, later := part(3, kindData, "a"), part(3|1<<2, kindData, "b")
	f.Add(next)
	f.Add(append(bytes.Clone(later), next...))
	f.Add(bytes.Join([][]byte{later, later, next}, nil))
	f.Add(bytes.Join([][]byte{next, part(3, kindClose, ""), next, part(3, kindCloseAck, "")}, nil))
	f.Add(append(part(3|2<<2, kindClose, ""), part(3, kindCloseAck+1, "")...))
	f.Add(part(0, kindData, "stranger"))
	f.Add([]byte{5, 0, 1, 2, 3, 4, 5})
	a, _ := pair(f, "tcp;ofi_rxm", nil)
	d := a.dom
	rx := d.tokens(1).rx
	f.Fuzz(func(t *testing.T, in []byte) {
		d.peers[1] = peer{rx: rx}
		d.pendingAcks, a.msgs, a.seen = nil, nil, nil
		for len(in) >= 2 {
			how, n := in[1], min(int(in[0]), len(in)-2)
			b := bytes.Clone(in[2 : 2+n])
			in = in[2+n:]
			if how&1 != 0 && len(b) >= frameSize {
				g, _, _ := parseFrame(b)
				g.token, g.source = rx, 1
				if how&2 != 0 {
					g.number = (d.peers[1].got + 1 + uint32(how>>2)) & numberMask
				}
				g.put(b)
			}
			d.message(b)
			for range 3 { // the second and third poll deliver messages for which the first had no room
				a.poll(t)
			}
			if e := d.peers[1].early; e != nil {
				require.LessOrEqual(t, len(e.kept), maxEarly)
			}
		}
		require.LessOrEqual(t, kinds(a.seen, transport.PeerDown), 1)
		require.LessOrEqual(t, len(a.msgs), int(d.peers[1].got))
	})
}

// FuzzAddress checks that, for a text that encode accepts, decode returns a text for which encode
// returns the same bytes again. If encode or decode rejects an input, the error must be ErrAddress.
func FuzzAddress(f *testing.F) {
	formats := []fi.AddrFormat{fi.SockaddrIn, fi.SockaddrIn6, fi.AddrStr, fi.AddrEFA}
	for i, text := range []string{"192.0.2.1:4000", "[fe80::1%3]:1", "fi_shm://4711:0:1", "hex:00ff10"} {
		b, err := encode(formats[i], transport.Address(text))
		require.NoError(f, err)
		f.Add(uint8(i), []byte(text))
		f.Add(uint8(i), b)
	}
	f.Fuzz(func(t *testing.T, format uint8, in []byte) {
		af := formats[int(format)%len(formats)]
		if b, err := encode(af, transport.Address(in)); err == nil {
			text, err := decode(af, b)
			require.NoError(t, err)
			again, err := encode(af, text)
			require.NoError(t, err)
			require.Equal(t, b, again)
		} else {
			require.ErrorIs(t, err, transport.ErrAddress)
		}
		if _, err := decode(af, in); err != nil {
			require.ErrorIs(t, err, transport.ErrAddress)
		}
	})
}
