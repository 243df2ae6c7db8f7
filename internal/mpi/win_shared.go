package mpi

// Shared implements comm.Win.Shared, which documents the call.
func (x *Win) Shared(rank int) (mem []byte, ok bool) {
	if x.live() != nil || uint(rank) >= uint(len(x.lens)) || rank == x.c.s.rank {
		return nil, false
	}
	return x.win.Mapped(rank)
}

// Own reports whether the window can be used and rank is this rank.
func (x *Win) Own(rank int) bool { return x.live() == nil && rank == x.c.s.rank }
