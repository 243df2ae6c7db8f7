package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/inproc"
)

// TestSendBuffered: rank 0 starts many buffered sends. SendBuffered waits neither for the receiver
// nor for earlier sends, so the following Send to rank 1 can be received first. FlushBuffered
// returns when all buffered sends have ended.
func TestSendBuffered(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, engines []*Engine, cs []*Context) {
		const n = 5000 // more messages than the credit of rank 0 suffices for
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
			// The messages of the buffered sends were not received yet.
			if _, err := c.Recv(background, nil, Env{Peer: 0, Tag: 2}); err != nil {
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

// TestSendBufferedFails: rank 1 dies while buffered sends to it are under way. The next call of
// FlushBuffered returns the error, and the call after that returns nil.
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

// TestListRemovesFromTheMiddle removes nodes from the middle and the end of a list, a node twice,
// and a node that is in no list. The remaining nodes stay in order.
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
