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

// asleepRank lets n Wait in a goroutine. The channel that it returns receives Wait's error.
func asleepRank(t *testing.T, n *node) <-chan error {
	t.Helper()
	require.Eventually(t, func() bool { n.read(t); return n.cq.Arm() }, deadline, time.Microsecond)
	woken := make(chan error, 1)
	go func() { woken <- n.cq.Wait(deadline) }() // ends at the deadline
	return woken
}

// wakes checks that a rank from asleepRank is woken well before Wait's timeout.
func wakes(t *testing.T, woken <-chan error) {
	t.Helper()
	select {
	case err := <-woken:
		require.NoError(t, err)
	case <-time.After(deadline / 2):
		require.Fail(t, "the rank still sleeps")
	}
}

// TestEndFoundWhileAsleep: one goroutine of a rank waits. Another detects in Send that a peer has
// ended, which must wake the first one so that it reports the end. The peer has sent messages
// before (known), or nothing.
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
				p.seg.state(1).state.Store(cardLeft) // it has not yet signalled its peers
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

// TestEndWhileAsleepAmongMany: a rank sleeps that has not communicated with any of many others. When
// one of them ends, the next Read must report that end.
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

// TestSignalsBesideClose closes ranks, one of which sleeps, while other goroutines call their
// Signal and Notify.
func TestSignalsBesideClose(t *testing.T) {
	for range 10 {
		all := nodes(t, 3, New())
		all[0].send(t, 1, nil) // so that 0 has a ring mapped
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
		runtime.GC() // unmaps the fronts of segments that are not referenced any more
		runtime.GC()
		require.False(t, all[2].Asleep())
		stop.Store(true)
		others.Wait()
		require.True(t, func() bool { err := <-woken; return err == nil || errors.Is(err, transport.ErrClosed) }())
		require.ErrorIs(t, all[1].cq.Wait(deadline), transport.ErrClosed)
	}
}
