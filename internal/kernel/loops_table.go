package kernel

// loops holds the Go loop of each operation and type; nil: MPI does not define the combination. The
// sums of complex numbers are those of their parts, and a bool is a byte that is 0 or 1.
var loops = [ops][types]loop{
	Sum: {
		Int8: sumSmall[int8], Int16: sumSmall[int16], Int32: sumInts[int32], Int64: sumInts[int64],
		Int: sumInts[int], Uint8: sumSmall[uint8], Uint16: sumSmall[uint16], Uint32: sumInts[uint32],
		Uint64: sumInts[uint64], Uint: sumInts[uint], Uintptr: sumInts[uintptr], Float32: sumFloats[float32],
		Float64: sumFloats[float64], Complex64: sumFloats[float32], Complex128: sumFloats[float64],
	},
	Prod: {
		Int8: prodInts[int8], Int16: prodInts[int16], Int32: prodInts[int32], Int64: prodInts[int64],
		Int: prodInts[int], Uint8: prodInts[uint8], Uint16: prodInts[uint16], Uint32: prodInts[uint32],
		Uint64: prodInts[uint64], Uint: prodInts[uint], Uintptr: prodInts[uintptr], Float32: prodFloats[float32],
		Float64: prodFloats[float64], Complex64: prodComplex[complex64], Complex128: prodComplex[complex128],
	},
	Min: {
		Int8: minInts[int8], Int16: minInts[int16], Int32: minInts[int32], Int64: minInts[int64],
		Int: minInts[int], Uint8: minInts[uint8], Uint16: minInts[uint16], Uint32: minInts[uint32],
		Uint64: minInts[uint64], Uint: minInts[uint], Uintptr: minInts[uintptr], Float32: minFloats[float32],
		Float64: minFloats[float64],
	},
	Max: {
		Int8: maxInts[int8], Int16: maxInts[int16], Int32: maxInts[int32], Int64: maxInts[int64],
		Int: maxInts[int], Uint8: maxInts[uint8], Uint16: maxInts[uint16], Uint32: maxInts[uint32],
		Uint64: maxInts[uint64], Uint: maxInts[uint], Uintptr: maxInts[uintptr], Float32: maxFloats[float32],
		Float64: maxFloats[float64],
	},
	Band: {
		Int8: andBits, Int16: andBits, Int32: andBits, Int64: andBits,
		Int: andBits, Uint8: andBits, Uint16: andBits, Uint32: andBits,
		Uint64: andBits, Uint: andBits, Uintptr: andBits,
	},
	Bor: {
		Int8: orBits, Int16: orBits, Int32: orBits, Int64: orBits,
		Int: orBits, Uint8: orBits, Uint16: orBits, Uint32: orBits,
		Uint64: orBits, Uint: orBits, Uintptr: orBits,
	},
	Bxor: {
		Int8: xorBits, Int16: xorBits, Int32: xorBits, Int64: xorBits,
		Int: xorBits, Uint8: xorBits, Uint16: xorBits, Uint32: xorBits,
		Uint64: xorBits, Uint: xorBits, Uintptr: xorBits,
	},
	Land: {
		Int8: land[int8], Int16: land[int16], Int32: land[int32], Int64: land[int64],
		Int: land[int], Uint8: land[uint8], Uint16: land[uint16], Uint32: land[uint32],
		Uint64: land[uint64], Uint: land[uint], Uintptr: land[uintptr], Bool: land[uint8],
	},
	Lor: {
		Int8: lor[int8], Int16: lor[int16], Int32: lor[int32], Int64: lor[int64],
		Int: lor[int], Uint8: lor[uint8], Uint16: lor[uint16], Uint32: lor[uint32],
		Uint64: lor[uint64], Uint: lor[uint], Uintptr: lor[uintptr], Bool: lor[uint8],
	},
	Lxor: {
		Int8: lxor[int8], Int16: lxor[int16], Int32: lxor[int32], Int64: lxor[int64],
		Int: lxor[int], Uint8: lxor[uint8], Uint16: lxor[uint16], Uint32: lxor[uint32],
		Uint64: lxor[uint64], Uint: lxor[uint], Uintptr: lxor[uintptr], Bool: lxor[uint8],
	},
	MinLoc: {
		Int8: minLoc[int8], Int16: minLoc[int16], Int32: minLoc[int32], Int64: minLoc[int64],
		Int: minLoc[int], Uint8: minLoc[uint8], Uint16: minLoc[uint16], Uint32: minLoc[uint32],
		Uint64: minLoc[uint64], Uint: minLoc[uint], Uintptr: minLoc[uintptr], Float32: minLocFloat[float32],
		Float64: minLocFloat[float64],
	},
	MaxLoc: {
		Int8: maxLoc[int8], Int16: maxLoc[int16], Int32: maxLoc[int32], Int64: maxLoc[int64],
		Int: maxLoc[int], Uint8: maxLoc[uint8], Uint16: maxLoc[uint16], Uint32: maxLoc[uint32],
		Uint64: maxLoc[uint64], Uint: maxLoc[uint], Uintptr: maxLoc[uintptr], Float32: maxLocFloat[float32],
		Float64: maxLocFloat[float64],
	},
}

// sizes holds the bytes of an element of each type.
var sizes = [types]int{
	Int8: 1, Int16: 2, Int32: 4, Int64: 8, Int: sizeOf[int](),
	Uint8: 1, Uint16: 2, Uint32: 4, Uint64: 8, Uint: sizeOf[uint](), Uintptr: sizeOf[uintptr](),
	Float32: 4, Float64: 8, Complex64: 8, Complex128: 16, Bool: 1,
}

// pairSizes holds the bytes of a Pair of each type; 0: MinLoc and MaxLoc are not defined for it.
var pairSizes = [types]int{
	Int8: sizeOf[Pair[int8]](), Int16: sizeOf[Pair[int16]](), Int32: sizeOf[Pair[int32]](),
	Int64: sizeOf[Pair[int64]](), Int: sizeOf[Pair[int]](), Uint8: sizeOf[Pair[uint8]](),
	Uint16: sizeOf[Pair[uint16]](), Uint32: sizeOf[Pair[uint32]](), Uint64: sizeOf[Pair[uint64]](),
	Uint: sizeOf[Pair[uint]](), Uintptr: sizeOf[Pair[uintptr]](), Float32: sizeOf[Pair[float32]](),
	Float64: sizeOf[Pair[float64]](),
}
