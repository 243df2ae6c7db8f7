package trace

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// exchanges returns exchanges with a host at a time of gorun's clock. remote is the host's clock as a
// function of gorun's. The way there and the way back take random times.
func exchanges(r *rand.Rand, at time.Duration, remote func(time.Duration) time.Duration) (list []Exchange) {
	for range 32 {
		there, back := time.Duration(20000+r.IntN(200000)), time.Duration(20000+r.IntN(200000))
		list = append(list, Exchange{Asked: at, Answered: at + there + back, Remote: remote(at + there)})
		at += there + back
	}
	return list
}

// TestClock compares clocks whose offset and rate are known. The error is never more than what Bound
// says.
func TestClock(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 1000 {
		offset := time.Duration(r.Int64N(int64(1000*time.Hour))) - 500*time.Hour
		drift := (r.Float64() - 0.5) * 400e-6
		start := 1000*time.Hour + time.Duration(r.Int64N(int64(time.Hour)))
		end := start + time.Second + time.Duration(r.Int64N(int64(time.Hour)))
		remote := func(t time.Duration) time.Duration {
			return t + offset + time.Duration(drift*float64(t-start))
		}
		c, ok := NewClock(exchanges(r, start, remote), exchanges(r, end, remote))
		require.True(t, ok)
		require.Less(t, c.Bound(), 220*time.Microsecond)
		for range 10 {
			at := start + time.Duration(r.Int64N(int64(end-start)))
			require.LessOrEqual(t, (c.At(remote(at)) - at).Abs(), c.Bound()+time.Microsecond)
		}
		require.InDelta(t, float64(offset), float64(c.Offset()), float64(c.Bound()+time.Microsecond))
	}
}

// TestClockOfShortJob: exchanges that are close to each other do not make the clock run fast or backwards.
func TestClockOfShortJob(t *testing.T) {
	first := Exchange{Asked: time.Hour, Answered: time.Hour + 200, Remote: 2*time.Hour + 100}
	last := Exchange{Asked: time.Hour + 1000, Answered: time.Hour + 5000, Remote: 2*time.Hour + 1100}
	c, ok := NewClock([]Exchange{first}, []Exchange{last})
	require.True(t, ok)
	require.Equal(t, time.Hour, c.Offset())
	require.EqualValues(t, 100, c.Bound())
	require.Equal(t, time.Hour+1000, c.At(2*time.Hour+1000))
	require.Equal(t, 10*time.Hour, c.At(11*time.Hour))
}

// TestClockWithoutAnswers: if a host answers only at one end of the job, or sends times that cannot be,
// these exchanges do not count.
func TestClockWithoutAnswers(t *testing.T) {
	good := []Exchange{{time.Hour, time.Hour + 10, 5}}
	bad := []Exchange{{time.Hour, time.Hour + 1, -1}, {time.Hour, time.Hour + 1, maxTime}, {time.Hour, time.Hour - 1, 5}}
	for _, test := range [][2][]Exchange{{good, nil}, {nil, good}, {good, bad}, {bad, good}} {
		c, ok := NewClock(test[0], test[1])
		require.True(t, ok)
		require.Equal(t, time.Hour+5, c.At(5))
		require.EqualValues(t, 5, c.Bound())
	}
	c, ok := NewClock(bad, nil)
	require.False(t, ok)
	require.Equal(t, time.Minute, c.At(time.Minute))
	require.Zero(t, c.Bound())
}
