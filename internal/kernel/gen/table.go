package main

// lane describes the elements that a kernel combines.
type lane struct {
	name  string   // the last part of the function's name
	size  int      // bytes of an element in memory
	types []string // the element types that the kernel serves, by their names in package kernel

	// doubled means that the parts of an element are float32 in memory and float64 in registers.
	doubled bool
}

// Integers, for operations that do not depend on the sign.
var (
	any8  = lane{name: "8", size: 1, types: []string{"Int8", "Uint8"}}
	any16 = lane{name: "16", size: 2, types: []string{"Int16", "Uint16"}}
	any32 = lane{name: "32", size: 4, types: []string{"Int32", "Uint32"}}
	any64 = lane{name: "64", size: 8, types: []string{"Int64", "Int", "Uint64", "Uint", "Uintptr"}}
)

// Integers, for operations that depend on the sign.
var (
	i8  = lane{name: "I8", size: 1, types: []string{"Int8"}}
	i16 = lane{name: "I16", size: 2, types: []string{"Int16"}}
	i32 = lane{name: "I32", size: 4, types: []string{"Int32"}}
	i64 = lane{name: "I64", size: 8, types: []string{"Int64", "Int"}}
	u8  = lane{name: "U8", size: 1, types: []string{"Uint8"}}
	u16 = lane{name: "U16", size: 2, types: []string{"Uint16"}}
	u32 = lane{name: "U32", size: 4, types: []string{"Uint32"}}
	u64 = lane{name: "U64", size: 8, types: []string{"Uint64", "Uint", "Uintptr"}}
)

// Floating-point and complex numbers.
var (
	f32  = lane{name: "F32", size: 4, types: []string{"Float32"}}
	f64  = lane{name: "F64", size: 8, types: []string{"Float64"}}
	c64  = lane{name: "C64", size: 8, types: []string{"Complex64"}, doubled: true}
	c128 = lane{name: "C128", size: 16, types: []string{"Complex128"}}
)

// Floating-point numbers, and the parts of complex numbers: the sum of complex numbers is the sum
// of their parts.
var (
	parts32 = lane{name: "F32", size: 4, types: []string{"Float32", "Complex64"}}
	parts64 = lane{name: "F64", size: 8, types: []string{"Float64", "Complex128"}}
)

// Bytes, for bitwise operations.
var bits = lane{name: "Bits", size: 1, types: []string{
	"Int8", "Int16", "Int32", "Int64", "Int", "Uint8", "Uint16", "Uint32", "Uint64", "Uint", "Uintptr",
}}

// truth8 also serves bool, which is a byte that is 0 or 1.
var truth8 = lane{name: "8", size: 1, types: []string{"Int8", "Uint8", "Bool"}}

// kernel is one generated function.
type kernel struct {
	op   string // the operation, by its name in package kernel
	lane lane
	rule rule
}

// kernels are the functions to generate for each instruction set: the operation, the elements, and
// the rule that combines a register with memory.
var kernels = []kernel{
	{"Sum", any8, single((*code).VPADDB)},
	{"Sum", any16, single((*code).VPADDW)},
	{"Sum", any32, single((*code).VPADDD)},
	{"Sum", any64, single((*code).VPADDQ)},
	{"Sum", parts32, canonicalNaN(float32s, single((*code).VADDPS))},
	{"Sum", parts64, canonicalNaN(float64s, single((*code).VADDPD))},

	{"Prod", any8, prodBytes},
	{"Prod", any16, single((*code).VPMULLW)},
	{"Prod", any32, single((*code).VPMULLD)},
	{"Prod", any64, perSet(prodQuads, single((*code).VPMULLQ))},
	{"Prod", f32, canonicalNaN(float32s, single((*code).VMULPS))},
	{"Prod", f64, canonicalNaN(float64s, single((*code).VMULPD))},
	{"Prod", c64, canonicalNaN(float64s, prodComplex)},
	{"Prod", c128, canonicalNaN(float64s, prodComplex)},

	{"Min", i8, single((*code).VPMINSB)},
	{"Min", i16, single((*code).VPMINSW)},
	{"Min", i32, single((*code).VPMINSD)},
	{"Min", i64, perSet(minMaxQuads{min: true, signed: true}.choose, single((*code).VPMINSQ))},
	{"Min", u8, single((*code).VPMINUB)},
	{"Min", u16, single((*code).VPMINUW)},
	{"Min", u32, single((*code).VPMINUD)},
	{"Min", u64, perSet(minMaxQuads{min: true}.choose, single((*code).VPMINUQ))},
	{"Min", f32, perSet(minFloats(float32s), rangeOf(float32s, rangeMin))},
	{"Min", f64, perSet(minFloats(float64s), rangeOf(float64s, rangeMin))},

	{"Max", i8, single((*code).VPMAXSB)},
	{"Max", i16, single((*code).VPMAXSW)},
	{"Max", i32, single((*code).VPMAXSD)},
	{"Max", i64, perSet(minMaxQuads{signed: true}.choose, single((*code).VPMAXSQ))},
	{"Max", u8, single((*code).VPMAXUB)},
	{"Max", u16, single((*code).VPMAXUW)},
	{"Max", u32, single((*code).VPMAXUD)},
	{"Max", u64, perSet(minMaxQuads{}.choose, single((*code).VPMAXUQ))},
	{"Max", f32, perSet(maxFloats(float32s), rangeOf(float32s, rangeMax))},
	{"Max", f64, perSet(maxFloats(float64s), rangeOf(float64s, rangeMax))},

	{"Band", bits, single((*code).and)},
	{"Bor", bits, single((*code).or)},
	{"Bxor", bits, single((*code).xor)},

	{"Land", truth8, truth8s.land},
	{"Land", any16, truth16s.land},
	{"Land", any32, truth32s.land},
	{"Land", any64, truth64s.land},

	{"Lor", truth8, truth8s.lor},
	{"Lor", any16, truth16s.lor},
	{"Lor", any32, truth32s.lor},
	{"Lor", any64, truth64s.lor},

	{"Lxor", truth8, truth8s.lxor},
	{"Lxor", any16, truth16s.lxor},
	{"Lxor", any32, truth32s.lxor},
	{"Lxor", any64, truth64s.lxor},
}
