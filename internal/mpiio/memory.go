package mpiio

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// memory is the elements of the program that a call reads or writes. A position in it is a number
// of bytes in the form that the elements have in the file.
type memory struct {
	buf   elem.Buffer // the program's
	plain []byte      // the data, if it is contiguous and has the representation of the file; else nil
	count int64       // number of elements
	bytes int64       // number of bytes in the file
	size  int64       // bytes of an element in the file

	converted []byte // with a converter: the data in the representation of the file; else nil
}

// memoryOf returns the memory of a buffer for an access to the view.
func (v *View) memoryOf(b elem.Buffer) (memory, error) {
	switch {
	case b.Type == nil:
		return memory{}, elem.NoView.Type.Err
	case b.Type.HostErr() != nil:
		return memory{}, b.Type.HostErr()
	case b.Type.Go != v.typ.Go:
		return memory{}, fmt.Errorf("%w: %v in memory, %v in the view", mpi.ErrType, b.Type.Go, v.typ.Go)
	}
	m := memory{buf: b, count: int64(b.Size() / v.typ.Size), size: v.size}
	m.bytes = m.count * v.size
	if b.Type.Layout == nil && v.converter == nil {
		m.plain = b.Bytes()
	}
	return m, nil
}

// load prepares the memory for a write.
func (m *memory) load(v *View) {
	if v.converter == nil {
		return
	}
	src := m.buf.Bytes()
	if m.buf.Type.Layout != nil {
		src = make([]byte, m.buf.Size())
		_ = m.buf.Pack(src) // cannot fail: it is host memory
	}
	m.converted = make([]byte, m.bytes)
	v.converter.toFile(m.converted, src)
	m.plain = m.converted
}

// prepare prepares the memory for a read.
func (m *memory) prepare(v *View) {
	if v.converter != nil {
		m.converted = make([]byte, m.bytes)
		m.plain = m.converted
	}
}

// store completes a read of n bytes of the file: it stores the whole elements among these bytes to
// the program's memory.
func (m *memory) store(v *View, n int64) {
	if v.converter == nil {
		return
	}
	count := int(n / m.size)
	if m.buf.Type.Layout == nil {
		v.converter.toMemory(m.buf.Bytes()[:count*v.typ.Size], m.converted)
		return
	}
	packed := make([]byte, count*v.typ.Size)
	v.converter.toMemory(packed, m.converted)
	_ = m.buf.Unpack(packed) // as in load
}

// pack fills dst with the bytes from position p on.
func (m *memory) pack(dst []byte, p int64) {
	if m.plain != nil {
		copy(dst, m.plain[p:])
		return
	}
	m.buf.Type.Layout.Pack(dst, m.buf.Bytes(), 0, int(p))
}

// unpack copies src to the positions from p on.
func (m *memory) unpack(src []byte, p int64) {
	if m.plain != nil {
		copy(m.plain[p:], src)
		return
	}
	m.buf.Type.Layout.Unpack(m.buf.Bytes(), src, 0, int(p))
}

// part returns the positions from p up to q as the buffer of a message.
func (m *memory) part(p, q int64) elem.Buffer {
	if m.plain != nil || p == q {
		return elem.Raw(m.plain[p:q])
	}
	return elem.ViewAs(m.buf.Bytes(), elem.NewLayout(m.buf.Type.Layout.Cut(int(p), int(q))))
}
