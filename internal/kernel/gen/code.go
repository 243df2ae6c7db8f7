package main

import (
	"fmt"

	"github.com/mmcloughlin/avo/attr"
	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// set describes an instruction set.
type set struct {
	name  string
	width int  // bytes of a register
	masks bool // there are mask registers
}

var (
	avx2   = set{name: "avx2", width: 32}
	avx512 = set{name: "avx512", width: 64, masks: true}
)

// unroll is the number of registers that an iteration of the main loop combines.
const unroll = 4

// code generates one function.
type code struct {
	*build.Context
	set       *set
	lane      lane
	step      int                       // number of bytes in memory whose elements fill a register
	constants map[uint64]reg.VecVirtual // by pattern: the register that the method constant has filled with it
}

// function generates one kernel. Its operands have n ≥ width bytes:
//
//	dst   ├─ first ─┤                                       ├─ last ──┤
//	      ├──┼─────────────────┼─────────────────┼────────┼────────┼──┤
//	     d  skip    4 registers each    ...         1 register each   n
//
// The kernel loads and combines the first and the last register of the operands before it stores
// anything, and stores these two results after the loops. So the loops may start where dst is
// aligned and may leave a rest, even if dst is left or right. Bytes that the kernel stores twice get
// the same value both times.
func (s *set) function(ctx *build.Context, k kernel) {
	c := &code{Context: ctx, set: s, lane: k.lane, step: s.width, constants: map[uint64]reg.VecVirtual{}}
	if k.lane.doubled {
		c.step /= 2
	}
	c.Function(s.symbol(k))
	c.Attributes(attr.NOSPLIT)
	c.Pragma("noescape")
	c.SignatureExpr("func(dst, left, right *byte, n int)")
	c.Doc(fmt.Sprintf("%s is the [vector] for %s. n counts bytes and is at least %d.", s.symbol(k), k.op, s.width))

	dst, left, right, n := c.GP64(), c.GP64(), c.GP64(), c.GP64()
	c.Load(c.Param("dst"), dst)
	c.Load(c.Param("left"), left)
	c.Load(c.Param("right"), right)
	c.Load(c.Param("n"), n)

	at := func(base reg.Register, i int) operand.Mem { return operand.Mem{Base: base, Disp: i * c.step} }
	end := func(base reg.Register) operand.Mem { return operand.Mem{Base: base, Index: n, Scale: 1, Disp: -c.step} }

	c.Comment("Combine the first and the last register.")
	first, last := c.register(), c.register()
	c.load(at(left, 0), first)
	k.rule(c, first, at(right, 0))
	c.load(end(left), last)
	k.rule(c, last, end(right))
	dstFirst, dstLast := c.GP64(), c.GP64()
	c.MOVQ(dst, dstFirst)
	c.LEAQ(end(dst), dstLast)

	c.Comment("Advance to where dst is aligned.")
	skip := c.GP64()
	c.MOVQ(dst, skip)
	c.NEGQ(skip)
	c.ANDQ(operand.U32(c.step-c.lane.size), skip) // less than step, and a multiple of the element
	c.advance(skip, n, dst, left, right)

	for _, registers := range []int{unroll, 1} {
		loop, done := fmt.Sprintf("loop%d", registers), fmt.Sprintf("done%d", registers)
		bytes := operand.U32(registers * c.step)
		c.CMPQ(n, bytes)
		c.JL(operand.LabelRef(done))
		c.Label(loop)
		results := make([]reg.VecVirtual, registers)
		for i := range results {
			results[i] = c.register()
			c.load(at(left, i), results[i])
			k.rule(c, results[i], at(right, i))
		}
		for i, x := range results {
			c.store(x, at(dst, i))
		}
		c.advance(bytes, n, dst, left, right)
		c.CMPQ(n, bytes)
		c.JGE(operand.LabelRef(loop))
		c.Label(done)
	}

	c.store(first, operand.Mem{Base: dstFirst})
	c.store(last, operand.Mem{Base: dstLast})
	c.VZEROUPPER()
	c.RET()
}

// advance adds by to the pointers, and subtracts by from n, the number of remaining bytes.
func (c *code) advance(by, n operand.Op, pointers ...operand.Op) {
	for _, p := range pointers {
		c.ADDQ(by, p)
	}
	c.SUBQ(by, n)
}

// register returns a vector register of the instruction set that no other code of the function
// uses.
func (c *code) register() reg.VecVirtual {
	if c.set.masks {
		return c.ZMM()
	}
	return c.YMM()
}

// load loads the elements at m into x. If the lane is doubled, it converts them to float64.
func (c *code) load(m operand.Mem, x reg.VecVirtual) {
	if c.lane.doubled {
		c.VCVTPS2PD(m, x)
	} else {
		c.VMOVUPS(m, x)
	}
}

// store stores x to memory. If the lane is doubled, store converts the elements to float32, in x.
func (c *code) store(x reg.VecVirtual, m operand.Mem) {
	switch {
	case !c.lane.doubled:
		c.VMOVUPS(x, m)
	case c.set.masks:
		c.VCVTPD2PS(x, x.AsY())
		c.VMOVUPS(x.AsY(), m)
	default:
		c.VCVTPD2PSY(x, x.AsX())
		c.VMOVUPS(x.AsX(), m)
	}
}

// constant returns a register filled with copies of a 64-bit pattern. The generated code fills the
// register once: at the place of the first call of constant with this pattern, which is before the
// loops.
func (c *code) constant(pattern uint64) reg.VecVirtual {
	if x, ok := c.constants[pattern]; ok {
		return x
	}
	r, x := c.GP64(), c.register()
	c.MOVQ(operand.U64(pattern), r)
	c.VMOVQ(r, x.AsX())
	c.VPBROADCASTQ(x.AsX(), x)
	c.constants[pattern] = x
	return x
}
