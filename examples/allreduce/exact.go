package main

import (
	"math"
	"math/big"
	"math/bits"
)

// accumulator is an exact sum of doubles or of their squares: a fixed-point number that is wide enough for
// any of them (U. Kulisch's long accumulator). A sum of doubles is rounded, so it depends on the order of
// the additions; an accumulator does not.
//
//	value = Σ limbs[i] · 2^(32·i - scale)
type accumulator struct {
	// The low 32 bits of each limb are a part of the value. Above them are the carries of up to
	// maxAdds additions.
	limbs [accumulatorLimbs]int64
	adds  int // number of additions since the last carry
}

const (
	scale = 2 * 1074 // the smallest square is 2^-2148
	// The largest square is below 2^2048, and the sum of 2⁶⁴ such squares fits.
	accumulatorLimbs = (scale+2*1024)/32 + 4
	maxAdds          = 1 << 30
)

func (a *accumulator) add(x float64) {
	m, e, negative := split(x)
	a.put(0, m, e, negative)
}

func (a *accumulator) addSquare(x float64) {
	m, e, _ := split(x)
	hi, lo := bits.Mul64(m, m)
	a.put(hi, lo, 2*e, false)
}

// split returns x = ±m·2^e for a finite x.
func split(x float64) (m uint64, e int, negative bool) {
	b := math.Float64bits(x)
	m, e = b&(1<<52-1), int(b>>52&0x7ff)
	if e == 0 {
		e = 1 // x is 0 or subnormal: the exponent of the smallest normal numbers, without the hidden bit
	} else {
		m |= 1 << 52
	}
	return m, e - 1075, b>>63 != 0
}

// put adds ±(hi·2⁶⁴+lo)·2^e to the sum. hi must be below 2⁴².
func (a *accumulator) put(hi, lo uint64, e int, negative bool) {
	if a.adds == maxAdds {
		a.carry()
	}
	a.adds++
	at, shift := (e+scale)/32, uint(e+scale)%32
	words := [3]uint64{lo << shift, hi<<shift | lo>>(64-shift), hi >> (64 - shift)}
	for i, w := range words {
		if w == 0 {
			continue
		}
		low, high := int64(w&0xffffffff), int64(w>>32)
		if negative {
			low, high = -low, -high
		}
		a.limbs[at+2*i] += low
		a.limbs[at+2*i+1] += high
	}
}

// carry moves the carries of each limb to the next limb. After that all limbs except the last one are from 0
// to 2³²-1, so Reduce can add up the limbs of 2³¹ ranks without overflow.
func (a *accumulator) carry() {
	last := len(a.limbs) - 1
	for i := range last {
		a.limbs[i+1] += a.limbs[i] >> 32
		a.limbs[i] &= 0xffffffff
	}
	a.adds = 0
}

// value returns the sum times 2^scale, which is an integer.
func (a *accumulator) value() *big.Int {
	v := new(big.Int)
	for i := len(a.limbs) - 1; i >= 0; i-- {
		v.Lsh(v, 32).Add(v, big.NewInt(a.limbs[i]))
	}
	return v
}

// moments returns the mean of n doubles and their sample standard deviation. It computes both from
// exact sums, and rounds them at the end. sum is the sum of the doubles, and squares is the sum of
// their squares. If n is 1, the deviation is NaN.
func moments(sum, squares *accumulator, n int64) (mean, deviation float64) {
	count, s := big.NewInt(n), sum.value()
	unit := new(big.Int).Lsh(big.NewInt(1), scale)
	mean, _ = new(big.Rat).SetFrac(s, new(big.Int).Mul(count, unit)).Float64()
	if n < 2 {
		return mean, math.NaN()
	}
	// The variance is (n·Σx² - (Σx)²) / (n·(n-1)). v is the dividend in units of 2^(-2·scale).
	v := new(big.Int).Mul(count, squares.value())
	v.Mul(v, unit).Sub(v, s.Mul(s, s))
	d := new(big.Int).Mul(count, big.NewInt(n-1))
	d.Mul(d, unit).Mul(d, unit)
	const precision = 256
	root := new(big.Float).SetPrec(precision).SetRat(new(big.Rat).SetFrac(v, d))
	deviation, _ = root.Sqrt(root).Float64()
	return mean, deviation
}
