// Package layout describes which bytes of a buffer a message consists of, and in which order: a
// datatype of MPI without its element types (MPI-4.1 §5). A constructor brings a layout into a
// normal form, from which Pack, Unpack and Ranges work.
//
//	constructors             normal form                     uses
//	(build.go, array.go)     (node.go)                       (pack.go, ranges.go)
//	Vector, Indexed, …  ──►  blocks, loops and sequences ──► copy to and from a message; lists of ranges
//
// All sizes, offsets and strides are in bytes, except where a comment says otherwise. An offset
// counts from the start of the buffer, and may be negative. The stream of a layout is its data in
// the order in which a message carries it; a position in the stream is the number of bytes before it.
package layout

import "errors"

// ErrLayout is the error of a layout that does not exist: a negative count, more bytes than an int
// can count, or arguments that contradict each other. Errors of Layout.Err wrap it.
var ErrLayout = errors.New("layout is not valid")

// Layout describes data in a buffer. Layouts are immutable values, which goroutines may share. The
// zero Layout has no data.
type Layout struct {
	root *node // the data, relative to the offset off; nil: there is none
	off  int
	lb   int // lower bound: where the layout begins for those that contain it (MPI_LB); usually the lowest offset
	ub   int // upper bound: where the next of several consecutive layouts begins (MPI_UB)
	low  int // lowest offset of the data; 0 if there is none (MPI_Type_get_true_extent)
	high int // offset after the highest byte of the data; 0 if there is none
	err  error
}

// Err returns the error with which the layout was made, or nil. A layout that was made from one
// with an error has that error, too. All other methods require that Err is nil.
func (l Layout) Err() error { return l.err }

// Size returns the number of bytes of data.
func (l Layout) Size() int {
	if l.root == nil {
		return 0
	}
	return l.root.size
}

// nothing reports whether the layout has neither data nor an extent. Layouts that contain it are as
// if they did not, so its lower bound does not matter.
func (l Layout) nothing() bool { return l.root == nil && l.lb == l.ub }

// Lower returns the lower bound.
func (l Layout) Lower() int { return l.lb }

// Extent returns the distance between the begins of consecutive layouts, which may be negative.
func (l Layout) Extent() int { return l.ub - l.lb }

// Span returns the range of offsets that the data lies in: all its bytes have offsets from low up
// to, but not including, high.
func (l Layout) Span() (low, high int) { return l.low, l.high }

// First returns the offset of the first byte in the stream; 0 if there is no data.
func (l Layout) First() int {
	if l.root == nil {
		return 0
	}
	return l.off + l.root.first()
}

// Contiguous reports whether the data is one range of bytes, in ascending order, and where it
// begins. A layout without data is contiguous at 0.
func (l Layout) Contiguous() (off int, ok bool) {
	if l.root == nil {
		return 0, true
	}
	return l.off, l.root.isBlock()
}

// Depth returns the number of nested loops and sequences of the normal form: 0 for contiguous data.
func (l Layout) Depth() int { return l.root.depth() }
