package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/inproc"
)

// TestSendBuffered: SendBuffered waits neither for the receiver nor for earlier sends.
// FlushBuffered waits until all sends have ended.
func TestSendBuffered(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, engines []*Engine, cs []*Context) {
		const n = 5000 // more than there is credit for
		ranks(t, cs, func(c *Context, rank int) error {
			if rank == 0 {
				for i := range n {
					c.SendBuffered(pattern(8, i), Env{Peer: 1, Tag: 1})
				}
				if err := c.Send(background, nil, Env{Peer: 1, Tag: 2}); err != nil {
					return err
				}
				return c.FlushBuffered(background)
			}
			if _, err := c.Recv(background, nil, Env{Peer: 0, Tag: 2}); err != nil { // all of them are unexpected
				return err
			}
			buf := make([]byte, 8)
			for i := range n {
				if _, err := c.Recv(background, buf, Env{Peer: 0, Tag: 1}); err != nil {
					return err
				}
				if err := check(buf, pattern(8, i)); err != nil {
					return err
				}
			}
			return nil
		})
		require.Zero(t, cs[0].buffered)
	})
}

// TestSendBufferedFails: the next FlushBuffered reports the failure of a buffered send, once.
func TestSendBufferedFails(t *testing.T) {
	engines := openJob(t, 2, inproc.NewFabric(), nil)
	c := world(engines)[0]
	for range 1000 {
		c.SendBuffered(make([]byte, 1<<20), Env{Peer: 1, Tag: 1})
	}
	engines[1].Kill()
	require.ErrorIs(t, c.FlushBuffered(t.Context()), ErrProcFailed)
	require.NoError(t, c.FlushBuffered(t.Context()))
	c.SendBuffered(nil, Env{Peer: 1, Tag: 1})
	require.ErrorIs(t, c.FlushBuffered(t.Context()), ErrProcFailed)
}

// TestListRemovesFromTheMiddle removes requests from any place of a list.
func TestListRemovesFromTheMiddle(t *testing.T) {
	var q list
	var rs [5]request
	for i := range rs {
		rs[i].node.req = &rs[i]
	}
	for i := range rs[:4] {
		q.push(&rs[i].node)
	}
	rs[4].node.remove()
	rs[1].node.remove()
	rs[1].node.remove()
	rs[3].node.remove()
	require.Same(t, &rs[0], q.pop())
	q.pushFront(&rs[0].node)
	q.push(&rs[4].node)
	for _, i := range []int{0, 2, 4} {
		require.Same(t, &rs[i], q.pop())
	}
	require.Equal(t, list{}, q)
}
