//go:build libfabric

package fi

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"slices"
)

// This file is an oracle for the tests of atomic operations: it computes in Go what the operations,
// as fi_atomic(3) defines them, do to single elements.

// kind is the category of a datatype. Some operations are defined only for some kinds.
type kind int

const (
	integer kind = iota
	floating
	complexes
)

func (t Datatype) kind() kind {
	switch t { //nolint:exhaustive // all others are integers
	case TypeFloat32, TypeFloat64, TypeLongDouble, TypeFloat16, TypeBFloat16, TypeFloat8E4M3, TypeFloat8E5M2:
		return floating
	case TypeComplex64, TypeComplex128, TypeLongDoubleComplex:
		return complexes
	}
	return integer
}

func (t Datatype) signed() bool {
	return slices.Contains([]Datatype{TypeInt8, TypeInt16, TypeInt32, TypeInt64, TypeInt128}, t)
}

// cell is the value of an element: i if the datatype is an integer, f if it is a floating point or
// complex number. The other field is zero.
type cell struct {
	i big.Int
	f complex128
}

func (t Datatype) cell(re, im int64) cell {
	c := cell{f: complex(float64(re), 0)}
	c.i.SetInt64(re)
	if t.kind() == complexes {
		c.f = complex(float64(re), float64(im))
	}
	return t.wrapped(c)
}

// wrapped returns c converted to the range of t if t is an integer type. For other types it returns
// c.f unchanged.
func (t Datatype) wrapped(c cell) cell {
	if t.kind() != integer {
		return cell{f: c.f}
	}
	bits := uint(8 * t.Size())
	w := new(big.Int).Lsh(big.NewInt(1), bits)
	var out cell
	out.i.Mod(&c.i, w)
	if t.signed() && out.i.Bit(int(bits)-1) == 1 {
		out.i.Sub(&out.i, w)
	}
	return out
}

func (c cell) zero() bool         { return c.i.Sign() == 0 && c.f == 0 }
func (c cell) equals(d cell) bool { return c.i.Cmp(&d.i) == 0 && c.f == d.f }
func (c cell) less(d cell) bool   { return c.i.Cmp(&d.i) < 0 || real(c.f) < real(d.f) }

// String prints the value. It prints both floating point zeros, +0 and -0, in the same way.
func (c cell) String() string { return fmt.Sprintf("%v|%v", &c.i, c.f+0) }

// apply returns the value that op gives the target's element. It returns false if fi_atomic(3) does
// not define op for the datatype.
func (t Datatype) apply(op AtomicOp, target, operand, compare cell) (cell, bool) {
	truth := func(b bool) cell {
		if b {
			return t.cell(1, 0)
		}
		return t.cell(0, 0)
	}
	swapIf := func(b bool) cell {
		if b {
			return operand
		}
		return target
	}
	ints := func(f func(z, x, y *big.Int) *big.Int) (cell, bool) {
		var out cell
		f(&out.i, &target.i, &operand.i)
		return t.wrapped(out), t.kind() == integer
	}
	k := t.kind()
	switch op { //nolint:exhaustive // AtomicNoop is for collectives
	case AtomicMin:
		return swapIf(operand.less(target)), k != complexes
	case AtomicMax:
		return swapIf(target.less(operand)), k != complexes
	case AtomicSum:
		c, _ := ints((*big.Int).Add)
		c.f = target.f + operand.f
		return c, true
	case AtomicProd:
		c, _ := ints((*big.Int).Mul)
		c.f = target.f * operand.f
		return c, true
	case AtomicDiff:
		c, _ := ints((*big.Int).Sub)
		c.f = target.f - operand.f
		return c, true
	case AtomicLogicalOr:
		return truth(!target.zero() || !operand.zero()), true
	case AtomicLogicalAnd:
		return truth(!target.zero() && !operand.zero()), true
	case AtomicLogicalXor:
		return truth(target.zero() != operand.zero()), true
	case AtomicBitOr:
		return ints((*big.Int).Or)
	case AtomicBitAnd:
		return ints((*big.Int).And)
	case AtomicBitXor:
		return ints((*big.Int).Xor)
	case AtomicRead:
		return target, true
	case AtomicWrite:
		return operand, true
	case AtomicCompareSwap:
		return swapIf(compare.equals(target)), true
	case AtomicCompareSwapNE:
		return swapIf(!compare.equals(target)), true
	case AtomicCompareSwapLE:
		return swapIf(!target.less(compare)), k != complexes
	case AtomicCompareSwapLT:
		return swapIf(compare.less(target)), k != complexes
	case AtomicCompareSwapGE:
		return swapIf(!compare.less(target)), k != complexes
	case AtomicCompareSwapGT:
		return swapIf(target.less(compare)), k != complexes
	case AtomicMaskSwap:
		return ints(func(z, x, y *big.Int) *big.Int {
			var keep big.Int
			keep.AndNot(x, &compare.i)
			return z.Or(z.And(y, &compare.i), &keep)
		})
	}
	return cell{}, false
}

