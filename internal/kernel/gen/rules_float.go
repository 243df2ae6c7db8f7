package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// precision holds the constants and instructions that differ between float32 and float64.
type precision struct {
	nan      uint64 // the NaN that kernels yield, repeated until it fills 64 bits
	compare  func(c *code, ops ...operand.Op)
	move     func(c *code, ops ...operand.Op)
	blend    func(c *code, mask, yes, no, x operand.Op)
	min, max func(c *code, ops ...operand.Op)
	rangeOf  func(c *code, ops ...operand.Op)
}

var (
	float32s = precision{
		nan: 0x7fc00000_7fc00000, compare: (*code).VCMPPS, move: (*code).VMOVAPS, blend: (*code).VBLENDVPS,
		min: (*code).VMINPS, max: (*code).VMAXPS, rangeOf: (*code).VRANGEPS,
	}
	float64s = precision{
		nan: 0x7ff80000_00000000, compare: (*code).VCMPPD, move: (*code).VMOVAPD, blend: (*code).VBLENDVPD,
		min: (*code).VMINPD, max: (*code).VMAXPD, rangeOf: (*code).VRANGEPD,
	}
)

// unordered returns a mask of the elements for which x or y is a NaN.
func (p precision) unordered(c *code, x, y reg.VecVirtual) reg.Register {
	var mask reg.Register = c.register()
	if c.set.masks {
		mask = c.K()
	}
	p.compare(c, operand.U8(3), y, x, mask)
	return mask
}

// putNaN writes the NaN that kernels yield to the elements of x that the mask selects.
func (p precision) putNaN(c *code, mask reg.Register, x reg.VecVirtual) {
	if c.set.masks {
		p.move(c, c.constant(p.nan), mask, x)
	} else {
		p.blend(c, mask, c.constant(p.nan), x, x)
	}
}

// canonicalNaN returns rule r, followed by code that replaces every NaN result by the one NaN that
// kernels yield.
func canonicalNaN(p precision, r rule) rule {
	return func(c *code, x reg.VecVirtual, y operand.Mem) {
		r(c, x, y)
		p.putNaN(c, p.unordered(c, x, x), x)
	}
}

// inBothOrders returns a rule that applies an instruction to the operands in both orders, and
// combines the bits of the two results with the instruction combine. If an operand is a NaN, the
// rule yields the NaN that kernels yield.
func inBothOrders(p precision, instruction, combine func(c *code, ops ...operand.Op)) rule {
	return func(c *code, x reg.VecVirtual, m operand.Mem) {
		y, other := c.loaded(m), c.register()
		nan := p.unordered(c, x, y)
		instruction(c, y, x, other)
		instruction(c, x, y, x)
		combine(c, other, x, x)
		p.putNaN(c, nan, x)
	}
}

// minFloats combines the minima of both orders by OR. Of two zeros the processor returns the second
// operand, so if one zero is -0, one of the results has the sign bit.
func minFloats(p precision) rule { return inBothOrders(p, p.min, (*code).or) }

// maxFloats combines the maxima of both orders by AND: if one of two zeros is +0, one of the results
// lacks the sign bit.
func maxFloats(p precision) rule { return inBothOrders(p, p.max, (*code).and) }

// Immediate operands of VRANGE for the minimum and the maximum; with 01 in bits 3 and 2 the result
// keeps the sign of the chosen operand. VRANGE treats -0 as less than +0. If one operand is a quiet
// NaN, VRANGE chooses the other, so rangeOf handles NaNs itself.
const (
	rangeMin = 0b01_00
	rangeMax = 0b01_01
)

// rangeOf returns the rule for the minimum or the maximum by VRANGE, which only AVX-512 has. what is
// rangeMin or rangeMax.
func rangeOf(p precision, what uint8) rule {
	return func(c *code, x reg.VecVirtual, m operand.Mem) {
		y := c.loaded(m)
		nan := p.unordered(c, x, y)
		p.rangeOf(c, operand.U8(what), y, x, x)
		p.putNaN(c, nan, x)
	}
}
