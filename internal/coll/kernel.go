package coll

// OpKind is a built-in operation.
type OpKind int

// The built-in operations. In all of them the operand of the lower rank stands
// on the left, and all of them commute.
//
// OpMin and OpMax of floating-point numbers are Go's min and max: a NaN
// operand makes the result NaN, and -0 is less than +0; so the order of the
// operands does not matter, and a NaN on one rank is seen by all. MPI leaves
// this open.
//
// OpLand, OpLor and OpLxor take every value but 0 as true and yield 0 or 1.
//
// OpMinLoc and OpMaxLoc work on Pair: the least or greatest value, and of equal
// values (-0 equals +0) the least index. A NaN value wins over all others.
// Equal values at equal indices leave no trace of the order either: -0 wins.
const (
	OpSum OpKind = iota
	OpProd
	OpMin
	OpMax
	OpBand
	OpBor
	OpBxor
	OpLand
	OpLor
	OpLxor
	OpMinLoc
	OpMaxLoc

	opKinds
)

// Type is an element type that built-in operations know.
type Type int

// The element types.
const (
	TypeInt8 Type = iota
	TypeInt16
	TypeInt32
	TypeInt64
	TypeInt
	TypeUint8
	TypeUint16
	TypeUint32
	TypeUint64
	TypeUint
	TypeUintptr
	TypeFloat32
	TypeFloat64
	TypeComplex64
	TypeComplex128
	TypeBool

	types
)

// Pair is what OpMinLoc and OpMaxLoc combine: a value and where it is, as the
// rank or an index there.
type Pair[T any] struct {
	Value T
	Index int
}

// Kernel returns the operation over elements of type t (over Pair of it for
// OpMinLoc and OpMaxLoc), or false where MPI has no such pair: bits of floating
// point numbers, an order of complex ones, sums of bools. It does not allocate.
// The operands of Combine are equally long, and both are aligned for the type.
func Kernel(op OpKind, t Type) (Op, bool) {
	if op < 0 || op >= opKinds || t < 0 || t >= types {
		return Op{}, false
	}
	o := kernels[op][t]
	return o, o.Combine != nil
}

