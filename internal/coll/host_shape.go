package coll

// Shape describes which ranks of a communicator share memory. In this package a host is a set of
// ranks that share memory. All ranks have the same Shape.
type Shape struct {
	of       []int // by rank: the number of its host; see Hosts
	lowest   []int // by host: its lowest rank
	adjacent bool  // the ranks of each host are consecutive
	largest  int   // number of ranks of the largest host
}

// NewShape returns the Shape for a communicator. lowest holds, by rank, the lowest rank that the
// rank shares memory with, which may be the rank itself.
func NewShape(lowest []int) Shape {
	s := Shape{of: make([]int, len(lowest)), adjacent: true}
	sizes := make([]int, len(lowest))
	for r, low := range lowest {
		if low == r {
			s.of[r] = len(s.lowest)
			s.lowest = append(s.lowest, r)
		} else {
			s.of[r] = s.of[low]
		}
		sizes[low]++
		s.largest = max(s.largest, sizes[low])
		s.adjacent = s.adjacent && (r == 0 || s.of[r] >= s.of[r-1])
	}
	return s
}

// Hosts returns the number of hosts. Hosts are numbered in the order of their lowest ranks.
func (s *Shape) Hosts() int { return len(s.lowest) }
