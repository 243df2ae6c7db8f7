package main

// lane is how a kernel sees the bytes of its operands.
type lane struct {
	name  string   // in the function's name
	size  int      // bytes that belong together: no vector begins within them
	types []string // that the kernel serves, as package kernel calls them

	// doubled: the elements are float32 in memory and float64 in registers.
	doubled bool
}

// Where the sign does not matter.
var (
	any8  = lane{name: "8", size: 1, types: []string{"Int8", "Uint8"}}
	any16 = lane{name: "16", size: 2, types: []string{"Int16", "Uint16"}}
	any32 = lane{name: "32", size: 4, types: []string{"Int32", "Uint32"}}
	any64 = lane{name: "64", size: 8, types: []string{"Int64", "Int", "Uint64", "Uint", "Uintptr"}}
)

// Where it does.
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

var (
	f32  = lane{name: "F32", size: 4, types: []string{"Float32"}}
	f64  = lane{name: "F64", size: 8, types: []string{"Float64"}}
	c64  = lane{name: "C64", size: 8, types: []string{"Complex64"}, doubled: true}
	c128 = lane{name: "C128", size: 16, types: []string{"Complex128"}}
)

// A complex number is added as two floating-point numbers are.
var (
	parts32 = lane{name: "F32", size: 4, types: []string{"Float32", "Complex64"}}
	parts64 = lane{name: "F64", size: 8, types: []string{"Float64", "Complex128"}}
)

var bits = lane{name: "Bits", size: 1, types: []string{
	"Int8", "Int16", "Int32", "Int64", "Int", "Uint8", "Uint16", "Uint32", "Uint64", "Uint", "Uintptr",
}}

// truth8 serves bool too, which is a byte that is 0 or 1.
var truth8 = lane{name: "8", size: 1, types: []string{"Int8", "Uint8", "Bool"}}

// kernel is one function.
type kernel struct {
	op   string // as package kernel calls it
	lane lane
	rule rule
}

// kernels are all that there are, in each instruction set. A row says: the
// operation, the elements, and how two registers of them are combined.
var kernels = []kernel{
	{"Sum", any8, by((*code).VPADDB)},
	{"Sum", any16, by((*code).VPADDW)},
	{"Sum", any32, by((*code).VPADDD)},
	{"Sum", any64, by((*code).VPADDQ)},
	{"Sum", parts32, quiet(single, by((*code).VADDPS))},
	{"Sum", parts64, quiet(double, by((*code).VADDPD))},

	{"Prod", any8, prodBytes},
	{"Prod", any16, by((*code).VPMULLW)},
	{"Prod", any32, by((*code).VPMULLD)},
	{"Prod", any64, either(prodQuads, by((*code).VPMULLQ))},
	{"Prod", f32, quiet(single, by((*code).VMULPS))},
	{"Prod", f64, quiet(double, by((*code).VMULPD))},
	{"Prod", c64, quiet(double, prodComplex)},
	{"Prod", c128, quiet(double, prodComplex)},

	{"Min", i8, by((*code).VPMINSB)},
	{"Min", i16, by((*code).VPMINSW)},
	{"Min", i32, by((*code).VPMINSD)},
	{"Min", i64, either(quads{min: true, signed: true}.choose, by((*code).VPMINSQ))},
	{"Min", u8, by((*code).VPMINUB)},
	{"Min", u16, by((*code).VPMINUW)},
	{"Min", u32, by((*code).VPMINUD)},
	{"Min", u64, either(quads{min: true}.choose, by((*code).VPMINUQ))},
	{"Min", f32, either(minFloats(single), rangeOf(single, rangeMin))},
	{"Min", f64, either(minFloats(double), rangeOf(double, rangeMin))},

	{"Max", i8, by((*code).VPMAXSB)},
	{"Max", i16, by((*code).VPMAXSW)},
	{"Max", i32, by((*code).VPMAXSD)},
	{"Max", i64, either(quads{signed: true}.choose, by((*code).VPMAXSQ))},
	{"Max", u8, by((*code).VPMAXUB)},
	{"Max", u16, by((*code).VPMAXUW)},
	{"Max", u32, by((*code).VPMAXUD)},
	{"Max", u64, either(quads{}.choose, by((*code).VPMAXUQ))},
	{"Max", f32, either(maxFloats(single), rangeOf(single, rangeMax))},
	{"Max", f64, either(maxFloats(double), rangeOf(double, rangeMax))},

	{"Band", bits, by((*code).and)},
	{"Bor", bits, by((*code).or)},
	{"Bxor", bits, by((*code).xor)},

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
