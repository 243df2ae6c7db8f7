package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/inproc"
)

// TestALostMessageIsNotOvertaken: rank 1 sends a large message, whose RTS arrives, and then a small
// one with the same tag, which arrives whole. Then rank 1 dies. The first receive fails, because
// the data of the large message is lost, and does not get the small message. The second receive
// gets it.
func TestALostMessageIsNotOvertaken(t *testing.T) {
	for _, ask := range []Env{{Peer: 1, Tag: 1}, {Peer: 1, Tag: AnyTag}, {Peer: AnySource, Tag: 1}} {
		everyFlavour(t, 2, func(t *testing.T, engines []*Engine, cs []*Context) {
			cs[1].Isend(make([]byte, 2<<20), Env{Peer: 0, Tag: 1})
			cs[1].Isend(nil, Env{Peer: 0, Tag: 1})
			cs[1].Isend(nil, Env{Peer: 0, Tag: 2})
			_, err := cs[0].Recv(background, nil, Env{Peer: 1, Tag: 2})
			require.NoError(t, err)
			engines[1].Kill()
			_, err = cs[0].Recv(background, nil, Env{Peer: 1, Tag: 3})
			require.ErrorIs(t, err, ErrProcFailed)

			_, err = cs[0].Probe(background, ask)
			require.ErrorIs(t, err, ErrProcFailed)
			_, _, _, err = cs[0].Improbe(ask)
			require.ErrorIs(t, err, ErrProcFailed)
			_, err = cs[0].Recv(background, make([]byte, 2<<20), ask)
			require.ErrorIs(t, err, ErrProcFailed)
			st, err := cs[0].Recv(background, nil, ask)
			require.NoError(t, err)
			require.Equal(t, Status{Source: 1, Tag: 1}, st)
			_, err = cs[0].Recv(background, nil, ask)
			require.ErrorIs(t, err, ErrProcFailed)
		})
	}
}

// TestALostMessageOfAnAcknowledgedRankIsDropped: rank 1 sends a large message, whose RTS arrives, and
// dies. Rank 2 sends a small message with the same tag. Calls of rank 0 that accept any source fail
// because of the RTS until rank 0 acknowledges the failure. Then they find the message of rank 2, and
// rank 0 counts the message of rank 1 as unreceived. A call that names rank 1 still fails.
func TestALostMessageOfAnAcknowledgedRankIsDropped(t *testing.T) {
	for name, find := range map[string]func(c *Context, env Env) (Status, error){
		"probe": func(c *Context, env Env) (Status, error) {
			if _, err := c.Probe(background, env); err != nil {
				return Status{}, err
			}
			return c.Recv(background, nil, env)
		},
		"improbe": func(c *Context, env Env) (Status, error) {
			m, _, ok, err := c.Improbe(env)
			if !ok {
				return Status{}, err
			}
			return m.Recv(background, nil)
		},
		"recv":  func(c *Context, env Env) (Status, error) { return c.Recv(background, nil, env) },
		"irecv": func(c *Context, env Env) (Status, error) { return c.Irecv(nil, env).Wait(background) },
	} {
		for _, tag := range []int{1, AnyTag} {
			t.Run(fmt.Sprintf("%s/tag %d", name, tag), func(t *testing.T) {
				engines := openJob(t, 3, inproc.NewFabric(), nil)
				cs := world(engines)
				cs[1].Isend(make([]byte, 2<<20), Env{Peer: 0, Tag: 1})
				_, err := cs[0].Probe(background, Env{Peer: 1, Tag: 1})
				require.NoError(t, err)
				require.NoError(t, cs[2].Send(background, nil, Env{Peer: 0, Tag: 1}))
				_, err = cs[0].Probe(background, Env{Peer: 2, Tag: 1})
				require.NoError(t, err)
				engines[1].Kill()
				_, err = cs[0].Recv(background, nil, Env{Peer: 1, Tag: 3})
				require.ErrorIs(t, err, ErrProcFailed)

				ask := Env{Peer: AnySource, Tag: tag}
				_, err = cs[0].Probe(background, ask)
				require.ErrorIs(t, err, ErrProcFailed)
				cs[0].Acknowledge()
				_, err = cs[0].Probe(background, Env{Peer: 1, Tag: tag})
				require.ErrorIs(t, err, ErrProcFailed)
				st, err := find(cs[0], ask)
				require.NoError(t, err)
				require.Equal(t, Status{Source: 2, Tag: 1}, st)
				n, few := engines[0].Unreceived()
				require.Equal(t, 1, n)
				require.Equal(t, []Unreceived{{Source: 1, Tag: 1, Bytes: 2 << 20}}, few)
				_, err = cs[0].Recv(background, nil, Env{Peer: 1, Tag: 1})
				require.ErrorIs(t, err, ErrProcFailed)
			})
		}
	}
}
