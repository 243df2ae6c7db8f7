package coll

// Pipelined broadcast along a chain or a binary tree.
//
// Idea: the data has S segments of m bytes. A rank forwards a segment while it receives the next
// one. After the first segment has reached the last rank, all ranks transfer at the same time.
//
// Cost: chain (P-2+S) (α + mβ); tree ⌈log₂ P⌉ (α + 2mβ) + S (α + 2mβ).
// Source: van de Geijn, On Global Combine Operations, J. of Parallel and
// Distributed Computing 22(2), 1994; MPI-4.1 section 6.4.
// Restrictions: none. All ranks must have the same Config.SegmentBytes.

func bcastChain(l Link, cfg *Config, buf []byte, root int) error {
	size := l.Size()
	v := mod(l.Rank()-root, size)
	parent, child := -1, -1
	if v > 0 {
		parent = mod(v-1+root, size)
	}
	if v+1 < size {
		child = mod(v+1+root, size)
	}
	return bcastSegments(l, cfg, buf, parent, child, -1)
}

func bcastTree(l Link, cfg *Config, buf []byte, root int) error {
	size := l.Size()
	v := mod(l.Rank()-root, size)
	parent, left, right := -1, -1, -1
	if v > 0 {
		parent = mod((v-1)/2+root, size)
	}
	if 2*v+1 < size {
		left = mod(2*v+1+root, size)
	}
	if 2*v+2 < size {
		right = mod(2*v+2+root, size)
	}
	return bcastSegments(l, cfg, buf, parent, left, right)
}

// bcastSegments receives buf from parent and sends it to the children left and right, segment by
// segment; -1 stands for no rank. It posts the receive of one segment ahead, and starts the sends
// of a segment before those of the previous one have ended.
func bcastSegments(l Link, cfg *Config, buf []byte, parent, left, right int) error {
	n := max(1, (len(buf)+cfg.SegmentBytes-1)/cfg.SegmentBytes)
	c := evenPartition(len(buf), 1, n)
	var next, sent, sent2 Ticket
	if parent >= 0 {
		next = l.Irecv(c.of(buf, 0, 1), parent)
	}
	for s := range n {
		if parent >= 0 {
			have := next
			if s+1 < n {
				next = l.Irecv(c.of(buf, s+1, s+2), parent)
			}
			if err := l.Wait(have); err != nil {
				return err
			}
		}
		seg, old, old2 := c.of(buf, s, s+1), sent, sent2
		if left >= 0 {
			sent = l.Isend(seg, left)
		}
		if right >= 0 {
			sent2 = l.Isend(seg, right)
		}
		if s == 0 {
			continue
		}
		if left >= 0 {
			if err := l.Wait(old); err != nil {
				return err
			}
		}
		if right >= 0 {
			if err := l.Wait(old2); err != nil {
				return err
			}
		}
	}
	return l.WaitAll()
}
