//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Datagrams go to and fro. They may be lost, so one is sent again until the
// other side has it.
func TestDatagram(t *testing.T) {
	for _, prov := range []string{"udp", "sockets"} {
		t.Run(prov, func(t *testing.T) {
			a, b := openPair(t, setup{prov: prov, ep: EPDgram, caps: CapMsg, cq: CQAttr{Format: CQMsg}})
			prefix := 0
			if a.info.Mode&ModeMsgPrefix != 0 {
				prefix = a.info.EP.MsgPrefixSize
			}
			for i, size := range []int{1, 100, 1400} {
				for from, to := range map[*node]*node{a: b, b: a} {
					in, out := make([]byte, prefix+size), make([]byte, prefix+size)
					pattern(out[prefix:], i)
					recv := NewContext(nil)
					to.post(func() error { return to.ep.Recv(in, Desc{}, AddrUnspec, recv) })
					for recv.InFlight() {
						send := NewContext(nil)
						from.post(func() error { return from.ep.Send(out, Desc{}, from.peer, send) })
						from.wait(send)
						for range 1000 {
							to.progress()
						}
					}
					e := to.wait(recv)
					require.EqualValues(t, len(in), e.Len)
					require.Equal(t, out[prefix:], in[prefix:])
				}
			}
			small, recv := pattern(make([]byte, prefix+8), 3), NewContext(nil)
			in := make([]byte, prefix+8)
			b.post(func() error { return b.ep.Recv(in, Desc{}, AddrUnspec, recv) })
			b.until("an injected datagram", func() bool {
				a.post(func() error { return a.ep.Inject(small, a.peer) })
				return !recv.InFlight()
			})
			require.Equal(t, small[prefix:], in[prefix:])
		})
	}
}
