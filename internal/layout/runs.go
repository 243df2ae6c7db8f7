package layout

// Run is a regular part of a buffer: Count blocks of Len bytes. The first block begins at the offset
// Off, and each next one begins Stride bytes after the start of the one before. Stride may be negative.
type Run struct{ Off, Len, Stride, Count int }

// Size returns the number of bytes of data of the run.
func (r Run) Size() int { return r.Len * r.Count }

// Runs is Ranges with runs instead of ranges, so a column of a matrix is one element of the list. The
// list never ends in the middle of a run, except at the position to.
//
// Hot path: no allocation.
func (l Layout) Runs(list []Run, from, to int) ([]Run, int) {
	to = min(to, l.Size())
	if from >= to {
		return list, from
	}
	r := runner{list: list, end: from}
	r.node(l.root, l.off, from, to)
	return r.list, r.end
}

// runner is the counterpart of ranger for runs.
type runner struct {
	list []Run
	end  int // position in the stream up to which the list contains it
}

func (r *runner) add(run Run) bool {
	if len(r.list) == cap(r.list) {
		return false
	}
	r.list = append(r.list, run)
	r.end += run.Size()
	return true
}

func (r *runner) node(n *node, off, from, to int) bool {
	switch {
	case n.isBlock():
		return r.add(Run{off + from, to - from, 0, 1})
	case n.isLoop() && n.child.isBlock():
		return r.blocks(n, off, from, to)
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

// blocks adds a part of a loop over a block: an incomplete block, the complete ones, and an incomplete
// block at the end.
func (r *runner) blocks(n *node, off, from, to int) bool {
	size := n.child.size
	off += from / size * n.stride
	if rest := from % size; rest > 0 {
		part := min(to-from, size-rest)
		if !r.add(Run{off + rest, part, 0, 1}) {
			return false
		}
		off, from = off+n.stride, from+part
	}
	if full := (to - from) / size; full > 0 {
		if !r.add(Run{off, size, n.stride, full}) {
			return false
		}
		off, from = off+full*n.stride, from+full*size
	}
	return from == to || r.add(Run{off, to - from, 0, 1})
}

// Pack copies the run out of the buffer src to dst, which has r.Size() bytes. src[0] has offset 0.
//
// Hot path: no allocation.
func (r Run) Pack(dst, src []byte) { gather(dst, src, r.Off, r.Len, r.Stride) }

// Unpack is the reverse of Pack: it copies src to the run in the buffer dst.
//
// Hot path: no allocation.
func (r Run) Unpack(dst, src []byte) { scatter(dst, src, r.Off, r.Len, r.Stride) }

// Blocks returns the number of blocks of the normal form: the number of ranges that Ranges returns for
// the whole stream, if no two of them touch.
func (l Layout) Blocks() int { return l.root.blocks() }

func (n *node) blocks() int {
	switch {
	case n == nil:
		return 0
	case n.isBlock():
		return 1
	case n.isLoop():
		return n.count * n.child.blocks()
	}
	sum := 0
	for i := range n.items {
		sum += n.items[i].node.blocks()
	}
	return sum
}
