package elem

import (
	"hash/fnv"
	"math/bits"
	"reflect"
	"strconv"
)

// A type signature (sig) identifies the memory layout of a type's values, so that a rank
// detects that it receives int64 where the sender sent float64. Types of the same memory
// layout have the same sig: a named type has the sig of its underlying type, an array or
// struct that holds only float64 has the sig of float64, and int has the sig of int64. A sig
// has 16 bits:
//
//	0                   bytes, which match any type, and types of size 0
//	class<<3 | size     elements of one basic type, such as classFloat; size: log2 of its bytes
//	1<<15 | hash        any other layout, by its hash; two of these layouts have the same hash with a probability of 2^-15

// Classes of basic types.
const (
	classBool = iota + 1
	classInt
	classUint
	classFloat
	classComplex
)

var classNames = [...]string{classBool: "bool", classInt: "int", classUint: "uint", classFloat: "float", classComplex: "complex"}

const (
	// RawSig is the signature of bytes, which match elements of any type.
	RawSig    = 0
	byteSig   = classUint << 3 // result of basicSig for uint8; Signature returns RawSig instead
	layoutSig = 1 << 15        // set in the sig of a type that holds several basic types or has gaps
)

// basicSig returns the sig of a basic type: a number or a bool.
func basicSig(t reflect.Type) uint16 {
	class := 0
	switch t.Kind() {
	case reflect.Bool:
		class = classBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		class = classInt
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		class = classUint
	case reflect.Float32, reflect.Float64:
		class = classFloat
	case reflect.Complex64, reflect.Complex128:
		class = classComplex
	}
	return uint16(class<<3 | bits.Len(uint(t.Size())) - 1)
}

// Signature returns the sig of a type without pointers.
func Signature(t reflect.Type) uint16 {
	for t.Kind() == reflect.Array && t.Len() > 0 { // an array has the sig of its elements
		t = t.Elem()
	}
	var l runs
	l.add(t, 0)
	switch {
	case len(l) == 0:
		return RawSig
	case len(l) == 1 && l[0].at == 0 && l[0].end == t.Size():
		if l[0].sig == byteSig {
			return RawSig
		}
		return l[0].sig
	}
	h := fnv.New32a()
	word := func(v uintptr) {
		for range 4 {
			_, _ = h.Write([]byte{byte(v)}) // never fails
			v >>= 8
		}
	}
	for _, r := range l {
		word(r.at)
		word(r.end)
		word(uintptr(r.sig))
	}
	word(t.Size())
	sum := h.Sum32()
	return layoutSig | uint16(sum^sum>>16)
}

// runs describes the memory layout of a type, in the order of the offsets. A run is memory without
// gaps that holds values of one basic type.
type runs []struct {
	at, end uintptr // offsets in bytes of the first byte of the run and after its last byte
	sig     uint16  // of the basic type
}

// add appends the runs of a value of type t at the offset at in bytes. If such a run continues the
// last run of l, add makes the last run longer.
func (l *runs) add(t reflect.Type, at uintptr) {
	if t.Size() == 0 {
		return
	}
	switch t.Kind() {
	case reflect.Array:
		n, size := uintptr(t.Len()), t.Elem().Size()
		for i := range n {
			before := len(*l)
			l.add(t.Elem(), at+i*size)
			if i == 0 && len(*l) == before+1 && (*l)[before].at == at && (*l)[before].end == at+size {
				// If the first element is one run without gaps, the whole array is one run.
				(*l)[before].end = at + n*size
				break
			}
			if i == 1 && len(*l) == before && n > 2 {
				// The second element has made the previous run longer, and so would all others.
				(*l)[before-1].end = at + n*size
				break
			}
			if len(*l) > maxRuns {
				return
			}
		}
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			l.add(f.Type, at+f.Offset)
		}
	default:
		end, sig := at+t.Size(), basicSig(t)
		if n := len(*l); n > 0 && (*l)[n-1].end == at && (*l)[n-1].sig == sig {
			(*l)[n-1].end = end
			return
		}
		*l = append(*l, struct {
			at, end uintptr
			sig     uint16
		}{at, end, sig})
	}
}

// maxRuns bounds the number of runs that add collects for an array, and so the time and memory for
// a large array of structs. The rest of the array does not influence the signature.
const maxRuns = 1 << 12

// SigName returns the name that errors use for the types of a sig.
func SigName(sig uint16) string {
	class := int(sig >> 3)
	switch {
	case sig == RawSig:
		return "bytes"
	case sig >= layoutSig || class >= len(classNames):
		return "a struct of another layout"
	case class == classBool:
		return "bool"
	}
	return classNames[class] + strconv.Itoa(8<<(sig&7))
}
