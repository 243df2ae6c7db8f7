//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSendRecv(t *testing.T) {
	for _, prov := range []string{"shm", "net", "tcp;ofi_rxm", "udp;ofi_rxd", "sockets"} {
		t.Run(prov, func(t *testing.T) {
			a, b := openPair(t, setup{prov: prov})
			recv, send := NewContext("recv"), NewContext("send")
			in, out := make([]byte, 3000), pattern(make([]byte, 3000), 1)
			b.post(func() error { return b.ep.Recv(in, Desc{}, b.peer, recv) })
			a.post(func() error { return a.ep.Send(out, Desc{}, a.peer, send) })
			require.EqualValues(t, 3000, b.wait(recv).Len)
			a.wait(send)
			require.Equal(t, out, in)
		})
	}
}
