package contest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// figures returns a side whose i-th measurement returns the i-th of these figures.
func figures(name string, xs ...float64) Side {
	return Side{name, Single(func(context.Context) (float64, error) {
		x := xs[0]
		xs = xs[1:]
		return x, nil
	})}
}

// runContest runs a contest of one line in three rounds, and returns the result of the line.
func runContest(t *testing.T, line Line, ours Side, peers ...Side) *Result {
	t.Helper()
	c := Contest{Name: "x", Lines: []Line{line}, Ours: ours, Peers: peers}
	results, err := c.Run(t.Context(), io.Discard, 3)
	require.NoError(t, err)
	require.Len(t, results, 1)
	return &results[0]
}

func TestRun(t *testing.T) {
	r := runContest(t, Line{Unit: "s", Target: 0.5}, figures("weft", 4, 1, 2), figures("a", 9, 9, 1), figures("b", 3, 4, 5))
	require.Equal(t, []float64{9, 9, 1}, r.Sides[1].Rounds)
	require.Equal(t, 4.0, r.Best())
	require.Equal(t, 2.0/5, r.Ratio()) // the median of 4/3, 1/4 and 2/5
	require.Equal(t, Met, r.Verdict())
	require.Equal(t, "≤ 0.5", r.Bound())

	r = runContest(t, Line{Unit: "B/s", Target: 2, More: true}, figures("weft", 4, 4, 4), figures("a", 1, 1, 1), figures("b", 3, 3, 3))
	require.Equal(t, 4.0/3, r.Ratio())
	require.Equal(t, Missed, r.Verdict())
	require.Equal(t, "≥ 2", r.Bound())

	r = runContest(t, Line{Unit: "µs", Target: 0.15, Of: OfDifference}, figures("weft", 1.125, 1.125, 1.125), figures("a", 1, 1, 1))
	require.Equal(t, 0.125, r.Value())
	require.Equal(t, Met, r.Verdict())
	require.Equal(t, "≤ +0.15 µs", r.Bound())

	r = runContest(t, Line{Unit: "%", Target: 80, More: true, Of: OfFigure}, figures("weft", 70, 80, 90), figures("a", 0, 0, 0))
	require.Equal(t, 80.0, r.Value())
	require.Equal(t, Met, r.Verdict())
	require.Equal(t, "≥ 80 %", r.Bound())

	r = runContest(t, Line{Unit: "µs"}, figures("weft", 1, 1, 1), figures("a", 2, 2, 2))
	require.Equal(t, Open, r.Verdict())
	require.Equal(t, "–", r.Bound())
}

func TestRunTakesTurns(t *testing.T) {
	var order []string
	side := func(name string) Side {
		return Side{name, Single(func(context.Context) (float64, error) {
			order = append(order, name)
			return 1, nil
		})}
	}
	runContest(t, Line{}, side("weft"), side("a"), side("b"))
	require.Equal(t, []string{"weft", "a", "b", "a", "b", "weft", "b", "weft", "a"}, order)
}

// TestRunAgainstOneThatFails has a side fail. The side keeps the figures that it has, and is not
// measured again.
func TestRunAgainstOneThatFails(t *testing.T) {
	asked := 0
	half := Side{"half", func(context.Context) ([]float64, error) {
		asked++
		return []float64{2}, errors.New("no second figure")
	}}
	bad := Side{"bad", Single(func(context.Context) (float64, error) { return 0, errors.New("no") })}
	good := Side{"good", func(context.Context) ([]float64, error) { return []float64{3, 4}, nil }}
	short := Side{"short", func(context.Context) ([]float64, error) { return []float64{1}, nil }}
	for _, test := range []struct {
		sides  []Side
		ratios [2]float64
		want   [2]Verdict
	}{
		{[]Side{good, half, bad}, [2]float64{1.5, math.NaN()}, [2]Verdict{Missed, Open}},
		{[]Side{good, half, good}, [2]float64{1.5, 1}, [2]Verdict{Missed, Met}},
		{[]Side{good, bad}, [2]float64{math.NaN(), math.NaN()}, [2]Verdict{Open, Open}},
		{[]Side{good, short}, [2]float64{3, math.NaN()}, [2]Verdict{Missed, Open}},
		{[]Side{half, good}, [2]float64{2.0 / 3, math.NaN()}, [2]Verdict{Met, Missed}},
	} {
		asked = 0
		var progress bytes.Buffer
		c := Contest{Name: "x", Lines: []Line{{Target: 1}, {Target: 1}}, Ours: test.sides[0], Peers: test.sides[1:]}
		results, err := c.Run(t.Context(), &progress, 3)
		require.NoError(t, err)
		require.LessOrEqual(t, asked, 1)
		require.Regexp(t, "x: (half|bad|short): ", progress.String())
		for i, r := range results {
			require.Equal(t, math.IsNaN(test.ratios[i]), math.IsNaN(r.Ratio()))
			if !math.IsNaN(test.ratios[i]) {
				require.Equal(t, test.ratios[i], r.Ratio())
			}
			require.Equal(t, test.want[i], r.Verdict())
		}
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := Contest{Name: "x", Lines: make([]Line, 1), Ours: Side{"weft", Single(func(context.Context) (float64, error) {
		cancel()
		return 1, nil
	})}}
	_, err := c.Run(ctx, io.Discard, 3)
	require.ErrorIs(t, err, context.Canceled)
}

func TestDigits(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", 0.33491: "0.3349", 62.1: "62.1", 17.0233: "17.02", 12345.6: "12350", 0.00012345: "0.0001235", -2.5: "-2.5", 999.96: "1000",
		math.Inf(1): "–",
	} {
		require.Equal(t, want, Digits(x))
	}
	require.Equal(t, "–", Digits(math.NaN()))
}

func TestBytesText(t *testing.T) {
	for n, want := range map[int]string{8: "8 B", 1000: "1000 B", 4096: "4 KiB", 1 << 20: "1 MiB", 3 << 19: "1536 KiB"} {
		require.Equal(t, want, BytesText(n))
	}
}
