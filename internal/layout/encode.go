package layout

import (
	"encoding/binary"
	"fmt"
)

// The encoding of a layout, by which ranks send their layouts to each other. All numbers are signed
// varints.
//
//	layout    off lb ub node
//	node      0                          no data; only of a layout
//	          1 size                     block
//	          2 count stride node        loop
//	          3 count (off node)…        sequence
//	          4                          in a sequence: the node of the item before, which has
//	                                     no sequence in it; so the work for a layout grows with
//	                                     the length of its encoding
const (
	noNode = iota
	blockNode
	loopNode
	sequenceNode
	sameNode
)

// maxDepth is the maximum number of nested nodes that Parse accepts.
const maxDepth = 100

// Append appends the encoding of l, which has no error, to b.
func (l Layout) Append(b []byte) []byte {
	b = varints(b, l.off, l.lb, l.ub)
	if l.root == nil {
		return varints(b, noNode)
	}
	return l.root.append(b)
}

func varints(b []byte, values ...int) []byte {
	for _, v := range values {
		b = binary.AppendVarint(b, int64(v))
	}
	return b
}

func (n *node) append(b []byte) []byte {
	switch {
	case n.isBlock():
		return varints(b, blockNode, n.size)
	case n.isLoop():
		return n.child.append(varints(b, loopNode, n.count, n.stride))
	}
	b = varints(b, sequenceNode, len(n.items))
	for i, it := range n.items {
		b = varints(b, it.off)
		if i > 0 && it.node == n.items[i-1].node && it.node.simple() {
			b = varints(b, sameNode)
		} else {
			b = it.node.append(b)
		}
	}
	return b
}

// simple reports whether the node has no sequence in it.
func (n *node) simple() bool {
	for n.isLoop() {
		n = n.child
	}
	return n.isBlock()
}

// Parse is the reverse of Append. If b is not the encoding of a layout, Parse returns an error that
// wraps ErrLayout.
func Parse(b []byte) (Layout, error) {
	p := parser{rest: b}
	l := Layout{off: p.int(), lb: p.int(), ub: p.int()}
	if root, off := p.node(0, nil); root != nil && !p.bad && !p.overflow {
		low, high := root.span()
		l.root, l.off = root, p.add(l.off, off)
		l.low, l.high = p.add(l.off, low), p.add(l.off, high)
	}
	if p.add(l.ub, p.mul(l.lb, -1)); p.bad || p.overflow || len(p.rest) > 0 {
		return Layout{}, fmt.Errorf("%w: malformed encoding", ErrLayout)
	}
	return l, nil
}

type parser struct {
	rest []byte
	bad  bool // the encoding is malformed
	checked
}

func (p *parser) int() int {
	v, n := binary.Varint(p.rest)
	if n <= 0 || int64(int(v)) != v {
		p.bad = true
		return 0
	}
	p.rest = p.rest[n:]
	return int(v)
}

// positive returns a number that is at least 1.
func (p *parser) positive() int {
	v := p.int()
	if v < 1 {
		p.bad = true
		return 1
	}
	return v
}

// node parses a node. before is the node of the item before in the same sequence, or nil. off is
// the offset of the node that node returns, which has the normal form, from the start of the node
// that it has parsed.
func (p *parser) node(depth int, before *node) (n *node, off int) {
	if depth > maxDepth {
		p.bad = true
	}
	if p.bad {
		return nil, 0
	}
	switch p.int() {
	case noNode:
		p.bad = p.bad || depth > 0
	case blockNode:
		n = &node{size: p.positive()}
	case loopNode:
		count, stride := p.positive(), p.int()
		child, off := p.node(depth+1, nil)
		if p.bad {
			return nil, 0
		}
		size, last := p.mul(count, child.size), p.mul(count-1, stride)
		p.bound(last, child)
		if p.bad = p.overflow; p.bad {
			return nil, 0
		}
		return loop(count, stride, size, child), off
	case sequenceNode:
		return p.sequence(depth)
	case sameNode:
		if n = before; n == nil || !n.simple() {
			p.bad = true
		}
	default:
		p.bad = true
	}
	return n, 0
}

// bound checks that the offsets of a node at offset off fit into an int.
func (p *parser) bound(off int, n *node) {
	low, high := n.span()
	p.add(off, low)
	p.add(off, high)
}

func (p *parser) sequence(depth int) (*node, int) {
	count, size := p.positive(), 0
	if count < 2 || count > len(p.rest)/2 { // an item has at least two bytes
		p.bad = true
		return nil, 0
	}
	items := make([]item, 0, count)
	var before *node
	for range count {
		off := p.int()
		n, more := p.node(depth+1, before)
		if p.bad {
			return nil, 0
		}
		off = p.add(off, more)
		before = n
		p.bound(off, n)
		size = p.add(size, n.size)
		items = append(items, item{off: off, node: n})
	}
	// The offsets of the sequence are relative to its first item, and must fit into an int, too.
	for i := range items {
		p.bound(p.add(items[i].off, p.mul(items[0].off, -1)), items[i].node)
	}
	if p.overflow {
		p.bad = true
		return nil, 0
	}
	off, n := sequence(items)
	return n, off
}
