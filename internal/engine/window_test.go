package engine

import (
	"fmt"
	"testing"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/tcp"
)

// BenchmarkWindow measures rounds, as osu_bw does. In each round 64 messages from rank 0 to rank 1
// are under way at once, and a small answer follows. Both ranks are in this process.
func BenchmarkWindow(b *testing.B) {
	for name, open := range map[string]func() transport.Provider{
		"inproc": func() transport.Provider { return inproc.NewFabric() },
		"tcp":    tcp.New,
	} {
		for _, size := range []int{8, 8192, 65536, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				const window = 64
				cs := world(openJob(b, 2, open(), nil))
				rounds := b.N
				b.SetBytes(int64(window * size))
				b.ReportAllocs()
				ranks(b, cs, func(c *Context, rank int) error {
					buf, ack := make([]byte, size), make([]byte, 1)
					rs := make([]Request, window)
					for range rounds {
						for i := range rs {
							if rank == 0 {
								rs[i] = c.Isend(buf, Env{Peer: 1})
							} else {
								rs[i] = c.Irecv(buf, Env{Peer: 0})
							}
						}
						for i := range rs {
							if _, err := rs[i].Wait(background); err != nil {
								return err
							}
						}
						if rank == 1 {
							if err := c.Send(background, ack, Env{Peer: 0, Tag: 1}); err != nil {
								return err
							}
						} else if _, err := c.Recv(background, ack, Env{Peer: 1, Tag: 1}); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}
