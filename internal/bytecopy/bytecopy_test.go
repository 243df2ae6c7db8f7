package bytecopy

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAgainstCopy checks that Keep and Share change the same bytes as copy, for random offsets and
// lengths.
func TestAgainstCopy(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	src := make([]byte, 3*chunk)
	for i := range src {
		src[i] = byte(rng.Uint32())
	}
	lengths := []int{0, 1, 63, 64, 2047, 2048, 2049, 4096, chunk - 1, chunk, chunk + 1, 2 * chunk, 2*chunk + 1}
	for range 50 {
		lengths = append(lengths, rng.IntN(2*chunk))
	}
	for name, f := range map[string]func(dst, src []byte) int{"keep": Keep, "share": Share} {
		for _, n := range lengths {
			for _, room := range []int{n, n + 100, max(0, n-7)} {
				from, to := rng.IntN(100), 1+rng.IntN(100)
				got, want := make([]byte, to+room+1), make([]byte, to+room+1)
				at := fmt.Sprint(name, " ", n, " bytes to room for ", room)
				require.Equal(t, copy(want[to:to+room], src[from:from+n]), f(got[to:to+room], src[from:from+n]), at)
				require.True(t, bytes.Equal(want, got), at)
			}
		}
	}
}

// TestOverlap checks that Keep and Share copy overlapping memory like copy, in both directions.
func TestOverlap(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	fresh := make([]byte, 3*chunk)
	for i := range fresh {
		fresh[i] = byte(rng.Uint32())
	}
	for name, f := range map[string]func(dst, src []byte) int{"keep": Keep, "share": Share} {
		for _, n := range []int{3 << 10, chunk - 1, 2*chunk + 5} {
			for _, by := range []int{1, 40, 64, 2048, chunk / 2} {
				for _, d := range [][2]int{{0, by}, {by, 0}, {by, by}} {
					got, want := bytes.Clone(fresh), bytes.Clone(fresh)
					copy(want[d[0]:d[0]+n], want[d[1]:d[1]+n])
					require.Equal(t, n, f(got[d[0]:d[0]+n], got[d[1]:d[1]+n]))
					require.True(t, bytes.Equal(want, got), "%s: %d bytes from %d to %d", name, n, d[1], d[0])
				}
			}
		}
	}
}

func TestAllocatesNothing(t *testing.T) {
	dst, src := make([]byte, 2*chunk), make([]byte, 2*chunk)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		Keep(dst, src)
		Share(dst, src)
	}))
}
