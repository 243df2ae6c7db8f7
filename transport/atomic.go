package transport

// AtomicOp is an operation of fi_atomic(3). The comments on the constants give the new value of an
// element at the target. t is the former value of that element. data and compare are the elements
// of Op.Data and Op.Compare with the same index.
type AtomicOp uint8

// The operations. AtomicCswap needs Op.Compare and Op.Fetch.
const (
	AtomicMin   AtomicOp = iota // min(t, data)
	AtomicMax                   // max(t, data)
	AtomicSum                   // t + data
	AtomicProd                  // t × data
	AtomicLor                   // 1 if t != 0 or data != 0, else 0
	AtomicLand                  // 1 if t != 0 and data != 0, else 0
	AtomicBor                   // t | data
	AtomicBand                  // t & data
	AtomicLxor                  // 1 if exactly one of t and data is not 0, else 0
	AtomicBxor                  // t ^ data
	AtomicRead                  // t is unchanged; Op.Fetch receives t, and Op.Data is ignored
	AtomicWrite                 // data
	AtomicCswap                 // data if t == compare, else t

	AtomicOps // the number of operations
)

// Datatype is the type of the elements that an atomic operation works on (fi_atomic(3)).
type Datatype uint8

// The element types. Elements have the byte order of the machine.
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
