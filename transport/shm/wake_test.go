//go:build linux && !portable

package shm

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// asleepRank makes rank n call Arm, and then Wait in a goroutine. It returns a channel that
// receives the result of Wait.
func asleepRank(t *testing.T, n *node) <-chan error {
	t.Helper()
	require.Eventually(t, func() bool { n.read(t); return n.cq.Arm() }, deadline, time.Microsecond)
	woken := make(chan error, 1)
	go func() { woken <- n.cq.Wait(deadline) }() // ends at the deadline at the latest
	return woken
}

// wakes checks that the Wait of a rank from asleepRank ends well before its timeout. woken is the
// channel from asleepRank.
func wakes(t *testing.T, woken <-chan error) {
	t.Helper()
	select {
	case err := <-woken:
		require.NoError(t, err)
	case <-time.After(deadline / 2):
		require.Fail(t, "the rank still sleeps")
	}
}

// TestEndFoundWhileAsleep has one goroutine of a rank Wait, while another goroutine calls Send for
// a peer that has ended. Send detects the end, which must end the Wait, so that the next Read
// reports the end. The peer has sent a message before (known), or nothing.
func TestEndFoundWhileAsleep(t *testing.T) {
	for _, known := range []bool{false, true} {
		for _, leaves := range []bool{false, true} {
			all := nodes(t, 2, New())
			n, p := all[0], all[1]
			if known {
				p.send(t, 0, nil)
				n.await(t, transport.RecvDone)
			}
			woken := asleepRank(t, n)
			if leaves {
				// Act as if the peer had left, but had not yet signalled the other ranks.
				p.seg.state(1).state.Store(cardLeft)
			} else {
				p.liveness.end()
			}
			_, err := n.ep.Send(&transport.Op{Peer: 1})
			require.Equal(t, known, err == nil, "%v", err)
			wakes(t, woken)
			kind := transport.PeerDown
			if leaves {
				kind = transport.PeerLeft
			}
			n.await(t, kind)
		}
	}
}

// TestEndWhileAsleepAmongMany has a rank Wait that has not communicated with any of 199 others.
// When one of the others ends, the Wait must end, and the next Read must report PeerDown.
func TestEndWhileAsleepAmongMany(t *testing.T) {
	all := nodes(t, 200, New())
	for _, victim := range []int{199, 70} {
		woken := asleepRank(t, all[0])
		all[victim].liveness.end()
		wakes(t, woken)
		c := all[0].read(t)
		require.Len(t, c, 1)
		require.Equal(t, transport.PeerDown, c[0].Kind)
		require.EqualValues(t, victim, c[0].Peer)
	}
}

// TestSignalsBesideClose closes three ranks, one of which is in Wait, while other goroutines call
// the Asleep, Notify and Signal of each rank. No call may crash, and the Wait must end.
func TestSignalsBesideClose(t *testing.T) {
	for range 10 {
		all := nodes(t, 3, New())
		all[0].send(t, 1, nil) // so that rank 0 has mapped the ring to rank 1
		all[1].await(t, transport.RecvDone)
		woken := asleepRank(t, all[1])
		var stop atomic.Bool
		var others sync.WaitGroup
		for i, n := range all {
			others.Go(func() { // ends when stop is set; others.Wait waits for it
				for k := i; !stop.Load(); k++ {
					runtime.Gosched()
					n.Asleep()
					n.Notify(transport.Addr(k % 4))
					if k%5 == 0 {
						n.cq.Signal()
					}
				}
			})
		}
		for _, n := range all {
			require.NoError(t, n.Close())
		}
		// The garbage collection runs the cleanups that unmap the shared memory of closed
		// domains. A goroutine that still used that memory would crash.
		runtime.GC()
		runtime.GC()
		require.False(t, all[2].Asleep())
		stop.Store(true)
		others.Wait()
		require.True(t, func() bool { err := <-woken; return err == nil || errors.Is(err, transport.ErrClosed) }())
		require.ErrorIs(t, all[1].cq.Wait(deadline), transport.ErrClosed)
	}
}
