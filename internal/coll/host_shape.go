package coll

// Shape says which ranks of a communicator share memory. It is the same on all
// of them.
type Shape struct {
	of       []int // by rank: the number of its host
	leaders  []int // by host: its lowest rank
	adjacent bool  // the ranks of each host follow each other
	largest  int   // ranks of the largest host
}

// NewShape makes a shape of what all ranks say: by rank, the lowest rank that
// it shares memory with, which may be itself.
func NewShape(lowest []int) Shape {
	s := Shape{of: make([]int, len(lowest)), adjacent: true}
	sizes := make([]int, len(lowest))
	for r, low := range lowest {
		if low == r {
			s.of[r] = len(s.leaders)
			s.leaders = append(s.leaders, r)
		} else {
			s.of[r] = s.of[low]
		}
		sizes[low]++
		s.largest = max(s.largest, sizes[low])
		s.adjacent = s.adjacent && (r == 0 || s.of[r] >= s.of[r-1])
	}
	return s
}

// Hosts is the number of hosts; they are in the order of their lowest ranks.
func (s *Shape) Hosts() int { return len(s.leaders) }

// Members are the ranks of a host, in order.
func (s *Shape) Members(host int) []int {
	var m []int
	for r, of := range s.of {
		if of == host {
			m = append(m, r)
		}
	}
	return m
}
