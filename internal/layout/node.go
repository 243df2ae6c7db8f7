package layout

// A node is a part of a layout in normal form. There are three kinds:
//
//	block      size bytes
//	loop       count times the node child; the begins are stride bytes apart
//	sequence   items: nodes at any offsets
//
// Invariants: no node is empty. A loop has at least two rounds. The child of a loop is no block
// that the next round continues (that is a block), and no loop whose rounds the next round
// continues (that is one loop). A sequence has at least two items; no item continues a block
// before it, and the items are not equal nodes at equal distances (that is a loop).
type node struct {
	size   int // bytes of data in the node
	count  int // of a loop: number of rounds; otherwise 0
	stride int // of a loop: distance between the begins of two rounds
	child  *node
	items  []item // of a sequence; otherwise nil
}

// item is a node in a sequence.
type item struct {
	off   int // offset of the node from the start of the sequence
	begin int // position of the node in the stream of the sequence
	node  *node
}

func (n *node) isBlock() bool { return n.child == nil && n.items == nil }
func (n *node) isLoop() bool  { return n.child != nil }

func (n *node) depth() int {
	switch {
	case n == nil || n.isBlock():
		return 0
	case n.isLoop():
		return 1 + n.child.depth()
	}
	d := 0
	for i := range n.items {
		d = max(d, n.items[i].node.depth())
	}
	return 1 + d
}

// equal reports whether two nodes have the same normal form.
func (n *node) equal(m *node) bool {
	switch {
	case n == m:
		return true
	case n.size != m.size || n.count != m.count || n.stride != m.stride || len(n.items) != len(m.items):
		return false
	case n.isLoop() || m.isLoop():
		return n.isLoop() && m.isLoop() && n.child.equal(m.child)
	}
	for i := range n.items {
		if n.items[i].off != m.items[i].off || !n.items[i].node.equal(m.items[i].node) {
			return false
		}
	}
	return true
}

// loop returns the normal form of count rounds of a node, stride bytes apart. size is their number
// of bytes, which the caller has checked.
func loop(count, stride, size int, child *node) *node {
	switch {
	case count == 1:
		return child
	case child.isBlock() && child.size == stride:
		return &node{size: size}
	case child.isLoop() && stride%child.count == 0 && stride/child.count == child.stride: // the product may overflow
		return &node{size: size, count: count * child.count, stride: child.stride, child: child.child}
	}
	return &node{size: size, count: count, stride: stride, child: child}
}

// sequence returns the normal form of the items, which have no begin yet, and the offset of the
// node from the start of the items. It keeps and changes the slice.
func sequence(items []item) (off int, n *node) {
	merged := items[:0]
	for _, it := range items {
		if k := len(merged); k > 0 {
			last := &merged[k-1]
			if last.node.isBlock() && it.node.isBlock() && last.off+last.node.size == it.off {
				last.node = &node{size: last.node.size + it.node.size}
				continue
			}
		}
		merged = append(merged, it)
	}
	off = merged[0].off
	if len(merged) == 1 {
		return off, merged[0].node
	}
	size := 0
	for i := range merged {
		merged[i].off -= off
		merged[i].begin = size
		size += merged[i].node.size
	}
	if stride := merged[1].off; regular(merged, stride) {
		return off, loop(len(merged), stride, size, merged[0].node)
	}
	return off, &node{size: size, items: merged}
}

// regular reports whether the items are equal nodes whose offsets are the multiples of stride. The first
// offset is 0. A multiple that does not fit into an int equals no offset.
func regular(items []item, stride int) bool {
	var c checked
	for i := 1; i < len(items); i++ {
		if items[i].off != c.add(items[i-1].off, stride) || c.overflow || !items[i].node.equal(items[0].node) {
			return false
		}
	}
	return true
}

// scale returns the node with all sizes, offsets and strides multiplied by size, which is positive.
func (n *node) scale(size int, c *checked) *node {
	if n == nil {
		return nil
	}
	m := &node{size: c.mul(n.size, size), count: n.count, stride: c.mul(n.stride, size), child: n.child.scale(size, c)}
	for i, it := range n.items {
		scaled := item{off: c.mul(it.off, size), begin: c.mul(it.begin, size)}
		if i > 0 && it.node == n.items[i-1].node {
			scaled.node = m.items[i-1].node
		} else {
			scaled.node = it.node.scale(size, c)
		}
		m.items = append(m.items, scaled)
	}
	return m
}

// first returns the offset of the first byte in the stream of the node.
func (n *node) first() int {
	switch {
	case n.isBlock():
		return 0
	case n.isLoop():
		return n.child.first()
	}
	return n.items[0].off + n.items[0].node.first()
}
