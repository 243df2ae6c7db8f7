//go:build libfabric

package fi

// #include "shim_atomic.h"
import "C"

import "fmt"

// Datatype is the type of the elements that an atomic operation works on
// (enum fi_datatype, fi_atomic(3)).
type Datatype uint32

// The datatypes. A complex number is its real part, then its imaginary part.
// [Endpoint.AtomicValid], its variants and [Domain.QueryAtomic] report which of them a provider
// supports with which operation.
const (
	TypeInt8              Datatype = C.FI_INT8
	TypeUint8             Datatype = C.FI_UINT8
	TypeInt16             Datatype = C.FI_INT16
	TypeUint16            Datatype = C.FI_UINT16
	TypeInt32             Datatype = C.FI_INT32
	TypeUint32            Datatype = C.FI_UINT32
	TypeInt64             Datatype = C.FI_INT64
	TypeUint64            Datatype = C.FI_UINT64
	TypeFloat32           Datatype = C.FI_FLOAT
	TypeFloat64           Datatype = C.FI_DOUBLE
	TypeComplex64         Datatype = C.FI_FLOAT_COMPLEX
	TypeComplex128        Datatype = C.FI_DOUBLE_COMPLEX
	TypeLongDouble        Datatype = C.FI_LONG_DOUBLE         // long double of the C compiler; 80 bits in 16 bytes on amd64
	TypeLongDoubleComplex Datatype = C.FI_LONG_DOUBLE_COMPLEX // two long doubles
	TypeInt128            Datatype = C.FI_INT128
	TypeUint128           Datatype = C.FI_UINT128
	TypeFloat16           Datatype = 16 // IEEE 754 binary16; this and the next three: libfabric 2.0 and newer
	TypeBFloat16          Datatype = 17
	TypeFloat8E4M3        Datatype = 18
	TypeFloat8E5M2        Datatype = 19
	TypeVoid              Datatype = C.FI_VOID // no data; only for collectives
)

// datatypes has the name and the size in bytes of each datatype except TypeVoid.
var datatypes = [...]struct {
	name string
	size int
}{
	TypeInt8:              {"FI_INT8", 1},
	TypeUint8:             {"FI_UINT8", 1},
	TypeInt16:             {"FI_INT16", 2},
	TypeUint16:            {"FI_UINT16", 2},
	TypeInt32:             {"FI_INT32", 4},
	TypeUint32:            {"FI_UINT32", 4},
	TypeInt64:             {"FI_INT64", 8},
	TypeUint64:            {"FI_UINT64", 8},
	TypeFloat32:           {"FI_FLOAT", 4},
	TypeFloat64:           {"FI_DOUBLE", 8},
	TypeComplex64:         {"FI_FLOAT_COMPLEX", 8},
	TypeComplex128:        {"FI_DOUBLE_COMPLEX", 16},
	TypeLongDouble:        {"FI_LONG_DOUBLE", C.sizeof_weft_long_double},
	TypeLongDoubleComplex: {"FI_LONG_DOUBLE_COMPLEX", 2 * C.sizeof_weft_long_double},
	TypeInt128:            {"FI_INT128", 16},
	TypeUint128:           {"FI_UINT128", 16},
	TypeFloat16:           {"FI_FLOAT16", 2},
	TypeBFloat16:          {"FI_BFLOAT16", 2},
	TypeFloat8E4M3:        {"FI_FLOAT8_E4M3", 1},
	TypeFloat8E5M2:        {"FI_FLOAT8_E5M2", 1},
}

// Datatypes returns every datatype except TypeVoid in libfabric's order, including those that the
// headers of this build lack.
func Datatypes() []Datatype {
	all := make([]Datatype, len(datatypes))
	for i := range all {
		all[i] = Datatype(i)
	}
	return all
}

// Size returns the size of one element in bytes, 0 for TypeVoid and for an unknown datatype.
func (t Datatype) Size() int {
	if int(t) < len(datatypes) {
		return datatypes[t].size
	}
	return 0
}

// String returns the name in C, for example "FI_INT8". It does not call fi_tostr, because an older
// library does not know newer datatypes.
func (t Datatype) String() string {
	if int(t) < len(datatypes) {
		return datatypes[t].name
	}
	if t == TypeVoid {
		return "FI_VOID"
	}
	return fmt.Sprintf("Datatype(%d)", uint32(t))
}

