package mpiio

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// FuzzConvert converts arbitrary bytes of a file to elements in memory and back. It checks that the
// file then has the same bytes, except for bools, and that the padding of elements does not change.
func FuzzConvert(f *testing.F) {
	type mixed struct {
		A uint8
		B float32
		C [3]int16
		D complex128
		E uintptr
		F struct{ G, H int32 }
	}
	f.Add([]byte("a mixed struct takes forty-odd bytes in a file, and more in memory"))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, typ := range []*elem.Type{elem.Of[mixed](), elem.Of[int](), elem.Of[uint16](), elem.Of[complex64](), elem.Of[[3]byte](), elem.Of[float64]()} {
			c := converterOf(typ)
			n := len(b) / c.size
			mem := bytes.Repeat([]byte{0xa5}, n*typ.Size)
			c.toMemory(mem, b)
			again := make([]byte, n*c.size)
			c.toFile(again, mem)
			require.Equal(t, b[:n*c.size], again, "%v", typ.Go)
		}
		c := converterOf(elem.Of[bool]())
		mem := make([]byte, len(b))
		c.toMemory(mem, b)
		for i, x := range mem {
			require.Equal(t, b[i] != 0, x == 1)
			require.LessOrEqual(t, x, byte(1))
		}
	})
}

// FuzzError decodes arbitrary bytes as the error of another rank.
func FuzzError(f *testing.F) {
	f.Add(encodeError(&fs.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}))
	f.Add(encodeError(mpi.ErrCount)[:20])
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		err := decodeError(b)
		require.LessOrEqual(t, len(err.Error()), max(len(b), 20))
		require.False(t, errors.Is(err, ErrSplit) && len(b) < errorHeader)
	})
}

// TestErrorsTravel checks that the errors of other ranks wrap what they have wrapped there.
func TestErrorsTravel(t *testing.T) {
	require.LessOrEqual(t, len(sentinels), 32)
	for _, s := range append(slices.Clone(sentinels), syscall.ENOSPC, syscall.ENOENT) {
		err := decodeError(encodeError(errors.Join(errors.New("why"), s)))
		require.ErrorIs(t, err, s)
		require.Equal(t, "why\n"+s.Error(), err.Error())
	}
	require.ErrorIs(t, decodeError(encodeError(syscall.ENOENT)), fs.ErrNotExist)
}

// TestCover compares a cover with a slice of bools.
func TestCover(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var c cover
	for range 2000 {
		n := 1 + r.IntN(300)
		has := make([]bool, n)
		c.reset(n)
		for range r.IntN(6) {
			at := r.IntN(n)
			k := 1 + r.IntN(n-at)
			c.add(at, k)
			for i := range k {
				has[at+i] = true
			}
		}
		runs, bytes := 0, 0
		for i := range has {
			if has[i] {
				bytes++
				if i == 0 || !has[i-1] {
					runs++
				}
			}
			for _, in := range []bool{true, false} {
				want := slices.Index(has[i:], in) + i
				if want < i {
					want = n
				}
				require.Equal(t, want, c.next(i, in))
			}
		}
		gotRuns, gotBytes := c.runs()
		require.Equal(t, []int{runs, bytes}, []int{gotRuns, gotBytes})
	}
}

// TestAggregators checks the choice of aggregators.
func TestAggregators(t *testing.T) {
	hosts, leaders := []int{0, 0, 0, 1, 1, 2}, []int{0, 3, 5}
	for n, want := range [][]int{{0, 3, 5}, {0}, {0, 3}, {0, 3, 5}, {0, 3, 5, 1}, {0, 3, 5, 1, 4}, {0, 3, 5, 1, 4, 2}, {0, 3, 5, 1, 4, 2}} {
		require.Equal(t, want, aggregators(hosts, leaders, n), "%d", n)
	}
}
