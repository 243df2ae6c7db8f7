package main

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// truth holds the constants and instructions for logical operations on integers of one size.
type truth struct {
	one   uint64 // the integer 1 of this size, repeated until it fills 64 bits
	equal func(c *code, ops ...operand.Op)
	test  func(c *code, ops ...operand.Op)
	move  func(c *code, from, mask, to operand.Op)
}

var (
	truth8s  = truth{0x0101010101010101, (*code).VPCMPEQB, (*code).VPTESTMB, (*code).VMOVDQU8_Z}
	truth16s = truth{0x0001000100010001, (*code).VPCMPEQW, (*code).VPTESTMW, (*code).VMOVDQU16_Z}
	truth32s = truth{0x0000000100000001, (*code).VPCMPEQD, (*code).VPTESTMD, (*code).VMOVDQU32_Z}
	truth64s = truth{0x0000000000000001, (*code).VPCMPEQQ, (*code).VPTESTMQ, (*code).VMOVDQU64_Z}
)

// land yields 1 for elements that are not 0 in both operands.
func (t truth) land(c *code, x reg.VecVirtual, m operand.Mem) {
	y := c.loaded(m)
	if c.set.masks {
		k := c.K()
		t.test(c, x, x, k)
		t.test(c, y, y, k, k)
		t.move(c, c.constant(t.one), k, x)
		return
	}
	t.zero(c, x)
	t.zero(c, y)
	c.VPOR(y, x, x)
	c.VPANDN(c.constant(t.one), x, x)
}

// lor yields 1 for elements that are not 0 in at least one operand.
func (t truth) lor(c *code, x reg.VecVirtual, y operand.Mem) {
	c.or(y, x, x)
	if c.set.masks {
		k := c.K()
		t.test(c, x, x, k)
		t.move(c, c.constant(t.one), k, x)
		return
	}
	t.zero(c, x)
	c.VPANDN(c.constant(t.one), x, x)
}

// lxor yields 1 for elements that are 0 in exactly one operand.
func (t truth) lxor(c *code, x reg.VecVirtual, m operand.Mem) {
	y := c.loaded(m)
	if c.set.masks {
		k, l := c.K(), c.K()
		t.test(c, x, x, k)
		t.test(c, y, y, l)
		c.KXORQ(l, k, k)
		t.move(c, c.constant(t.one), k, x)
		return
	}
	t.zero(c, x)
	t.zero(c, y)
	c.VPXOR(y, x, x)
	c.VPAND(c.constant(t.one), x, x)
}

// zero sets all bits of the elements of x that are 0, and clears all bits of the others.
func (t truth) zero(c *code, x reg.VecVirtual) {
	t.equal(c, c.constant(0), x, x)
}
