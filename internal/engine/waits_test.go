package engine

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/inproc"
)

// waitOf blocks until exactly one goroutine waits in the engine e. It returns the description of
// this wait, and the snapshot that contains it.
func waitOf(e *Engine) (Wait, Snapshot) {
	for {
		if s := e.Snapshot(); len(s.Waits) == 1 {
			return s.Waits[0], s
		}
		runtime.Gosched()
	}
}

// TestSnapshotNamesEachWait: a goroutine waits for one message after the other. Snapshot gives each
// wait another ID, although all of them are for the same source and tag.
func TestSnapshotNamesEachWait(t *testing.T) {
	engines := openJob(t, 2, inproc.NewFabric(), nil)
	cs := world(engines)
	ranks(t, cs, func(c *Context, rank int) error {
		seen := make(map[string]bool)
		for range 3 {
			if rank == 1 {
				if _, err := c.Probe(background, Env{Peer: 0, Tag: 3}); err != nil {
					return err
				}
				if _, err := c.Recv(background, make([]byte, 1), Env{Peer: 0, Tag: 3}); err != nil {
					return err
				}
				if err := c.Send(background, []byte{1}, Env{Peer: 0, Tag: 4}); err != nil {
					return err
				}
				continue
			}
			w, _ := waitOf(engines[1])
			require.Equal(t, WaitProbe, w.Kind)
			require.False(t, seen[w.ID], w.ID)
			seen[w.ID] = true
			if err := c.Send(background, []byte{1}, Env{Peer: 1, Tag: 3}); err != nil {
				return err
			}
			if _, err := c.Recv(background, make([]byte, 1), Env{Peer: 1, Tag: 4}); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestSnapshotCounts: the counters of Snapshot.Links on two ranks agree when all messages between
// the ranks have arrived, and differ before. Snapshot.Moves is false while a message waits for its
// receive or a receive for its message, and true while data is transferred.
func TestSnapshotCounts(t *testing.T) {
	engines := openJob(t, 2, inproc.NewFabric(), map[string]string{"engine.async_progress": "false"})
	cs := world(engines)
	large := make([]byte, 4<<20)
	send := cs[0].Isend(large, Env{Peer: 1, Tag: 3, Attended: true})
	require.Equal(t, []Link{{1, 1, 0}}, engines[0].Snapshot().Links)
	require.Empty(t, engines[1].Snapshot().Links) // rank 1 has not polled, so it does not know the message
	require.False(t, engines[0].Snapshot().Moves) // the message waits for a receive
	got := make(chan error, 1)
	go func() { // ends when the receive returns
		_, err := cs[1].Recv(background, make([]byte, len(large)), Env{Peer: 0, Tag: 3})
		got <- err
	}()
	_, err := send.Wait(background)
	require.NoError(t, err)
	require.NoError(t, <-got)
	a, b := engines[0].Snapshot(), engines[1].Snapshot()
	require.Equal(t, a.Links[0].Sent, b.Links[0].Received)
	require.Equal(t, a.Links[0].Received, b.Links[0].Sent)
	require.False(t, a.Moves || b.Moves)

	recv := cs[1].Irecv(make([]byte, 1), Env{Peer: 0, Tag: 4})
	require.False(t, engines[1].Snapshot().Moves) // the receive waits for a message
	engines[1].mu.Lock()
	recv.r.phase = phaseReading
	engines[1].mu.Unlock()
	require.True(t, engines[1].Snapshot().Moves)
	engines[1].mu.Lock()
	recv.r.phase = phasePosted
	engines[1].mu.Unlock()
	require.NoError(t, recv.Cancel())
	_, err = recv.Wait(background)
	require.NoError(t, err)
}
