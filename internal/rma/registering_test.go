package rma

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport/inproc/pintest"
)

// putWhileRegistering makes windows of n ranks, and starts a Put of the first one to rank 1. Its buffer is
// being registered until the gate is closed.
func putWhileRegistering(t *testing.T, n int) (ms []*member, put engine.Request, gate chan struct{}) {
	t.Helper()
	g := pintest.NewGates()
	ms = openWindows(t, openEngines(t, n, pintest.New(g.Pass), nil), 1<<12, ofInt64())
	each(t, ms, func(m *member) error { return m.fence() })
	gate = g.Next()
	put, err := ms[0].Rput(background, 1, 0, pattern(100, 1))
	require.NoError(t, err)
	<-g.Entered
	return ms, put, gate
}

// TestWindowClosedWhileRegistering: a window is closed while the buffer of a Put is being registered.
// The end of the registration does not touch what uses the slot of the Put's transfer by then.
func TestWindowClosedWhileRegistering(t *testing.T) {
	ms, _, gate := putWhileRegistering(t, 2)
	m := ms[0]
	m.ctx.Revoke(errors.New("revoked"))
	require.NoError(t, m.Close())

	send := ms[1].world.Isend(pattern(50_000, 3), engine.Env{Peer: 0, Tag: 1})
	var posted []engine.Request
	for i := range 40 {
		posted = append(posted, m.world.Irecv(make([]byte, 1), engine.Env{Peer: 1, Tag: 9 + i}))
	}
	buf := make([]byte, 50_000)
	recv := m.world.Irecv(buf, engine.Env{Peer: 1, Tag: 1})
	_, done, err := recv.Test()
	require.NoError(t, err)
	require.False(t, done)
	close(gate)
	for _, q := range []engine.Request{recv, send} {
		_, err := q.Wait(background)
		require.NoError(t, err)
	}
	require.NoError(t, same(buf, pattern(50_000, 3)))
	for _, q := range posted {
		require.NoError(t, q.Cancel())
	}
}

// TestEngineClosedWhileRegistering: an operation whose buffer is being registered ends when the engine
// is closed.
func TestEngineClosedWhileRegistering(t *testing.T) {
	ms, q, gate := putWhileRegistering(t, 2)
	m := ms[0]
	closed := make(chan error)
	go func() { closed <- m.e.Close(background) }() // ends with Close; received below
	_, err := q.Wait(background)
	require.Error(t, err)
	close(gate)
	require.NoError(t, <-closed)
	require.True(t, q.Done())
	require.False(t, m.Pending())
	require.NoError(t, m.Close())
}

// TestPeerFailsWhileRegistering: if the target fails while the buffer of a Put is being registered, the Put
// ends with that error, and later operations work.
func TestPeerFailsWhileRegistering(t *testing.T) {
	ms, q, gate := putWhileRegistering(t, 3)
	m := ms[0]
	m.e.MarkFailed("killed", 1)
	_, err := q.Wait(background)
	require.ErrorIs(t, err, engine.ErrProcFailed)
	close(gate)
	q, err = m.Rput(background, 2, 0, pattern(100, 1))
	require.NoError(t, err)
	_, err = q.Wait(background)
	require.NoError(t, err)
}
