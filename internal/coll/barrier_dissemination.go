package coll

// Dissemination barrier.
//
// Idea: in round k every rank sends an empty message to the rank 2^k above it and waits for one
// from the rank 2^k below it, modulo P. After ⌈log₂ P⌉ rounds each rank knows, directly or
// indirectly, that all have arrived.
//
// Cost: ⌈log₂ P⌉ α.
// Source: Hensgen, Finkel, Manber, Two Algorithms for Barrier Synchronization,
// Int. J. of Parallel Programming 17(1), 1988; MPI-4.1 section 6.3.
// Restrictions: none.
func barrierDissemination(l Link, _ *Config) error {
	rank, size := l.Rank(), l.Size()
	for d := 1; d < size; d *= 2 {
		if err := l.Sendrecv(nil, mod(rank+d, size), nil, mod(rank-d, size)); err != nil {
			return err
		}
	}
	return nil
}