// append appends to b the bytes of the element c, in the layout of C on a little-endian machine.
func (t Datatype) append(b []byte, c cell) []byte {
	re, im := real(c.f), imag(c.f)
	switch t { //nolint:exhaustive // all others are integers
	case TypeFloat32:
		return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(re)))
	case TypeFloat64:
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(re))
	case TypeComplex64:
		return TypeFloat32.append(TypeFloat32.append(b, cell{f: complex(re, 0)}), cell{f: complex(im, 0)})
	case TypeComplex128:
		return TypeFloat64.append(TypeFloat64.append(b, cell{f: complex(re, 0)}), cell{f: complex(im, 0)})
	case TypeLongDouble:
		return appendX87(b, re)
	case TypeLongDoubleComplex:
		return appendX87(appendX87(b, re), im)
	}
	var wide big.Int
	wide.Mod(&c.i, new(big.Int).Lsh(big.NewInt(1), uint(8*t.Size())))
	bytes := wide.FillBytes(make([]byte, t.Size()))
	slices.Reverse(bytes)
	return append(b, bytes...)
}

// cells decodes the elements in b. It is the inverse of [Datatype.append].
func (t Datatype) cells(b []byte) []cell {
	var out []cell
	for ; len(b) > 0; b = b[t.Size():] {
		var c cell
		switch t {
		case TypeFloat32:
			c.f = complex(float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), 0)
		case TypeFloat64:
			c.f = complex(math.Float64frombits(binary.LittleEndian.Uint64(b)), 0)
		case TypeComplex64:
			c.f = complex(real(TypeFloat32.cells(b[:4])[0].f), real(TypeFloat32.cells(b[4:8])[0].f))
		case TypeComplex128:
			c.f = complex(real(TypeFloat64.cells(b[:8])[0].f), real(TypeFloat64.cells(b[8:16])[0].f))
		case TypeLongDouble:
			c.f = complex(x87(b), 0)
		case TypeLongDoubleComplex:
			c.f = complex(x87(b), x87(b[16:]))
		default:
			bytes := slices.Clone(b[:t.Size()])
			slices.Reverse(bytes)
			c.i.SetBytes(bytes)
			c = t.wrapped(c)
		}
		out = append(out, c)
	}
	return out
}

// appendX87 appends an extended double of amd64: 64 bits of mantissa including the leading one, 15
// of exponent, a sign, and six bytes of padding.
func appendX87(b []byte, f float64) []byte {
	var mantissa uint64
	var exponent uint16
	if f != 0 {
		fraction, e := math.Frexp(math.Abs(f)) // fraction is in [½, 1)
		mantissa, exponent = uint64(fraction*(1<<53))<<11, uint16(e-1+16383)
	}
	if math.Signbit(f) {
		exponent |= 1 << 15
	}
	b = binary.LittleEndian.AppendUint64(b, mantissa)
	b = binary.LittleEndian.AppendUint16(b, exponent)
	return append(b, 0, 0, 0, 0, 0, 0)
}

func x87(b []byte) float64 {
	mantissa, exponent := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint16(b[8:])
	f := math.Ldexp(float64(mantissa), int(exponent&0x7fff)-16383-63)
	if exponent>>15 == 1 {
		f = -f
	}
	return f
}
