package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/shm"
	"github.com/weft-hpc/weft/transport/tcp"
)

// Pairs of ranks talk by different transports, and a receive from any source
// takes from all of them, awake or asleep.
func TestSeveralTransports(t *testing.T) {
	for name, providers := range map[string][]transport.Provider{
		"two inproc":     {inproc.NewFabric(), inproc.NewFabric(inproc.WithoutRMA())},
		"inproc and tcp": {inproc.NewFabric(), tcp.New()},
		"shm and tcp":    {shm.New(), tcp.New()},
		"tcp":            {tcp.New()},
	} {
		t.Run(name, func(t *testing.T) {
			const n, rounds = 4, 200
			cs := world(openRails(t, n, nil, providers...))
			ranks(t, cs, func(c *Context, rank int) error {
				for round := range rounds {
					size := []int{8, 3000, 200000}[round%3]
					root := round % n
					if rank != root {
						if err := c.Send(background, pattern(size, rank), Env{Peer: root, Tag: round}); err != nil {
							return err
						}
						if _, err := c.Recv(background, nil, Env{Peer: root, Tag: round}); err != nil {
							return err
						}
						continue
					}
					buf := make([]byte, size)
					for range n - 1 {
						st, err := c.Recv(background, buf, Env{Peer: AnySource, Tag: round})
						if err != nil {
							return err
						}
						if err := check(buf, pattern(size, st.Source)); err != nil {
							return fmt.Errorf("from %d: %w", st.Source, err)
						}
						if err := c.Send(background, nil, Env{Peer: st.Source, Tag: round}); err != nil {
							return err
						}
					}
				}
				return nil
			})
			require.Empty(t, cs[0].e.Failed())
		})
	}
}
