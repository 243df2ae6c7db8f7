// Package elem describes the element types of messages: their size, their signature, and their
// number in package kernel, which has the built-in operations. It converts slices of elements to
// bytes and back.
package elem

import (
	"errors"
	"fmt"
	"math/bits"
	"reflect"
	"strings"
	"sync"

	"github.com/weft-hpc/weft/internal/kernel"
	"github.com/weft-hpc/weft/internal/layout"
)

// Errors of element types and counts.
var (
	// ErrType: the type holds pointers, or a value cannot be encoded or decoded.
	ErrType = errors.New("type cannot be sent")
	// ErrCount: a message is not a whole number of elements.
	ErrCount = errors.New("counts disagree")
)

// Type describes an element type. There is one *Type for each Go type, and one for each Go type with a
// Form. No Type ever changes.
type Type struct {
	Go    reflect.Type
	Size  int    // of an element, in bytes
	Align int    // required alignment of an element, in bytes
	Sig   uint16 // see Signature; 0 if Err is not nil
	// The number of the type in package kernel; for comm.Loc[V] that of V. It is -1 if no built-in
	// operation is defined for the type.
	Kernel kernel.Type
	// The error of a call with a buffer of this type, which as a rule wraps ErrType and says why the
	// type cannot be sent; nil: it can be sent.
	Err error
	// How to copy the data of a buffer; nil: the data is all of the buffer, in host memory. A Type with a
	// Form describes the elements of a view (ViewAs, ViewOn). Its other fields are those of the element type.
	Form   layout.Form
	Layout *layout.Layout // the Form, if it is a layout in host memory; otherwise nil
	of     *Type          // of a Type with a Form: the Type of its elements
}

// types holds the *Type of each reflect.Type that the function learn has described. A lookup
// allocates nothing, because a reflect.Type is a pointer.
var types sync.Map

var (
	typeInt     = describe[int](kernel.Int)
	typeInt32   = describe[int32](kernel.Int32)
	typeInt64   = describe[int64](kernel.Int64)
	typeUint8   = describe[uint8](kernel.Uint8)
	typeUint64  = describe[uint64](kernel.Uint64)
	typeFloat32 = describe[float32](kernel.Float32)
	typeFloat64 = describe[float64](kernel.Float64)
)

// describe returns the description of T, which holds no pointers.
func describe[T any](k kernel.Type) *Type {
	t := reflect.TypeFor[T]()
	return &Type{Go: t, Kernel: k, Size: int(t.Size()), Align: t.Align(), Sig: Signature(t)}
}

// kernels maps the kinds of types that have built-in operations to the types of package kernel.
var kernels = map[reflect.Kind]kernel.Type{
	reflect.Int8: kernel.Int8, reflect.Int16: kernel.Int16, reflect.Int32: kernel.Int32,
	reflect.Int64: kernel.Int64, reflect.Int: kernel.Int,
	reflect.Uint8: kernel.Uint8, reflect.Uint16: kernel.Uint16, reflect.Uint32: kernel.Uint32,
	reflect.Uint64: kernel.Uint64, reflect.Uint: kernel.Uint, reflect.Uintptr: kernel.Uintptr,
	reflect.Float32: kernel.Float32, reflect.Float64: kernel.Float64,
	reflect.Complex64: kernel.Complex64, reflect.Complex128: kernel.Complex128,
	reflect.Bool: kernel.Bool,
}

// Of returns the description of T. It compares T with the most frequent types first, and looks up
// others in the map types.
//
// Hot path: no allocation after the first call for a type.
func Of[T any]() *Type {
	switch any((*T)(nil)).(type) {
	case *byte:
		return typeUint8
	case *float64:
		return typeFloat64
	case *int:
		return typeInt
	case *float32:
		return typeFloat32
	case *int32:
		return typeInt32
	case *int64:
		return typeInt64
	case *uint64:
		return typeUint64
	}
	t := reflect.TypeFor[T]()
	if info, ok := types.Load(t); ok {
		return info.(*Type)
	}
	return learn(t)
}

// learn makes the description of t and stores it.
func learn(t reflect.Type) *Type {
	info := &Type{Go: t, Size: int(t.Size()), Align: t.Align(), Kernel: -1}
	kind := t.Kind()
	if at, what := findPointer(t, t.String()); what != "" && at == t.String() {
		info.Err = fmt.Errorf("%w: %s holds pointers", ErrType, t)
	} else if what != "" {
		info.Err = fmt.Errorf("%w: %s holds pointers: %s is a %s", ErrType, t, at, what)
	} else if isLoc(t) {
		kind = t.Field(0).Type.Kind()
	}
	if info.Err == nil {
		info.Sig = Signature(t)
	}
	if e, ok := kernels[kind]; ok {
		info.Kernel = e
	}
	got, _ := types.LoadOrStore(t, info)
	return got.(*Type)
}

// locPackage is the path of package comm, which declares Loc.
var locPackage = strings.TrimSuffix(reflect.TypeFor[Type]().PkgPath(), "internal/elem") + "comm"

// isLoc reports whether t is an instance of comm.Loc.
func isLoc(t reflect.Type) bool {
	return t.PkgPath() == locPackage && strings.HasPrefix(t.Name(), "Loc[")
}

// findPointer returns the path and the kind of the first part of t that holds a pointer, such as
// "T.Name" and "string". If there is none, it returns two empty strings. path is the path of t
// itself, such as "T.Field[0]".
func findPointer(t reflect.Type, path string) (at, what string) {
	switch t.Kind() {
	case reflect.Bool,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return "", ""
	case reflect.Array:
		if t.Len() == 0 {
			return "", ""
		}
		return findPointer(t.Elem(), path+"[0]")
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if at, what := findPointer(f.Type, path+"."+f.Name); what != "" {
				return at, what
			}
		}
		return "", ""
	}
	return path, t.Kind().String()
}

// Count returns the number of elements of size bytes in a message of n bytes. It returns 0
// for elements of size 0. If the message is not a whole number of elements, Count returns
// the number of whole elements and ErrCount.
func Count(n, size int) (int, error) {
	whole := Whole(n, size)
	if size > 0 && n != whole*size {
		return whole, fmt.Errorf("%w: a message of %d bytes is not a whole number of elements of %d bytes", ErrCount, n, size)
	}
	return whole, nil
}

// Whole returns the number of whole elements of size bytes in n bytes, and 0 if size is 0.
func Whole(n, size int) int {
	switch {
	case size == 0:
		return 0
	case size&(size-1) == 0: // a shift is many times as fast as a division
		return n >> bits.TrailingZeros(uint(size))
	}
	return n / size
}
