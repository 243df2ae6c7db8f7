package layout

// Layouts of files
//
// The data of a view of a file has ascending offsets. So the data in a range of the file is one
// part of the stream, and the reverse.

// Ascending reports whether each byte of the stream has a higher offset than the one before. If so,
// no two bytes of the stream have the same offset.
func (l Layout) Ascending() bool { return l.root == nil || l.root.ascending() }

func (n *node) ascending() bool {
	switch {
	case n.isBlock():
		return true
	case n.isLoop():
		low, high := n.child.span()
		return n.child.ascending() && n.stride >= high-low
	}
	end := 0
	for i := range n.items {
		it := &n.items[i]
		low, high := it.node.span()
		if !it.node.ascending() || i > 0 && it.off+low < end {
			return false
		}
		end = it.off + high
	}
	return true
}

// span returns the range of offsets of the data of the node, relative to the start of the node.
func (n *node) span() (low, high int) {
	switch {
	case n.isBlock():
		return 0, n.size
	case n.isLoop():
		low, high = n.child.span()
		last := (n.count - 1) * n.stride
		return min(low, low+last), max(high, high+last)
	}
	for i := range n.items {
		l, h := n.items[i].node.span()
		l, h = l+n.items[i].off, h+n.items[i].off
		if i == 0 {
			low, high = l, h
		}
		low, high = min(low, l), max(high, h)
	}
	return low, high
}

// Before returns the number of bytes of the stream whose offset is less than off. The layout must
// be ascending.
//
// Hot path: no allocation.
func (l Layout) Before(off int) int {
	if l.root == nil {
		return 0
	}
	return l.root.before(off - l.off)
}

func (n *node) before(off int) int {
	switch {
	case n.isBlock():
		return min(max(off, 0), n.size)
	case n.isLoop():
		high := n.child.at(n.child.size-1) + 1
		if off < high { // the first round is not complete before off
			return n.child.before(off)
		}
		i := (off-high)/n.stride + 1 // number of rounds that end before off
		if i >= n.count {
			return n.size
		}
		return i*n.child.size + n.child.before(off-i*n.stride)
	}
	low, high := 0, len(n.items) // the items before low begin before off, and those from high on do not
	for low < high {
		mid := int(uint(low+high) / 2)
		if it := &n.items[mid]; it.off+it.node.first() < off {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low == 0 {
		return 0
	}
	it := &n.items[low-1]
	return it.begin + it.node.before(off-it.off)
}

// At returns the offset of the byte at a position of the stream, which is less than Size.
//
// Hot path: no allocation.
func (l Layout) At(position int) int { return l.off + l.root.at(position) }

func (n *node) at(position int) int {
	switch {
	case n.isBlock():
		return position
	case n.isLoop():
		return position/n.child.size*n.stride + n.child.at(position%n.child.size)
	}
	it := &n.items[n.find(position)]
	return it.off + it.node.at(position-it.begin)
}

// Cut returns the layout of a part of the stream of l, from the position from up to, but not
// including, the position to. Both are positions of the stream, or its end. The bounds of the
// result are those of its data.
func (l Layout) Cut(from, to int) Layout {
	if from >= to {
		return Layout{}
	}
	off, n := l.root.cut(from, to)
	low, high := n.span()
	off += l.off
	return Layout{root: n, off: off, lb: off + low, ub: off + high, low: off + low, high: off + high}
}

// cut returns the node of a part of the stream of n, and its offset from the start of n.
func (n *node) cut(from, to int) (off int, _ *node) {
	switch {
	case from == 0 && to == n.size:
		return 0, n
	case n.isBlock():
		return from, &node{size: to - from}
	}
	var items []item
	add := func(at, from, to int, n *node) {
		off, part := n.cut(from, to)
		items = append(items, item{off: at + off, node: part})
	}
	if n.isLoop() {
		size := n.child.size
		first, last := (from+size-1)/size, to/size // the complete rounds
		if from%size > 0 {
			add((first-1)*n.stride, from%size, min(size, to-(first-1)*size), n.child)
		}
		if last > first {
			items = append(items, item{off: first * n.stride, node: loop(last-first, n.stride, (last-first)*size, n.child)})
		}
		if last >= first && to%size > 0 {
			add(last*n.stride, 0, to%size, n.child)
		}
		return sequence(items)
	}
	for i := n.find(from); from < to; i++ {
		it := &n.items[i]
		end := min(to, it.begin+it.node.size)
		add(it.off, from-it.begin, end-it.begin, it.node)
		from = end
	}
	return sequence(items)
}