// known reports whether the headers of this build have the datatype.
func (t Datatype) known() bool { return t < C.WEFT_DATATYPE_END }

// AtomicOp is what an atomic operation does to the elements at the target (enum fi_op,
// fi_atomic(3)). In the comments below, target is an element of the target's memory. operand and
// compare are the elements of the arguments buf and compare with the same index.
type AtomicOp uint32

// The operations. Those from AtomicCompareSwap to AtomicMaskSwap are for CompareAtomic. The others
// are for Atomic and FetchAtomic, except AtomicRead, which is useful only with FetchAtomic, and
// AtomicNoop.
const (
	AtomicMin           AtomicOp = C.FI_MIN
	AtomicMax           AtomicOp = C.FI_MAX
	AtomicSum           AtomicOp = C.FI_SUM
	AtomicProd          AtomicOp = C.FI_PROD
	AtomicLogicalOr     AtomicOp = C.FI_LOR
	AtomicLogicalAnd    AtomicOp = C.FI_LAND
	AtomicBitOr         AtomicOp = C.FI_BOR
	AtomicBitAnd        AtomicOp = C.FI_BAND
	AtomicLogicalXor    AtomicOp = C.FI_LXOR
	AtomicBitXor        AtomicOp = C.FI_BXOR
	AtomicRead          AtomicOp = C.FI_ATOMIC_READ
	AtomicWrite         AtomicOp = C.FI_ATOMIC_WRITE
	AtomicCompareSwap   AtomicOp = C.FI_CSWAP    // target = operand if compare == target
	AtomicCompareSwapNE AtomicOp = C.FI_CSWAP_NE // target = operand if compare != target
	AtomicCompareSwapLE AtomicOp = C.FI_CSWAP_LE // target = operand if compare <= target
	AtomicCompareSwapLT AtomicOp = C.FI_CSWAP_LT // target = operand if compare < target
	AtomicCompareSwapGE AtomicOp = C.FI_CSWAP_GE // target = operand if compare >= target
	AtomicCompareSwapGT AtomicOp = C.FI_CSWAP_GT // target = operand if compare > target
	AtomicMaskSwap      AtomicOp = C.FI_MSWAP    // target = operand&compare | target&^compare
	AtomicDiff          AtomicOp = 19            // target = target - operand; libfabric 2.0 and newer
	AtomicNoop          AtomicOp = C.FI_NOOP     // only for collectives
)

var atomicOps = [...]string{
	AtomicMin:           "FI_MIN",
	AtomicMax:           "FI_MAX",
	AtomicSum:           "FI_SUM",
	AtomicProd:          "FI_PROD",
	AtomicLogicalOr:     "FI_LOR",
	AtomicLogicalAnd:    "FI_LAND",
	AtomicBitOr:         "FI_BOR",
	AtomicBitAnd:        "FI_BAND",
	AtomicLogicalXor:    "FI_LXOR",
	AtomicBitXor:        "FI_BXOR",
	AtomicRead:          "FI_ATOMIC_READ",
	AtomicWrite:         "FI_ATOMIC_WRITE",
	AtomicCompareSwap:   "FI_CSWAP",
	AtomicCompareSwapNE: "FI_CSWAP_NE",
	AtomicCompareSwapLE: "FI_CSWAP_LE",
	AtomicCompareSwapLT: "FI_CSWAP_LT",
	AtomicCompareSwapGE: "FI_CSWAP_GE",
	AtomicCompareSwapGT: "FI_CSWAP_GT",
	AtomicMaskSwap:      "FI_MSWAP",
	AtomicDiff:          "FI_DIFF",
}

// AtomicOps returns every operation except AtomicNoop in libfabric's order, including those that
// the headers of this build lack.
func AtomicOps() []AtomicOp {
	all := make([]AtomicOp, len(atomicOps))
	for i := range all {
		all[i] = AtomicOp(i)
	}
	return all
}

// String returns the name in C, for example "FI_MIN".
func (op AtomicOp) String() string {
	if int(op) < len(atomicOps) {
		return atomicOps[op]
	}
	if op == AtomicNoop {
		return "FI_NOOP"
	}
	return fmt.Sprintf("AtomicOp(%d)", uint32(op))
}

// known reports whether the headers of this build have the operation.
func (op AtomicOp) known() bool { return op < C.WEFT_ATOMIC_OP_END }
