package local

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// from returns a completion with the given peer, by which the test recognises the completion.
func from(peer int) transport.Completion {
	return transport.Completion{Kind: transport.OpDone, Peer: transport.Addr(peer), Op: &transport.Op{}}
}

// peers returns the Peer of each of the first n completions.
func peers(cs []transport.Completion, n int) []int {
	ps := []int{}
	for _, c := range cs[:n] {
		ps = append(ps, int(c.Peer))
	}
	return ps
}

func TestCompletionsWaitForRoom(t *testing.T) {
	var c Completions
	require.False(t, c.Emit(from(0)), "outside of a Read")
	require.True(t, c.Pending())

	user := make([]transport.Completion, 5)
	c.Begin(user[:2])
	require.False(t, c.Pending())
	require.False(t, c.Full())
	require.Equal(t, 1, c.Room())
	require.True(t, c.Emit(from(1)))
	require.True(t, c.Full())
	require.Zero(t, c.Room())
	require.False(t, c.Emit(from(2)))
	require.False(t, c.Emit(from(3)))
	require.True(t, c.Pending())
	require.Equal(t, 2, c.End())
	require.Equal(t, []int{0, 1}, peers(user, 2))
	require.Zero(t, user[2], "beyond the slice of the Read")
	require.True(t, c.Full(), "outside of a Read")
	require.Nil(t, c.Out)

	c.Begin(user[:1])
	require.True(t, c.Pending())
	require.False(t, c.Emit(from(4)))
	require.Equal(t, 1, c.End())
	require.Equal(t, []int{2}, peers(user, 1))

	c.Begin(user)
	require.False(t, c.Pending())
	require.True(t, c.Emit(from(5)))
	require.Equal(t, 3, c.End())
	require.Equal(t, []int{3, 4, 5}, peers(user, 3))
	for _, x := range c.later[:cap(c.later)] {
		require.Zero(t, x, "later keeps no completion that was returned")
	}
}

func TestCompletionsLater(t *testing.T) {
	var c Completions
	user := make([]transport.Completion, 3)
	c.Begin(user)
	c.Later(from(0))
	require.True(t, c.Pending())
	require.False(t, c.Full(), "room for messages")
	c.Out = append(c.Out, from(1))
	require.False(t, c.Emit(from(2)), "it must not overtake the completion that waits")
	require.Equal(t, 1, c.End())
	require.Equal(t, []int{1}, peers(user, 1))
	c.Begin(user)
	require.Equal(t, 2, c.End())
	require.Equal(t, []int{0, 2}, peers(user, 2))
}

// TestCompletionsLeaveRoom checks that completions that wait, if none of them is a message, fill
// only half of the slice of a Read. The other half is left for messages.
func TestCompletionsLeaveRoom(t *testing.T) {
	var c Completions
	for i := range 7 {
		c.Emit(from(i))
	}
	user := make([]transport.Completion, 4)
	c.Begin(user)
	require.Equal(t, 2, c.Room())
	require.True(t, c.Pending())
	require.False(t, c.Emit(from(7)), "it must not overtake the others")
	c.Out = append(c.Out, from(100), from(101))
	require.Equal(t, 4, c.End())
	require.Equal(t, []int{0, 1, 100, 101}, peers(user, 4))
	for _, want := range [][]int{{2, 3}, {4, 5}, {6, 7}, {}} {
		c.Begin(user)
		require.Equal(t, want, peers(user, c.End()))
	}
	require.False(t, c.Pending())
}

// TestMessagesKeepTheirOrder makes messages wait for later Reads. The Reads return them in their
// order, and no message that arrives later overtakes them.
func TestMessagesKeepTheirOrder(t *testing.T) {
	var c Completions
	message := func(peer int) transport.Completion {
		return transport.Completion{Kind: transport.RecvDone, Peer: transport.Addr(peer)}
	}
	require.False(t, c.Message(message(0)), "outside of a Read")
	for i := range 5 {
		c.Later(message(i))
	}
	c.Later(from(5))
	user := make([]transport.Completion, 4)
	c.Begin(user)
	require.True(t, c.Full())
	require.False(t, c.Message(message(6)))
	c.Later(message(6))
	require.Equal(t, []int{0, 1, 2, 3}, peers(user, c.End()))
	c.Begin(user)
	require.True(t, c.Message(message(7)), "none waits, and there is room")
	require.Equal(t, []int{4, 5, 6, 7}, peers(user, c.End()))
	require.False(t, c.Pending())
}

// TestCompletionsOrder emits completions in and between Reads of random sizes. Reads return each
// completion once, in the order of Emit.
func TestCompletionsOrder(t *testing.T) {
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, seed))
	var c Completions
	given, emitted := 0, 0
	emit := func() {
		for range rnd.IntN(6) {
			c.Emit(from(emitted))
			emitted++
		}
	}
	for range 1000 {
		user := make([]transport.Completion, rnd.IntN(8))
		emit()
		c.Begin(user)
		emit()
		n := c.End()
		for _, p := range peers(user, n) {
			require.Equal(t, given, p)
			given++
		}
		require.Equal(t, given < emitted, c.Pending())
	}
}

func TestCompletionsAllocateNothing(t *testing.T) {
	var c Completions
	user := make([]transport.Completion, 8)
	x := from(0)
	require.Zero(t, testing.AllocsPerRun(500, func() {
		for range 6 {
			c.Emit(x)
		}
		c.Begin(user) // moves four of the six
		c.Emit(x)     // waits behind the others
		c.End()
		c.Begin(user) // moves the three that wait
		c.Emit(x)
		c.End()
		require.False(t, c.Pending())
	}))
}

// TestCompletionsStayBounded emits completions for so long that some always wait. The memory for
// those that wait depends on their number, not on the number of all.
func TestCompletionsStayBounded(t *testing.T) {
	var c Completions
	user := make([]transport.Completion, 4)
	for range 20 {
		c.Emit(from(0))
	}
	for range 10000 {
		c.Emit(from(0))
		c.Emit(from(0))
		c.Begin(user)
		require.Equal(t, 2, c.End())
	}
	require.True(t, c.Pending())
	require.Less(t, cap(c.later), 200)
}
