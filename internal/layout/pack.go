package layout

import "encoding/binary"

// Pack copies a part of the stream of l out of the buffer src to dst. The part begins at the
// position from and ends at the end of dst or of the stream. Pack returns its number of bytes.
//
// src[origin] has offset 0. Pack panics if src does not have all bytes of the part; Fits tells.
//
// Hot path: no allocation.
func (l Layout) Pack(dst, src []byte, origin, from int) int {
	n := min(len(dst), l.Size()-from)
	if n <= 0 {
		return 0
	}
	m := mover{packed: dst[:n], buf: src}
	m.node(l.root, origin+l.off, from, from+n)
	return n
}

// Unpack is the reverse of Pack: it copies src to a part of the stream of l in the buffer dst. If
// two parts of the layout have a byte in common, the later one in the stream wins.
//
// Hot path: no allocation.
func (l Layout) Unpack(dst, src []byte, origin, from int) int {
	n := min(len(src), l.Size()-from)
	if n <= 0 {
		return 0
	}
	m := mover{packed: src[:n], buf: dst, unpack: true}
	m.node(l.root, origin+l.off, from, from+n)
	return n
}

// Fits reports whether a buffer of n bytes, whose byte with index origin has offset 0, has all
// bytes of l.
func (l Layout) Fits(n, origin int) bool {
	return l.root == nil || l.low >= -origin && l.high <= n-origin
}

// mover copies between a part of a stream and a buffer. Its methods take a node whose begin is
// buf[at], and the positions from and to in the stream of the node, between which they copy.
type mover struct {
	packed []byte // the rest of the part of the stream
	buf    []byte
	unpack bool // copy from packed to buf
}

// block copies n bytes at buf[at].
func (m *mover) block(at, n int) {
	if m.unpack {
		copy(m.buf[at:at+n], m.packed[:n])
	} else {
		copy(m.packed[:n], m.buf[at:at+n])
	}
	m.packed = m.packed[n:]
}

func (m *mover) node(n *node, at, from, to int) {
	switch {
	case n.isBlock():
		m.block(at+from, to-from)
	case n.isLoop():
		m.loop(n, at, from, to)
	default:
		m.sequence(n, at, from, to)
	}
}

func (m *mover) loop(n *node, at, from, to int) {
	child := n.child
	i, rest := from/child.size, from%child.size
	at += i * n.stride
	if left := to - from; rest > 0 || left < child.size { // an incomplete round at the begin
		part := min(left, child.size-rest)
		m.node(child, at, rest, rest+part)
		at, from = at+n.stride, from+part
	}
	full := (to - from) / child.size
	if child.isBlock() {
		m.blocks(at, child.size, full, n.stride)
		at += full * n.stride
	} else {
		for range full {
			m.node(child, at, 0, child.size)
			at += n.stride
		}
	}
	if rest := (to - from) % child.size; rest > 0 {
		m.node(child, at, 0, rest)
	}
}

func (m *mover) sequence(n *node, at, from, to int) {
	i := n.find(from)
	for from < to {
		it := &n.items[i]
		end := min(to, it.begin+it.node.size)
		if it.node.isBlock() {
			m.block(at+it.off+from-it.begin, end-from)
		} else {
			m.node(it.node, at+it.off, from-it.begin, end-it.begin)
		}
		from, i = end, i+1
	}
}

// find returns the index of the item of a sequence that contains a position of its stream.
func (n *node) find(position int) int {
	low, high := 0, len(n.items)
	for high-low > 1 {
		if mid := int(uint(low+high) / 2); n.items[mid].begin <= position {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// blocks copies count blocks of size bytes whose begins are stride bytes apart.
func (m *mover) blocks(at, size, count, stride int) {
	if count == 0 {
		return
	}
	packed, buf := m.packed[:size*count], m.buf
	m.packed = m.packed[size*count:]
	if m.unpack {
		scatter(buf, packed, at, size, stride)
	} else {
		gather(packed, buf, at, size, stride)
	}
}

// gather fills packed with blocks of size bytes of buf, the first at buf[at], the next stride bytes
// further, and so on. Blocks of 4, 8 and 16 bytes, which are elements, are loads and stores instead
// of calls of copy.
func gather(packed, buf []byte, at, size, stride int) {
	switch size {
	case 4:
		for ; len(packed) >= 4; packed, at = packed[4:], at+stride {
			binary.NativeEndian.PutUint32(packed, binary.NativeEndian.Uint32(buf[at:]))
		}
	case 8:
		for ; len(packed) >= 8; packed, at = packed[8:], at+stride {
			binary.NativeEndian.PutUint64(packed, binary.NativeEndian.Uint64(buf[at:]))
		}
	case 16:
		for ; len(packed) >= 16; packed, at = packed[16:], at+stride {
			from := buf[at : at+16]
			binary.NativeEndian.PutUint64(packed, binary.NativeEndian.Uint64(from))
			binary.NativeEndian.PutUint64(packed[8:], binary.NativeEndian.Uint64(from[8:]))
		}
	default:
		for ; len(packed) >= size; packed, at = packed[size:], at+stride {
			copy(packed[:size], buf[at:at+size])
		}
	}
}

// scatter is the reverse of gather: it copies packed to blocks of buf.
func scatter(buf, packed []byte, at, size, stride int) {
	switch size {
	case 4:
		for ; len(packed) >= 4; packed, at = packed[4:], at+stride {
			binary.NativeEndian.PutUint32(buf[at:], binary.NativeEndian.Uint32(packed))
		}
	case 8:
		for ; len(packed) >= 8; packed, at = packed[8:], at+stride {
			binary.NativeEndian.PutUint64(buf[at:], binary.NativeEndian.Uint64(packed))
		}
	case 16:
		for ; len(packed) >= 16; packed, at = packed[16:], at+stride {
			to := buf[at : at+16]
			binary.NativeEndian.PutUint64(to, binary.NativeEndian.Uint64(packed))
			binary.NativeEndian.PutUint64(to[8:], binary.NativeEndian.Uint64(packed[8:]))
		}
	default:
		for ; len(packed) >= size; packed, at = packed[size:], at+stride {
			copy(buf[at:at+size], packed[:size])
		}
	}
}
