package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSettle: rank 1 starts sends and does not wait for them. Rank 0 receives their messages. After
// Settle the sends are complete.
func TestSettle(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, _ []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			for tag := range 20 {
				if rank == 1 {
					c.Isend(pattern(100000, tag), Env{Peer: 0, Tag: tag})
				} else if _, err := c.Recv(background, make([]byte, 100000), Env{Peer: 1, Tag: tag}); err != nil {
					return err
				}
			}
			c.e.Settle(background)
			if left := c.e.Leftovers(); len(left) > 0 {
				return fmt.Errorf("left: %+v", left)
			}
			return nil
		})
	})
}

// TestLeftovers: Leftovers returns the requests that the program has not collected and that have
// failed or are not complete. It leaves out requests of contexts that are hidden, have an odd id,
// or are revoked.
func TestLeftovers(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, engines []*Engine, cs []*Context) {
		hidden := engines[0].OpenContext(2, []int{0, 1})
		hidden.HideLeftovers()
		odd := engines[0].OpenContext(5, []int{0, 1})
		for _, c := range []*Context{hidden, odd} {
			c.Irecv(nil, Env{Peer: 1, Tag: 1})
		}
		ranks(t, cs, func(c *Context, rank int) error {
			if rank == 1 {
				return c.Send(background, make([]byte, 9), Env{Peer: 0, Tag: 2, Mode: Synchronous})
			}
			c.Irecv(make([]byte, 5), Env{Peer: AnySource, Tag: 1}).SetOrigin("a")
			short := c.Irecv(make([]byte, 5), Env{Peer: 1, Tag: 2})
			short.SetOrigin("b")
			reported := c.Irecv(make([]byte, 5), Env{Peer: 1, Tag: 3})
			if _, err := reported.Wait(endedContext()); err == nil {
				return fmt.Errorf("a receive without its message is complete")
			}
			cancelled := c.Irecv(make([]byte, 5), Env{Peer: 1, Tag: 4})
			if err := cancelled.Cancel(); err != nil {
				return err
			}
			for !short.Done() {
				if _, _, err := c.Iprobe(Env{Peer: 1, Tag: 5}); err != nil {
					return err
				}
			}
			return nil
		})
		left := engines[0].Leftovers()
		require.Len(t, left, 2)
		require.Equal(t, Leftover{Kind: LeftRecv, Peer: AnySource, Tag: 1, Origin: "a", number: 1}, left[0])
		require.True(t, left[0].Unfinished())
		require.ErrorIs(t, left[1].Err, ErrTruncate)
		require.False(t, left[1].Unfinished())
		require.Equal(t, "b", left[1].Origin)
		cs[0].Revoke(fmt.Errorf("test"))
		require.Empty(t, engines[0].Leftovers())
	})
}

// TestUnreceived: Unreceived counts the messages of the program that no receive has matched, also
// after their communicator was freed. It does not count those of a revoked communicator.
func TestUnreceived(t *testing.T) {
	for _, end := range []string{"open", "freed", "revoked"} {
		t.Run(end, func(t *testing.T) {
			everyFlavour(t, 2, func(t *testing.T, engines []*Engine, cs []*Context) {
				other := []*Context{engines[0].OpenContext(2, []int{0, 1}), engines[1].OpenContext(2, []int{0, 1})}
				ranks(t, cs, func(c *Context, rank int) error {
					if rank == 0 {
						_, err := c.Recv(background, nil, Env{Peer: 1, Tag: 0})
						return err
					}
					for tag := range 20 {
						other[1].Isend(make([]byte, tag), Env{Peer: 0, Tag: tag})
					}
					return c.Send(background, nil, Env{Peer: 0, Tag: 0}) // arrives after the messages of the other context
				})
				n, few := engines[0].Unreceived()
				require.Equal(t, 20, n)
				require.Len(t, few, maxUnreceived)
				require.Equal(t, Unreceived{Context: 2, Source: 1, Tag: 7, Bytes: 7}, few[7])
				switch end {
				case "freed":
					other[0].Close()
					after, same := engines[0].Unreceived()
					require.Equal(t, 20, after)
					require.Len(t, same, maxUnreceived)
				case "revoked":
					other[0].Revoke(fmt.Errorf("test"))
					after, _ := engines[0].Unreceived()
					require.Zero(t, after)
				}
			})
		})
	}
}
