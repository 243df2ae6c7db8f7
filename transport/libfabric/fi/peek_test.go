//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPeek sends four messages without a posted receive. The receiver finds the first message by
// FlagPeek and receives it. It reserves the second and receives it. It reserves the third and
// discards it. It discards the fourth by FlagPeek with FlagDiscard.
func TestPeek(t *testing.T) {
	const size = 64
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov})
		ctx := NewContext(nil)
		in := make([]byte, size)
		try := func(tag uint64, flags Flags) event {
			msg := &TMsg{Msg: Msg{Addr: b.peer, Context: ctx}, Tag: tag}
			if flags&(FlagPeek|FlagDiscard) == 0 {
				msg.Bufs = [][]byte{in}
			}
			b.post(func() error { return b.ep.TRecvMsg(msg, flags) })
			e := b.ended(ctx)
			return e
		}
		for _, c := range []*Context{nil, ctx} {
			msg := &TMsg{Msg: Msg{Bufs: [][]byte{in}, Addr: b.peer, Context: c}}
			require.Equal(t, ErrInvalid, b.ep.TRecvMsg(msg, FlagClaim), "no message is reserved")
			require.Equal(t, ErrInvalid, b.ep.TRecvMsg(msg, FlagClaim|FlagDiscard))
		}
		// shm before libfabric 1.19 posts a receive instead of looking for a message.
		if prov == "shm" && LibraryVersion() < MakeVersion(1, 19) {
			require.NoError(t, b.ep.TRecvMsg(&TMsg{Msg: Msg{Addr: b.peer, Context: ctx}, Tag: 1}, FlagPeek))
			b.quiet()
			require.NoError(t, b.ep.Cancel(ctx))
			require.ErrorIs(t, b.fail(b.ended(ctx)), ErrCanceled)
			return
		}
		require.ErrorIs(t, b.fail(try(100, FlagPeek)), ErrNoMessage)
		require.ErrorIs(t, b.fail(try(100, FlagPeek|FlagClaim)), ErrNoMessage)
		require.Equal(t, ErrInvalid, b.ep.TRecvMsg(&TMsg{Msg: Msg{Bufs: [][]byte{in}, Addr: b.peer, Context: ctx}}, FlagClaim))

		send := [4]*Context{}
		for tag := range send {
			send[tag] = NewContext(nil)
			out := pattern(make([]byte, size), tag)
			a.post(func() error { return a.ep.TSend(out, Desc{}, a.peer, uint64(tag), send[tag]) })
		}
		found := func(tag uint64, flags Flags) {
			b.until("the message is there", func() bool {
				e := try(tag, flags)
				if e.err == nil && flags&FlagDiscard == 0 {
					require.EqualValues(t, size, e.Len)
					require.Equal(t, tag, e.Tag)
				}
				return e.err == nil
			})
		}
		found(0, FlagPeek)
		require.NoError(t, b.fail(try(0, 0)))
		require.Equal(t, pattern(make([]byte, size), 0), in)
		found(1, FlagPeek|FlagClaim)
		require.NoError(t, b.fail(try(1, FlagClaim)))
		require.Equal(t, pattern(make([]byte, size), 1), in)
		found(2, FlagPeek|FlagClaim)
		require.NoError(t, b.fail(try(2, FlagClaim|FlagDiscard)))
		found(3, FlagPeek|FlagDiscard)
		require.ErrorIs(t, b.fail(try(3, FlagPeek)), ErrNoMessage)
	})
}
