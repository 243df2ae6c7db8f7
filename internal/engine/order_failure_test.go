package engine

import (
	"testing"

	"github.com/stretchr/testify/require"
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
