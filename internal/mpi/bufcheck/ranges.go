package bufcheck

import (
	"math/rand/v2"

	"github.com/weft-hpc/weft/internal/elem"
)

// ranges is a set of memory ranges, which may overlap. It is a treap (a binary search tree that
// random priorities keep balanced), ordered by the start of the ranges. add, remove and find take
// logarithmic time.
type ranges struct {
	root *memRange
	seq  uint64 // seq of the last range that add has added; it orders ranges with the same start
}

// memRange is one range of a set, and a node of the tree.
type memRange struct {
	from, to    uintptr    // addresses of the first byte and after the last byte
	owner       *Operation // the operation that uses the memory
	seq         uint64     // number of the range in the order of add
	priority    uint64     // random; no child of the node has a higher one
	last        uintptr    // the highest value of to in the subtree of the node, which includes the node
	left, right *memRange
}

// add adds the memory of b, which the operation owner uses, and returns its range. If b is empty,
// add does nothing and returns nil.
func (t *ranges) add(b []byte, owner *Operation) *memRange {
	if len(b) == 0 {
		return nil
	}
	from, to := elem.Bounds(b)
	t.seq++
	r := &memRange{from: from, to: to, owner: owner, seq: t.seq, priority: rand.Uint64()}
	t.root = t.root.insert(r)
	return r
}

// remove removes r, which add has returned. r may be nil.
func (t *ranges) remove(r *memRange) {
	if r != nil {
		t.root = t.root.without(r)
	}
}

// find returns a range that shares memory with b, or nil if there is none.
func (t *ranges) find(b []byte) *memRange {
	if len(b) == 0 {
		return nil
	}
	from, to := elem.Bounds(b)
	for n := t.root; n != nil; {
		switch {
		case n.from < to && from < n.to:
			return n
		// If no range on the left overlaps b, the ranges on the right start after b.
		case n.left != nil && n.left.last > from:
			n = n.left
		default:
			n = n.right
		}
	}
	return nil
}

// before reports whether n is before other in the order of the tree.
func (n *memRange) before(other *memRange) bool {
	return n.from < other.from || n.from == other.from && n.seq < other.seq
}

// update computes n.last from n and its children, and returns n.
func (n *memRange) update() *memRange {
	n.last = n.to
	for _, child := range []*memRange{n.left, n.right} {
		if child != nil {
			n.last = max(n.last, child.last)
		}
	}
	return n
}

// insert adds r to the subtree of n, and returns the root of the subtree. n is nil for an empty
// subtree.
func (n *memRange) insert(r *memRange) *memRange {
	switch {
	case n == nil || r.priority > n.priority:
		r.left, r.right = n.split(r)
		return r.update()
	case r.before(n):
		n.left = n.left.insert(r)
	default:
		n.right = n.right.insert(r)
	}
	return n.update()
}

// split divides the subtree of n into the ranges before at and the ranges after at, and returns the
// roots of both.
func (n *memRange) split(at *memRange) (before, after *memRange) {
	switch {
	case n == nil:
		return nil, nil
	case n.before(at):
		n.right, after = n.right.split(at)
		return n.update(), after
	default:
		before, n.left = n.left.split(at)
		return before, n.update()
	}
}

// without removes r, which is in the subtree of n, and returns the root of the subtree.
func (n *memRange) without(r *memRange) *memRange {
	switch {
	case n == r:
		return n.left.join(n.right)
	case r.before(n):
		n.left = n.left.without(r)
	default:
		n.right = n.right.without(r)
	}
	return n.update()
}

// join returns the root of a subtree with the ranges of the subtrees n and after. All ranges of
// after come later than those of n in the order of the tree.
func (n *memRange) join(after *memRange) *memRange {
	switch {
	case n == nil:
		return after
	case after == nil:
		return n
	case n.priority > after.priority:
		n.right = n.right.join(after)
		return n.update()
	default:
		after.left = n.join(after.left)
		return after.update()
	}
}
