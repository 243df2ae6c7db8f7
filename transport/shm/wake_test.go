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

// asleepRank has n wait in a goroutine; what is returned gives Wait's error.
func asleepRank(t *testing.T, n *node) <-chan error {
	t.Helper()
	require.Eventually(t, func() bool { n.read(t); return n.cq.Arm() }, deadline, time.Microsecond)
	woken := make(chan error, 1)
	go func() { woken <- n.cq.Wait(deadline) }() // it ends by then
	return woken
}

// wakes requires that a rank which sleeps be woken, well before Wait's own limit.
func wakes(t *testing.T, woken <-chan error) {
	t.Helper()
	select {
	case err := <-woken:
		require.NoError(t, err)
	case <-time.After(deadline / 2):
		require.Fail(t, "it sleeps on")
	}
}

// TestEndFoundWhileAsleep has one goroutine of a rank find by a Send that a peer
// has ended, while another sleeps and is the one that would hear of it: be it a
// peer that has never been heard of, or one of whom there may be messages.
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
				p.seg.state(1).state.Store(cardLeft) // it has not yet come to telling us
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

// TestEndWhileAsleepAmongMany has a rank of many that has nothing to do with
// others find at once which of them it was woken for.
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

// TestSignalsBesideClose has other goroutines signal and notify ranks that are
// closed meanwhile, one of which sleeps.
func TestSignalsBesideClose(t *testing.T) {
	for range 10 {
		all := nodes(t, 3, New())
		all[0].send(t, 1, nil) // so that 0 has a ring mapped
		all[1].await(t, transport.RecvDone)
		woken := asleepRank(t, all[1])
		var over atomic.Bool
		var others sync.WaitGroup
		for i, n := range all {
			others.Go(func() { // until over
				for k := i; !over.Load(); k++ {
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
		runtime.GC() // whatever nobody refers to goes
		runtime.GC()
		require.False(t, all[2].Asleep())
		over.Store(true)
		others.Wait()
		require.True(t, func() bool { err := <-woken; return err == nil || errors.Is(err, transport.ErrClosed) }())
		require.ErrorIs(t, all[1].cq.Wait(deadline), transport.ErrClosed)
	}
}
