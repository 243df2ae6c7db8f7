package layout

// Range is a part of a buffer: n bytes from an offset.
type Range struct{ Off, Len int }

// Ranges appends to list the ranges of the buffer that a part of the stream of l consists of, in the
// order of the stream, for example for an iovec. The part begins at the position from. It ends at
// the end of the stream, at the position to, or when list has as many elements as its capacity,
// whichever comes first. Ranges returns the list and the position of the end. Two ranges that follow
// each other in the buffer, too, are one.
//
// Hot path: no allocation.
func (l Layout) Ranges(list []Range, from, to int) ([]Range, int) {
	to = min(to, l.Size())
	if from >= to {
		return list, from
	}
	r := ranger{list: list, end: from}
	r.node(l.root, l.off, from, to)
	return r.list, r.end
}

// ranger appends to a list until it is full. Its methods take the same arguments as those of mover,
// with an offset instead of an index. They return false if the list is full.
type ranger struct {
	list []Range
	end  int // position in the stream up to which the list contains it
}

func (r *ranger) block(off, n int) bool {
	if k := len(r.list); k > 0 && r.list[k-1].Off+r.list[k-1].Len == off {
		r.list[k-1].Len += n
	} else if k == cap(r.list) {
		return false
	} else {
		r.list = append(r.list, Range{off, n})
	}
	r.end += n
	return true
}

func (r *ranger) node(n *node, off, from, to int) bool {
	switch {
	case n.isBlock():
		return r.block(off+from, to-from)
	case n.isLoop():
		size := n.child.size
		for i := from / size; from < to; i++ {
			begin := i * size
			end := min(to, begin+size)
			if !r.node(n.child, off+i*n.stride, from-begin, end-begin) {
				return false
			}
			from = end
		}
	default:
		for i := n.find(from); from < to; i++ {
			it := &n.items[i]
			end := min(to, it.begin+it.node.size)
			if !r.node(it.node, off+it.off, from-it.begin, end-it.begin) {
				return false
			}
			from = end
		}
	}
	return true
}
