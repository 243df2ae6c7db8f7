package engine_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/engine"
)

// TestStateVersion: the result of StateVersion changes when a communicator is revoked, and when the
// engine is closed. From then on, Usable of the contexts concerned returns the error.
func TestStateVersion(t *testing.T) {
	e, err := engine.New(engine.Config{Size: 1})
	require.NoError(t, err)
	c, other := e.OpenContext(4, []int{0}), e.OpenContext(6, []int{0})
	before := e.StateVersion()
	require.NoError(t, c.Usable())
	require.Equal(t, before, e.StateVersion())

	c.Revoke(errors.New("test"))
	require.NotEqual(t, before, e.StateVersion())
	require.ErrorIs(t, c.Usable(), engine.ErrRevoked)
	require.NoError(t, other.Usable())

	before = e.StateVersion()
	var at error
	e.OnClose(func() { at = other.Usable() })
	e.Kill()
	require.NotEqual(t, before, e.StateVersion())
	require.ErrorIs(t, at, engine.ErrClosed, "OnClose runs its function after the waits have ended")
	require.ErrorIs(t, other.Usable(), engine.ErrClosed)
}
