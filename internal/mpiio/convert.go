package mpiio

import (
	"encoding/binary"
	"reflect"
	"sync"

	"github.com/weft-hpc/weft/internal/elem"
)

// The representations of data in a file (MPI-4.1 §14.5).
const (
	Native     = "native"     // as in memory
	Internal   = "internal"   // the same
	External32 = "external32" // big endian, without padding
)

var representations = [...]string{Native, Internal, External32}

// converter converts elements of one type between memory and external32. In the file an element is
// its basic values, one after the other, each big endian: the fields of a struct have no padding
// between them. int, uint and uintptr have 8 bytes.
type converter struct {
	size   int // bytes of an element in the file
	memory int // bytes of an element in memory
	runs   []run
}

// run is consecutive basic values in an element.
type run struct {
	at, file    int  // offsets of the first value in memory and in the file
	count       int  // number of values
	size, bytes int  // bytes of a value in memory and in the file
	signed      bool // a value that becomes longer keeps its sign
	truth       bool // the values are of type bool, which in memory is 0 or 1
}

// converters holds the *converter of each *elem.Type.
var converters sync.Map

func converterOf(t *elem.Type) *converter {
	if c, ok := converters.Load(t); ok {
		return c.(*converter)
	}
	c := &converter{memory: t.Size}
	c.add(t.Go, 0)
	got, _ := converters.LoadOrStore(t, c)
	return got.(*converter)
}

// add adds the basic values of a value of type t, at the offset at in memory.
func (c *converter) add(t reflect.Type, at int) {
	size := int(t.Size())
	switch t.Kind() {
	case reflect.Array:
		for i := range t.Len() {
			c.add(t.Elem(), at+i*int(t.Elem().Size()))
		}
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			c.add(f.Type, at+int(f.Offset))
		}
	case reflect.Complex64, reflect.Complex128:
		c.value(run{at: at, count: 2, size: size / 2, bytes: size / 2})
	case reflect.Bool:
		c.value(run{at: at, count: 1, size: size, bytes: size, truth: true})
	case reflect.Int:
		c.value(run{at: at, count: 1, size: size, bytes: 8, signed: true})
	case reflect.Uint, reflect.Uintptr:
		c.value(run{at: at, count: 1, size: size, bytes: 8})
	default:
		if size > 0 {
			c.value(run{at: at, count: 1, size: size, bytes: size})
		}
	}
}

// value adds a run, or makes the last run longer.
func (c *converter) value(r run) {
	r.file = c.size
	c.size += r.count * r.bytes
	if n := len(c.runs); n > 0 {
		last := &c.runs[n-1]
		if last.at+last.count*last.size == r.at && last.size == r.size && last.bytes == r.bytes && last.signed == r.signed && last.truth == r.truth {
			last.count += r.count
			return
		}
	}
	c.runs = append(c.runs, r)
}

// toFile converts the whole elements of src, which fill dst.
func (c *converter) toFile(dst, src []byte) {
	for ; len(src) >= c.memory; dst, src = dst[c.size:], src[c.memory:] {
		for i := range c.runs {
			r := &c.runs[i]
			to, from := dst[r.file:], src[r.at:]
			for range r.count {
				v := load(from, r.size, r.signed)
				switch r.bytes {
				case 1:
					to[0] = byte(v)
				case 2:
					binary.BigEndian.PutUint16(to, uint16(v))
				case 4:
					binary.BigEndian.PutUint32(to, uint32(v))
				default:
					binary.BigEndian.PutUint64(to, v)
				}
				to, from = to[r.bytes:], from[r.size:]
			}
		}
	}
}

// load returns a value of size bytes in memory.
func load(b []byte, size int, signed bool) uint64 {
	switch {
	case size == 1:
		return uint64(b[0])
	case size == 2:
		return uint64(binary.NativeEndian.Uint16(b))
	case size == 4 && signed:
		return uint64(int32(binary.NativeEndian.Uint32(b)))
	case size == 4:
		return uint64(binary.NativeEndian.Uint32(b))
	}
	return binary.NativeEndian.Uint64(b)
}

// toMemory is the reverse of toFile: it fills dst with whole elements from src. The padding of the
// elements does not change.
func (c *converter) toMemory(dst, src []byte) {
	for ; len(dst) >= c.memory; dst, src = dst[c.memory:], src[c.size:] {
		for i := range c.runs {
			r := &c.runs[i]
			to, from := dst[r.at:], src[r.file:]
			for range r.count {
				var v uint64
				switch r.bytes {
				case 1:
					v = uint64(from[0])
				case 2:
					v = uint64(binary.BigEndian.Uint16(from))
				case 4:
					v = uint64(binary.BigEndian.Uint32(from))
				default:
					v = binary.BigEndian.Uint64(from)
				}
				if r.truth {
					v = min(v, 1)
				}
				switch r.size {
				case 1:
					to[0] = byte(v)
				case 2:
					binary.NativeEndian.PutUint16(to, uint16(v))
				case 4:
					binary.NativeEndian.PutUint32(to, uint32(v))
				default:
					binary.NativeEndian.PutUint64(to, v)
				}
				to, from = to[r.size:], from[r.bytes:]
			}
		}
	}
}
