package layout

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRuns compares the runs of random layouts, for random parts of the stream and short lists, with
// the type maps.
func TestRuns(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 5000 {
		l, n, how := random(r, 1+r.IntN(3))
		if l.Err() != nil {
			continue
		}
		low, high := l.Span()
		buf := make([]byte, high-low)
		for i := range buf {
			buf[i] = byte(i*7 + 1)
		}
		blocks := 0
		for pos := 0; pos < len(n.offs); {
			to := pos + 1 + r.IntN(len(n.offs)-pos)
			list, end := l.Runs(make([]Run, 0, 1+r.IntN(3)), pos, to)
			require.True(t, end == to || len(list) == cap(list) && end > pos, how)
			for _, run := range list {
				blocks += run.Count
				back := make([]byte, len(buf))
				want := make([]byte, run.Size())
				for i := range want {
					off := n.offs[pos+i]
					require.Equal(t, off, run.Off+i/run.Len*run.Stride+i%run.Len, how)
					want[i] = buf[off-low]
				}
				pos += len(want)
				run.Off -= low
				got := make([]byte, len(want))
				run.Pack(got, buf)
				require.Equal(t, want, got, how)
				run.Unpack(back, got)
				run.Pack(got, back)
				if run.Stride >= run.Len || run.Stride <= -run.Len { // no byte twice
					require.Equal(t, want, got, how)
				}
			}
			require.Equal(t, end, pos, how)
		}
		require.LessOrEqual(t, min(1, len(n.offs)), l.Blocks(), how)
		whole, end := l.Runs(make([]Run, 0, len(n.offs)), 0, l.Size())
		require.Equal(t, len(n.offs), end, how)
		sum := 0
		for _, run := range whole {
			sum += run.Count
		}
		require.Equal(t, sum, l.Blocks(), how)
		require.LessOrEqual(t, sum, blocks, how)
	}
}

func TestRunsDoNotAllocate(t *testing.T) {
	l := Struct([]int{2, 3}, []int{0, 500}, []Layout{Vector(10, 1, 2, Bytes(8)), Vector(3, 2, 3, Bytes(4))})
	list := make([]Run, 0, 8)
	require.Zero(t, testing.AllocsPerRun(100, func() { l.Runs(list, 5, 200) }))
}
