package mpi

// Shared is comm.Win.Shared.
func (x *Win) Shared(rank int) (mem []byte, ok bool) {
	if x.live() != nil || uint(rank) >= uint(len(x.lens)) || rank == x.c.s.rank {
		return nil, false
	}
	return x.win.Mapped(rank)
}

// Own reports whether rank is this rank, and the window can be used.
func (x *Win) Own(rank int) bool { return x.live() == nil && rank == x.c.s.rank }
