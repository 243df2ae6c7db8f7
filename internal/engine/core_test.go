package engine

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The ranks of a host have homes of their own among the cores that they may use,
// and none where there are too few.
func TestHomes(t *testing.T) {
	var allowed unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &allowed))
	n := allowed.Count()
	if n < 2 {
		require.Negative(t, newHome(0, 2).cpu)
		t.Skip("this process may use one core only")
	}
	taken := map[int]bool{}
	for rank := range n {
		h := newHome(rank, n)
		require.True(t, allowed.IsSet(h.cpu))
		require.False(t, taken[h.cpu], "two ranks on one core")
		taken[h.cpu] = true
	}
	require.NotEqual(t, newHome(0, 2).cpu, newHome(1, 2).cpu)
	require.Negative(t, newHome(0, n+1).cpu)
	require.Negative(t, newHome(0, 1).cpu)
}

// Who shares its core for some yields moves home, and may go anywhere afterwards
// as before.
func TestGoesHome(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after, other unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &before))
	if before.Count() < 2 {
		t.Skip("this process may use one core only")
	}
	h := newHome(1, 2)
	other.Set(newHome(0, 2).cpu)
	require.NoError(t, unix.SchedSetaffinity(0, &other))
	require.NoError(t, unix.SchedSetaffinity(0, &before))
	now := time.Second
	for range usesToMove - 1 {
		require.False(t, h.used(true, now))
	}
	require.False(t, h.used(false, now), "although a yield was of no use to anybody")
	for range usesToMove - 1 {
		require.False(t, h.used(true, now))
	}
	require.True(t, h.used(true, now))
	for range usesToMove {
		require.False(t, h.used(true, now), "so soon")
	}
	h.goThere()
	require.NoError(t, unix.SchedGetaffinity(0, &after))
	require.Equal(t, before, after)

	require.NoError(t, unix.SchedSetaffinity(0, &other)) // bound elsewhere: it stays
	h.goThere()
	require.NoError(t, unix.SchedGetaffinity(0, &after))
	require.Equal(t, other, after)
	require.NoError(t, unix.SchedSetaffinity(0, &before))
}
