package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// rule generates x = x ∘ y, where y is in memory. Go's assembly writes operands from right to left:
// VSUBPD z, y, x is x = y - z.
type rule func(c *code, x reg.VecVirtual, y operand.Mem)

// single returns the rule for an operation that is one instruction.
func single(instruction func(c *code, ops ...operand.Op)) rule {
	return func(c *code, x reg.VecVirtual, y operand.Mem) {
		if c.lane.doubled {
			panic("a single instruction cannot read a doubled lane from memory")
		}
		instruction(c, y, x, x)
	}
}

// perSet returns a rule that uses one rule on AVX2 and another on AVX-512.
func perSet(avx2, avx512 rule) rule {
	return func(c *code, x reg.VecVirtual, y operand.Mem) {
		if c.set.masks {
			avx512(c, x, y)
		} else {
			avx2(c, x, y)
		}
	}
}

// loaded loads y into a register, for rules that use it more than once.
func (c *code) loaded(y operand.Mem) reg.VecVirtual {
	r := c.register()
	c.load(y, r)
	return r
}

// The names of the bitwise instructions differ between the instruction sets.

func (c *code) and(ops ...operand.Op) {
	if c.set.masks {
		c.VPANDQ(ops...)
	} else {
		c.VPAND(ops[0], ops[1], ops[2])
	}
}

func (c *code) or(ops ...operand.Op) {
	if c.set.masks {
		c.VPORQ(ops...)
	} else {
		c.VPOR(ops[0], ops[1], ops[2])
	}
}

func (c *code) xor(ops ...operand.Op) {
	if c.set.masks {
		c.VPXORQ(ops...)
	} else {
		c.VPXOR(ops[0], ops[1], ops[2])
	}
}

// prodBytes multiplies pairs of bytes with multiplications of 16 bits, the shortest that the
// processor has. With h and l for the high and the low byte:
//
//	x * y                → (?, xl*yl); keep the low byte
//	(x>>8) * (y & ff00)  → (xh*yh, 0)
func prodBytes(c *code, x reg.VecVirtual, m operand.Mem) {
	y, even := c.loaded(m), c.register()
	c.VPMULLW(y, x, even)
	c.and(c.constant(0x00ff00ff00ff00ff), even, even)
	c.VPSRLW(operand.U8(8), x, x)
	c.and(c.constant(0xff00ff00ff00ff00), y, y)
	c.VPMULLW(y, x, x)
	c.or(even, x, x)
}

// prodQuads multiplies integers of 64 bits by halves: lo*lo + (lo*hi + hi*lo)<<32. The product of
// the two high halves does not affect the lower 64 bits of the result.
func prodQuads(c *code, x reg.VecVirtual, m operand.Mem) {
	y, crossed, low := c.loaded(m), c.register(), c.register()
	c.VPSHUFD(operand.U8(0b10_11_00_01), y, crossed) // swap the halves
	c.VPMULLD(crossed, x, crossed)
	c.VPSRLQ(operand.U8(32), crossed, low)
	c.VPADDD(low, crossed, crossed)
	c.VPSLLQ(operand.U8(32), crossed, crossed)
	c.VPMULUDQ(y, x, x)
	c.VPADDQ(crossed, x, x)
}

// prodComplex multiplies pairs (re, im) of float64. It rounds each product and each sum separately.
func prodComplex(c *code, x reg.VecVirtual, m operand.Mem) {
	y, crossed := c.loaded(m), c.register()
	c.VPERMILPD(operand.U8(0b01_01_01_01), y, crossed) // (im, re) of y
	im := c.register()
	c.VPERMILPD(operand.U8(0xff), x, im)
	c.VMOVDDUP(x, x)
	c.VMULPD(y, x, x)              // re*re, re*im
	c.VMULPD(crossed, im, crossed) // im*im, im*re
	if c.set.masks {
		// AVX-512 has no VADDSUBPD. A product with 1 is exact, so this instruction rounds like a
		// separate sum.
		c.VFMADDSUB213PD(crossed, c.constant(one), x)
	} else {
		c.VADDSUBPD(crossed, x, x)
	}
}

// one is 1 in float64.
const one = 0x3ff0000000000000

// minMaxQuads chooses the smaller or the larger of two 64-bit integers by a comparison, since AVX2
// has no instruction for their minimum or maximum.
type minMaxQuads struct{ min, signed bool }

func (q minMaxQuads) choose(c *code, x reg.VecVirtual, m operand.Mem) {
	y, greater := c.loaded(m), c.register()
	if q.signed {
		c.VPCMPGTQ(y, x, greater)
	} else {
		sign, flipped := c.constant(1<<63), c.register()
		c.xor(sign, y, flipped)
		c.xor(sign, x, greater)
		c.VPCMPGTQ(flipped, greater, greater)
	}
	if q.min {
		c.VPBLENDVB(greater, y, x, x)
	} else {
		c.VPBLENDVB(greater, x, y, x)
	}
}
