package coll

// Ring allreduce in segments.
//
// Idea: the vector has P blocks, which travel around the ring twice. In the first round each rank
// combines its operand with the block that passes; in the second round the ranks forward the
// finished blocks. A block has S segments, so a rank combines one segment while it transfers the
// next. The segments of both rounds are one sequence of items, without a pause between the rounds.
//
//	item   0 … S-1      S … 2S-1    …  (P-1)S …
//	recv   block r-1    r-2         …  r    (finished)
//	send   block r      r-1         …  r+1
//
// A rank sends the segment that it received as item i as item i+S.
//
// Cost: 2 (P-1) S α + 2 (P-1)/P nβ. The transfers hide the γ of all segments except one.
// Source: Patarasuk, Yuan, Bandwidth Optimal All-reduce Algorithms for Clusters
// of Workstations, J. of Parallel and Distributed Computing 69(2), 2009.
// Restrictions: commutative operations. All ranks must have the same
// Config.SegmentBytes.
func allreduceRing(l Link, cfg *Config, send, recv []byte, op Op) error {
	size := l.Size()
	r := ring{partition: evenPartition(len(send), op.Size, size), elem: op.Size, left: mod(l.Rank()-1, size), size: size}
	largest := r.partition.at(1)
	// The loop posts the receive of item i+1 while the send of item i may be pending. In the
	// second round of two ranks with one segment, the two items would be the same memory, so two
	// ranks use at least two segments.
	r.segs = max(1, (largest+cfg.SegmentBytes-1)/cfg.SegmentBytes)
	if size == 2 {
		r.segs = max(2, r.segs)
	}
	items := 2 * (size - 1) * r.segs
	if same(send, recv) {
		seg := evenPartition(largest, op.Size, r.segs)
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
			op.Reduce2(r.item(recv, i), r.item(send, i))
		} else {
			op.Reduce2(r.item(recv, i), r.landing(recv, i))
		}
	}
	return l.Wait(sent)
}

// ring describes the order in which segments pass a rank.
type ring struct {
	partition  partition
	elem, size int
	segs       int       // segments per block
	left       int       // rank of the left neighbour
	tmp        [2][]byte // receive buffers of a call in place; otherwise nil, and recv is used
}

func (r *ring) reduceItems() int { return (r.size - 1) * r.segs }

// item returns the segment of buf that the rank receives as item i. Items -segs to -1 are the
// segments of the rank's own block, which it sends first.
func (r *ring) item(buf []byte, i int) []byte {
	i += r.segs
	b := mod(r.left+1-i/r.segs%r.size, r.size)
	block := r.partition.of(buf, b, b+1)
	seg := evenPartition(len(block), r.elem, r.segs)
	s := i % r.segs
	return seg.of(block, s, s+1)
}

// landing returns the buffer in which the rank receives item i: the item's segment of recv, or a
// temporary buffer while recv still holds the rank's own operand there.
func (r *ring) landing(recv []byte, i int) []byte {
	seg := r.item(recv, i)
	if r.tmp[0] != nil && i < r.reduceItems() {
		return r.tmp[i%2][:len(seg)]
	}
	return seg
}
