package transport

// AtomicOp is an operation of fi_atomic(3). The comments on the constants give
// the new value of the target's element t.
type AtomicOp uint8

// The operations. AtomicCswap needs Op.Compare and Op.Fetch.
const (
	AtomicMin   AtomicOp = iota // min(t, data)
	AtomicMax                   // max(t, data)
	AtomicSum                   // t + data
	AtomicProd                  // t × data
	AtomicLor                   // t || data: 0 or 1
	AtomicLand                  // t && data
	AtomicBor                   // t | data
	AtomicBand                  // t & data
	AtomicLxor                  // (t != 0) != (data != 0)
	AtomicBxor                  // t ^ data
	AtomicRead                  // t; Op.Fetch receives t, Op.Data is ignored
	AtomicWrite                 // data
	AtomicCswap                 // data if t == compare, else t

	AtomicOps // the number of operations
)

// Datatype is an element type of fi_atomic(3).
type Datatype uint8

// The element types, in the machine's own representation.
const (
	Int8 Datatype = iota
	Uint8
	Int16
	Uint16
	Int32
	Uint32
	Int64
	Uint64
	Float32
	Float64
	Complex64
	Complex128

	Datatypes // the number of element types
)

// Size returns the size of one element in bytes.
func (t Datatype) Size() int {
	switch t {
	case Int8, Uint8:
		return 1
	case Int16, Uint16:
		return 2
	case Int32, Uint32, Float32:
		return 4
	case Complex128:
		return 16
	default:
		return 8
	}
}
