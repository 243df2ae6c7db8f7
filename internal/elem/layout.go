package elem

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/layout"
)

// Layout is a layout that counts elements, of any type. It keeps the Types that ViewAs has derived
// from it, one for each element type. Goroutines may share a Layout.
type Layout struct {
	in    layout.Layout // sizes and offsets are in elements
	types atomic.Pointer[[]*Type]
}

// NewLayout returns a Layout for l, whose sizes and offsets are in elements.
func NewLayout(l layout.Layout) *Layout { return &Layout{in: l} }

// Elements returns the layout in elements.
func (l *Layout) Elements() layout.Layout { return l.in }

// ViewAs returns a Buffer for the elements of s that l describes. If l is not valid, or s does not
// have all these elements, the Type of the Buffer has an error.
//
// Hot path: no allocation after the first call for a type T, except for an error.
func ViewAs[T any](s []T, l *Layout) Buffer {
	b := View(s)
	if err := l.in.Err(); err != nil {
		return b.broken(err)
	}
	if !l.in.Fits(len(s), 0) {
		low, high := l.in.Span()
		return b.broken(fmt.Errorf("%w: the layout uses the elements %d to %d, and the slice has %d", ErrCount, low, high-1, len(s)))
	}
	if b.Type.Size == 0 {
		return Buffer{b.data, l.in.Size(), b.Type} // the layout may have more elements than s, because elements repeat
	}
	if off, ok := l.in.Contiguous(); ok {
		return View(s[off : off+l.in.Size()])
	}
	t := l.of(b.Type)
	if t.Err != nil {
		return b.broken(t.Err)
	}
	_, high := l.in.Span()
	return Buffer{b.data, high, t}
}

// Of returns the layout for elements of type t: sizes and offsets are in bytes.
//
// Hot path: no allocation after the first call for a type.
func (l *Layout) Of(t *Type) (*layout.Layout, error) {
	if err := l.in.Err(); err != nil {
		return nil, err
	}
	d := l.of(t)
	return d.Layout, d.Err
}

// of returns the Type for elements of type t with the layout, and makes it at the first call for t.
func (l *Layout) of(t *Type) *Type {
	for {
		old := l.types.Load()
		if old != nil {
			for _, have := range *old {
				if have.Go == t.Go {
					return have
				}
			}
		}
		in := layout.Scale(t.Size, l.in)
		derived := *t
		derived.Form, derived.Layout, derived.of = &in, &in, t
		if derived.Err == nil {
			derived.Err = in.Err()
		}
		var list []*Type
		if old != nil {
			list = slices.Clone(*old)
		}
		list = append(list, &derived)
		if l.types.CompareAndSwap(old, &list) {
			return &derived
		}
	}
}

// broken returns a Buffer with which every call fails: with the error of b if b has one, otherwise
// with err.
func (b Buffer) broken(err error) Buffer {
	t := *b.Type
	if t.Err == nil {
		t.Err = err
	}
	return Buffer{nil, 0, &t}
}

// Size returns the number of bytes of data in the buffer.
func (b Buffer) Size() int {
	if b.Type.Layout != nil {
		return b.Type.Layout.Size()
	}
	return b.Count * b.Type.Size
}

// Pack copies the data of the buffer to dst, which has at most b.Size() bytes. It fails only if the copy from a
// device fails.
func (b Buffer) Pack(dst []byte) error {
	if b.Type.Form != nil {
		return b.Type.Form.Gather(dst, b.Bytes(), 0)
	}
	copy(dst, b.Bytes())
	return nil
}

// Unpack copies src, which has at most b.Size() bytes, to the data of the buffer. It fails only if the copy to
// a device fails.
func (b Buffer) Unpack(src []byte) error {
	if b.Type.Form != nil {
		return b.Type.Form.Scatter(b.Bytes(), src, 0)
	}
	copy(b.Bytes(), src)
	return nil
}

// Copy returns a Buffer with a copy of the data. The copy is contiguous, in new memory. Copy fails
// only if the copy from a device fails.
func (b Buffer) Copy() (Buffer, error) {
	own := make([]byte, b.Size())
	err := b.Pack(own)
	if t := b.Type; t.Form != nil && t.Size > 0 {
		return At(own, len(own)/t.Size, t.of), err
	} else if t.Form != nil {
		return At(own, b.Count, t.of), err
	}
	return At(own, b.Count, b.Type), err
}

// Parts returns the data of the buffer as ranges of memory, in the order of a message. The buffer must be in
// host memory.
func (b Buffer) Parts() [][]byte {
	mem := b.Bytes()
	if b.Type.Layout == nil {
		return [][]byte{mem}
	}
	var parts [][]byte
	var list [64]layout.Range
	for pos, size := 0, b.Size(); pos < size; {
		var ranges []layout.Range
		ranges, pos = b.Type.Layout.Ranges(list[:0], pos, size)
		for _, r := range ranges {
			parts = append(parts, mem[r.Off:r.Off+r.Len])
		}
	}
	return parts
}

// NoView is the Buffer of a zero view, one that the program has not made by comm.Of.
var NoView = Buffer{Type: &Type{Err: fmt.Errorf("%w: the view is zero; make it by Of", ErrType)}}
