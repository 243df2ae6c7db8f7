package coll

// Ring allreduce in segments.
//
// Idea: the vector is cut into P blocks that travel around the ring twice: on
// the first round each rank adds its operand to the block that passes, on the
// second the finished blocks are handed on. Blocks move in segments, so that
// one is combined while the next is on its way; the two rounds are one stream
// of items, without a stop between them.
//
//	item   0 … S-1      S … 2S-1    …  (P-1)S …
//	recv   block r-1    r-2         …  r    (finished)
//	send   block r      r-1         …  r+1
//
// What is received as item i is sent on as item i+S.
//
// Cost: 2 (P-1) S α + 2 (P-1)/P nβ, the γ of all but one segment hidden.
// Source: Patarasuk, Yuan, Bandwidth Optimal All-reduce Algorithms for Clusters
// of Workstations, J. of Parallel and Distributed Computing 69(2), 2009.
// Restrictions: commutative operations. All ranks must have the same
// Config.SegmentBytes.
func allreduceRing(l Link, cfg *Config, send, recv []byte, op Op) error {
	size := l.Size()
	r := ring{cut: evenCut(len(send), op.Size, size), elem: op.Size, left: mod(l.Rank()-1, size), size: size}
	largest := r.cut.at(1)
	// Item i+1 is asked for while the send of item i may be under way. In the
	// second round they are the same memory if there are two ranks and one
	// segment, so two ranks have at least two.
	r.segs = max(1, (largest+cfg.SegmentBytes-1)/cfg.SegmentBytes)
	if size == 2 {
		r.segs = max(2, r.segs)
	}
	items := 2 * (size - 1) * r.segs
	if same(send, recv) {
		seg := evenCut(largest, op.Size, r.segs)
		r.tmp[0], r.tmp[1] = l.Scratch(seg.at(1)), l.Scratch(seg.at(1))
	}

	right := mod(l.Rank()+1, size)
	var sent Ticket
	next := l.Irecv(r.landing(recv, 0), r.left)
	for i := range items {
		from := recv
		if i < r.segs {
			from = send
		}
		old := sent
		sent = l.Isend(r.item(from, i-r.segs), right)
		if i > 0 {
			if err := l.Wait(old); err != nil {
				return err
			}
		}
		have := next
		if i+1 < items {
			next = l.Irecv(r.landing(recv, i+1), r.left)
		}
		if err := l.Wait(have); err != nil {
			return err
		}
		if i >= r.reduceItems() {
			continue
		}
		if r.tmp[0] == nil {
			op.Combine(r.item(recv, i), r.item(send, i))
		} else {
			op.Combine(r.item(recv, i), r.landing(recv, i))
		}
	}
	return l.Wait(sent)
}

// ring is the order in which segments pass a rank.
type ring struct {
	cut        cut
	elem, size int
	segs       int // segments per block
	left       int
	tmp        [2][]byte // for a call in place: nil where data may land in recv
}

func (r *ring) reduceItems() int { return (r.size - 1) * r.segs }

// item is the segment that is received as item i; -segs to -1 are those of the
// rank's own block, sent first.
func (r *ring) item(buf []byte, i int) []byte {
	i += r.segs
	b := mod(r.left+1-i/r.segs%r.size, r.size)
	block := r.cut.of(buf, b, b+1)
	seg := evenCut(len(block), r.elem, r.segs)
	s := i % r.segs
	return seg.of(block, s, s+1)
}

// landing is where item i is received: in the place of its segment, or beside
// it while the rank's own operand still stands there.
func (r *ring) landing(recv []byte, i int) []byte {
	seg := r.item(recv, i)
	if r.tmp[0] != nil && i < r.reduceItems() {
		return r.tmp[i%2][:len(seg)]
	}
	return seg
}
