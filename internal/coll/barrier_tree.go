package coll

// Tree barrier.
//
// Idea: empty messages go up a binomial tree to rank 0, then down again.
//
// Cost: 2 ⌈log₂ P⌉ α, but only 2(P-1) messages in total; dissemination sends P ⌈log₂ P⌉ messages.
// So the tree is faster if there are many more ranks than cores.
// Source: MPI-4.1 section 6.3.
// Restrictions: none.
func barrierTree(l Link, _ *Config) error {
	rank, size := l.Rank(), l.Size()
	mask := 1
	for ; mask < size && rank&mask == 0; mask *= 2 {
		if child := rank + mask; child < size {
			if err := l.Recv(nil, child); err != nil {
				return err
			}
		}
	}
	if rank != 0 {
		if err := l.Send(nil, rank-mask); err != nil {
			return err
		}
		if err := l.Recv(nil, rank-mask); err != nil {
			return err
		}
	}
	for mask /= 2; mask > 0; mask /= 2 {
		if child := rank + mask; child < size {
			if err := l.Send(nil, child); err != nil {
				return err
			}
		}
	}
	return nil
}
