package transport

// AtomicOp is an operation of fi_atomic(3), which says what each does. The
// target's element t becomes:
type AtomicOp uint8

// The operations. Those after AtomicWrite compare: they need Op.Compare and Op.Fetch.
const (
	AtomicMin   AtomicOp = iota // min(t, data)
	AtomicMax                   // max(t, data)
	AtomicSum                   // t + data
	AtomicProd                  // t × data
	AtomicLor                   // t || data: 0 or 1
	AtomicLand                  // t && data
	AtomicBor                   // t | data
	AtomicBand                  // t & data
	AtomicLxor                  // t || data and not both
	AtomicBxor                  // t ^ data
	AtomicRead                  // t; Op.Fetch gets it and Op.Data is not looked at
	AtomicWrite                 // data
	AtomicCswap                 // data where t == compare

	AtomicOps // how many there are
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

	Datatypes // how many there are
)

// Size is the bytes of one element.
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