// kernels is the seam for faster kernels: an architecture that has some
// replaces entries in an init function.
var kernels = [opKinds][types]Op{
	OpSum: {
		TypeInt8: kernel[int8](addBytes), TypeInt16: kernel[int16](addHalves), TypeInt32: kernel[int32](sum[int32]),
		TypeInt64: kernel[int64](sum[int64]), TypeInt: kernel[int](sum[int]),
		TypeUint8: kernel[uint8](addBytes), TypeUint16: kernel[uint16](addHalves), TypeUint32: kernel[uint32](sum[uint32]),
		TypeUint64: kernel[uint64](sum[uint64]), TypeUint: kernel[uint](sum[uint]), TypeUintptr: kernel[uintptr](sum[uintptr]),
		TypeFloat32: kernel[float32](sum[float32]), TypeFloat64: kernel[float64](sum[float64]),
		TypeComplex64: kernel[complex64](sum[complex64]), TypeComplex128: kernel[complex128](sum[complex128]),
	},
	OpProd: {
		TypeInt8: kernel[int8](prod[int8]), TypeInt16: kernel[int16](prod[int16]), TypeInt32: kernel[int32](prod[int32]),
		TypeInt64: kernel[int64](prod[int64]), TypeInt: kernel[int](prod[int]),
		TypeUint8: kernel[uint8](prod[uint8]), TypeUint16: kernel[uint16](prod[uint16]), TypeUint32: kernel[uint32](prod[uint32]),
		TypeUint64: kernel[uint64](prod[uint64]), TypeUint: kernel[uint](prod[uint]), TypeUintptr: kernel[uintptr](prod[uintptr]),
		TypeFloat32: kernel[float32](prod[float32]), TypeFloat64: kernel[float64](prod[float64]),
		TypeComplex64: kernel[complex64](prod[complex64]), TypeComplex128: kernel[complex128](prod[complex128]),
	},
	OpMin: {
		TypeInt8: kernel[int8](least[int8]), TypeInt16: kernel[int16](least[int16]), TypeInt32: kernel[int32](least[int32]),
		TypeInt64: kernel[int64](least[int64]), TypeInt: kernel[int](least[int]),
		TypeUint8: kernel[uint8](least[uint8]), TypeUint16: kernel[uint16](least[uint16]), TypeUint32: kernel[uint32](least[uint32]),
		TypeUint64: kernel[uint64](least[uint64]), TypeUint: kernel[uint](least[uint]), TypeUintptr: kernel[uintptr](least[uintptr]),
		TypeFloat32: kernel[float32](least[float32]), TypeFloat64: kernel[float64](least[float64]),
	},
	OpMax: {
		TypeInt8: kernel[int8](most[int8]), TypeInt16: kernel[int16](most[int16]), TypeInt32: kernel[int32](most[int32]),
		TypeInt64: kernel[int64](most[int64]), TypeInt: kernel[int](most[int]),
		TypeUint8: kernel[uint8](most[uint8]), TypeUint16: kernel[uint16](most[uint16]), TypeUint32: kernel[uint32](most[uint32]),
		TypeUint64: kernel[uint64](most[uint64]), TypeUint: kernel[uint](most[uint]), TypeUintptr: kernel[uintptr](most[uintptr]),
		TypeFloat32: kernel[float32](most[float32]), TypeFloat64: kernel[float64](most[float64]),
	},
	OpBand: bitwise(andBits),
	OpBor:  bitwise(orBits),
	OpBxor: bitwise(xorBits),
	OpLand: {
		TypeInt8: kernel[int8](land[int8]), TypeInt16: kernel[int16](land[int16]), TypeInt32: kernel[int32](land[int32]),
		TypeInt64: kernel[int64](land[int64]), TypeInt: kernel[int](land[int]),
		TypeUint8: kernel[uint8](land[uint8]), TypeUint16: kernel[uint16](land[uint16]), TypeUint32: kernel[uint32](land[uint32]),
		TypeUint64: kernel[uint64](land[uint64]), TypeUint: kernel[uint](land[uint]), TypeUintptr: kernel[uintptr](land[uintptr]),
		TypeBool: kernel[uint8](land[uint8]),
	},
	OpLor: {
		TypeInt8: kernel[int8](lor[int8]), TypeInt16: kernel[int16](lor[int16]), TypeInt32: kernel[int32](lor[int32]),
		TypeInt64: kernel[int64](lor[int64]), TypeInt: kernel[int](lor[int]),
		TypeUint8: kernel[uint8](lor[uint8]), TypeUint16: kernel[uint16](lor[uint16]), TypeUint32: kernel[uint32](lor[uint32]),
		TypeUint64: kernel[uint64](lor[uint64]), TypeUint: kernel[uint](lor[uint]), TypeUintptr: kernel[uintptr](lor[uintptr]),
		TypeBool: kernel[uint8](lor[uint8]),
	},
	OpLxor: {
		TypeInt8: kernel[int8](lxor[int8]), TypeInt16: kernel[int16](lxor[int16]), TypeInt32: kernel[int32](lxor[int32]),
		TypeInt64: kernel[int64](lxor[int64]), TypeInt: kernel[int](lxor[int]),
		TypeUint8: kernel[uint8](lxor[uint8]), TypeUint16: kernel[uint16](lxor[uint16]), TypeUint32: kernel[uint32](lxor[uint32]),
		TypeUint64: kernel[uint64](lxor[uint64]), TypeUint: kernel[uint](lxor[uint]), TypeUintptr: kernel[uintptr](lxor[uintptr]),
		TypeBool: kernel[uint8](lxor[uint8]),
	},
	OpMinLoc: {
		TypeInt8: pairs[int8](minLoc[int8]), TypeInt16: pairs[int16](minLoc[int16]), TypeInt32: pairs[int32](minLoc[int32]),
		TypeInt64: pairs[int64](minLoc[int64]), TypeInt: pairs[int](minLoc[int]),
		TypeUint8: pairs[uint8](minLoc[uint8]), TypeUint16: pairs[uint16](minLoc[uint16]), TypeUint32: pairs[uint32](minLoc[uint32]),
		TypeUint64: pairs[uint64](minLoc[uint64]), TypeUint: pairs[uint](minLoc[uint]), TypeUintptr: pairs[uintptr](minLoc[uintptr]),
		TypeFloat32: pairs[float32](minLoc[float32]), TypeFloat64: pairs[float64](minLoc[float64]),
	},
	OpMaxLoc: {
		TypeInt8: pairs[int8](maxLoc[int8]), TypeInt16: pairs[int16](maxLoc[int16]), TypeInt32: pairs[int32](maxLoc[int32]),
		TypeInt64: pairs[int64](maxLoc[int64]), TypeInt: pairs[int](maxLoc[int]),
		TypeUint8: pairs[uint8](maxLoc[uint8]), TypeUint16: pairs[uint16](maxLoc[uint16]), TypeUint32: pairs[uint32](maxLoc[uint32]),
		TypeUint64: pairs[uint64](maxLoc[uint64]), TypeUint: pairs[uint](maxLoc[uint]), TypeUintptr: pairs[uintptr](maxLoc[uintptr]),
		TypeFloat32: pairs[float32](maxLoc[float32]), TypeFloat64: pairs[float64](maxLoc[float64]),
	},
}

// bitwise is the row of an operation that does not care for element borders.
func bitwise(f func(inout, in []byte)) [types]Op {
	return [types]Op{
		TypeInt8: kernel[int8](f), TypeInt16: kernel[int16](f), TypeInt32: kernel[int32](f),
		TypeInt64: kernel[int64](f), TypeInt: kernel[int](f),
		TypeUint8: kernel[uint8](f), TypeUint16: kernel[uint16](f), TypeUint32: kernel[uint32](f),
		TypeUint64: kernel[uint64](f), TypeUint: kernel[uint](f), TypeUintptr: kernel[uintptr](f),
	}
}

func kernel[T any](f func(inout, in []byte)) Op {
	return Op{Size: sizeOf[T](), Commutes: true, Combine: f}
}

func pairs[T any](f func(inout, in []byte)) Op {
	return Op{Size: sizeOf[Pair[T]](), Commutes: true, Combine: f}
}
