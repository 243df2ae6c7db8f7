package comm

import (
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/weft-hpc/weft/internal/kernel"
)

// Constants that stand for a rank, a tag or a colour.
const (
	AnySource = -1     // Recv and Probe: whoever sends (MPI_ANY_SOURCE)
	AnyTag    = -1     // Recv and Probe: whatever tag (MPI_ANY_TAG)
	ProcNull  = -2     // a peer that is nobody: transfers end at once and move nothing (MPI_PROC_NULL)
	Undefined = -32766 // Split: in no new communicator; Translate: not in the group (MPI_UNDEFINED)

	// MaxTag is the largest tag (MPI_TAG_UB).
	MaxTag = 1<<31 - 1
)

// Status says what was received (MPI_Status).
type Status struct {
	Source int // rank in the communicator
	Tag    int
	Bytes  int // length of the message in bytes
	Count  int // number of elements of the receive's type; 0 for types of size 0; Undefined after a probe, which has no type: see CountOf

	// Cancelled says that the receive was ended by Request.Cancel and that
	// nothing was received (MPI_Test_cancelled).
	Cancelled bool
}

// typeInfo is what is known of an element type.
type typeInfo struct {
	size  int
	sig   uint16 // see typeSig
	align int
	elem  kernel.Type // for built-in operations; of Loc[V] it is V's; -1: they do not apply
	err   error       // why it cannot be sent
}

// types holds a *typeInfo for each reflect.Type seen: looking a type up
// allocates nothing, since a reflect.Type is a pointer.
var types sync.Map

var (
	infoInt     = newInfo[int](kernel.Int)
	infoInt32   = newInfo[int32](kernel.Int32)
	infoInt64   = newInfo[int64](kernel.Int64)
	infoUint8   = newInfo[uint8](kernel.Uint8)
	infoUint64  = newInfo[uint64](kernel.Uint64)
	infoFloat32 = newInfo[float32](kernel.Float32)
	infoFloat64 = newInfo[float64](kernel.Float64)
)

func newInfo[T any](elem kernel.Type) *typeInfo {
	t := reflect.TypeFor[T]()
	return &typeInfo{elem: elem, size: int(t.Size()), align: t.Align(), sig: typeSig(t)}
}

// elemTypes says what built-in operations call the types that they know.
var elemTypes = map[reflect.Kind]kernel.Type{
	reflect.Int8: kernel.Int8, reflect.Int16: kernel.Int16, reflect.Int32: kernel.Int32,
	reflect.Int64: kernel.Int64, reflect.Int: kernel.Int,
	reflect.Uint8: kernel.Uint8, reflect.Uint16: kernel.Uint16, reflect.Uint32: kernel.Uint32,
	reflect.Uint64: kernel.Uint64, reflect.Uint: kernel.Uint, reflect.Uintptr: kernel.Uintptr,
	reflect.Float32: kernel.Float32, reflect.Float64: kernel.Float64,
	reflect.Complex64: kernel.Complex64, reflect.Complex128: kernel.Complex128,
	reflect.Bool: kernel.Bool,
}

// infoOf returns what is known of T. The common types do not need the map.
//
// Hot path: no allocation once a type was seen.
func infoOf[T any]() *typeInfo {
	switch any((*T)(nil)).(type) {
	case *byte:
		return infoUint8
	case *float64:
		return infoFloat64
	case *int:
		return infoInt
	case *float32:
		return infoFloat32
	case *int32:
		return infoInt32
	case *int64:
		return infoInt64
	case *uint64:
		return infoUint64
	}
	t := reflect.TypeFor[T]()
	if info, ok := types.Load(t); ok {
		return info.(*typeInfo)
	}
	return learnType(t)
}

func learnType(t reflect.Type) *typeInfo {
	info := &typeInfo{size: int(t.Size()), align: t.Align(), elem: -1}
	kind := t.Kind()
	if at, what := findPointer(t, t.String()); what != "" && at == t.String() {
		info.err = fmt.Errorf("%w: %s holds pointers", ErrType, t)
	} else if what != "" {
		info.err = fmt.Errorf("%w: %s holds pointers: %s is a %s", ErrType, t, at, what)
	} else if isLoc(t) {
		kind = t.Field(0).Type.Kind()
	}
	if info.err == nil {
		info.sig = typeSig(t)
	}
	if e, ok := elemTypes[kind]; ok {
		info.elem = e
	}
	got, _ := types.LoadOrStore(t, info)
	return got.(*typeInfo)
}

// isLoc says whether t is a Loc.
func isLoc(t reflect.Type) bool {
	return t.PkgPath() == reflect.TypeFor[Comm]().PkgPath() && strings.HasPrefix(t.Name(), "Loc[")
}

// findPointer looks for the first part of t that holds a pointer; it returns
// where that is and what it is, or nothing.
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

// view returns buf as bytes and the type signature of T, or an error if T cannot be sent.
//
// Hot path: no allocation once a type was seen.
func view[T any](buf []T) (b []byte, sig uint16, err error) {
	info := infoOf[T]()
	if info.err != nil {
		return nil, 0, info.err
	}
	return bytesView(buf), info.sig, nil
}

// CountOf returns the number of elements of type T in the message that st describes
// (MPI_Get_count). It returns 0 for types of size 0. If the message is not a whole number
// of elements, CountOf returns [ErrCount]. If T cannot be received, it returns [ErrType].
// CountOf is local.
func CountOf[T any](st Status) (int, error) {
	info := infoOf[T]()
	n, err := 0, info.err
	if err == nil {
		n, err = elems(st.Bytes, info.size)
	}
	if err != nil {
		return n, &Error{Op: "CountOf", Peer: st.Source, Tag: st.Tag, Err: err}
	}
	return n, nil
}

// elems returns how many elements of size bytes a message of n bytes holds.
func elems(n, size int) (int, error) {
	if size <= 1 {
		if size == 0 {
			return 0, nil
		}
		return n, nil
	}
	if n%size != 0 {
		return n / size, fmt.Errorf("%w: a message of %d bytes is no whole number of elements of %d bytes", ErrCount, n, size)
	}
	return n / size, nil
}
