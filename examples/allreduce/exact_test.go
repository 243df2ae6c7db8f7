package main

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMoments compares the results of moments with exact rational arithmetic, for numbers from the whole
// range of doubles, and for every way to divide a list of numbers between two ranks.
func TestMoments(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	xs := []float64{0, math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64, -1, 1e-320, 1e300, 0.1, -1e300}
	for range 30 {
		xs = append(xs, math.Ldexp(rng.NormFloat64(), rng.IntN(1800)-900))
	}
	for n := 1; n <= len(xs); n++ {
		sum, squares := new(big.Rat), new(big.Rat)
		for _, x := range xs[:n] {
			r := new(big.Rat).SetFloat64(x)
			sum.Add(sum, r)
			squares.Add(squares, r.Mul(r, r))
		}
		count := new(big.Rat).SetInt64(int64(n))
		wantMean, _ := new(big.Rat).Quo(sum, count).Float64()
		wantDeviation := math.NaN()
		if n > 1 {
			v := new(big.Rat).Sub(squares, new(big.Rat).Quo(new(big.Rat).Mul(sum, sum), count))
			v.Quo(v, new(big.Rat).SetInt64(int64(n-1)))
			f := new(big.Float).SetPrec(300).SetRat(v)
			wantDeviation, _ = f.Sqrt(f).Float64()
		}
		for cut := range n {
			var a [2]struct{ sum, squares accumulator }
			for i, x := range xs[:n] {
				part := &a[0]
				if i >= cut {
					part = &a[1]
				}
				part.sum.add(x)
				part.squares.addSquare(x)
				if i%7 == 0 {
					part.sum.carry()
					part.squares.carry()
				}
			}
			for i := range a[1].sum.limbs {
				a[0].sum.limbs[i] += a[1].sum.limbs[i]
				a[0].squares.limbs[i] += a[1].squares.limbs[i]
			}
			mean, deviation := moments(&a[0].sum, &a[0].squares, int64(n))
			require.Equal(t, wantMean, mean, "%d numbers, %d of them on the first rank", n, cut)
			require.Equal(t, math.Float64bits(wantDeviation), math.Float64bits(deviation), "%d numbers, %d of them on the first rank", n, cut)
		}
	}
}

func TestShares(t *testing.T) {
	for _, size := range []int64{0, 1, 5, 1000, math.MaxInt64} {
		for _, ranks := range []int{1, 2, 3, 7, 64, 1 << 16} {
			require.Zero(t, share(size, 0, ranks))
			require.Equal(t, size, share(size, ranks, ranks))
			for r := range ranks {
				require.LessOrEqual(t, share(size, r, ranks), share(size, r+1, ranks))
			}
		}
	}
}
