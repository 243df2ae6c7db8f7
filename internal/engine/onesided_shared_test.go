package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/inproc"
)

// TestStopProgress: an open port makes the background goroutine poll. After StopProgress it no
// longer does, and the background goroutine parks.
func TestStopProgress(t *testing.T) {
	e := openJob(t, 2, inproc.NewFabric(), nil)[0]
	p, err := e.OpenContext(2, []int{0, 1}).OpenPort(only(idle{}))
	require.NoError(t, err)
	state := func() (int, backgroundState) {
		p.Lock()
		defer p.Unlock()
		return e.active, e.background
	}
	active, _ := state()
	require.Equal(t, 1, active)
	for range 2 {
		p.Lock()
		p.StopProgress()
		p.Unlock()
		active, _ = state()
		require.Zero(t, active)
	}
	require.Eventually(t, func() bool { _, state := state(); return state == backgroundParked }, 10*time.Second, time.Millisecond)
	p.Lock()
	require.False(t, p.Gone(1))
	require.False(t, p.Defunct())
	p.Close()
	require.Zero(t, e.active)
	p.Unlock()
	p.Pause()
	e.Kill()
	p.Lock()
	require.True(t, p.Defunct())
	p.Unlock()
}
