package coll

// Reduce-scatter by reduction and scatter.
//
// Idea: a reduce of all blocks to rank 0, by the algorithm that the configuration chooses or forces
// for it, then a scatter of the blocks.
//
// Cost: the sum of the two.
// Source: MPI-4.1 section 6.10, which defines the operation in this way.
// Restrictions: none.
func reduceScatterReduce(l Link, cfg *Config, send, recv []byte, b blocks, op Op) error {
	var whole []byte
	if l.Rank() == 0 {
		whole = l.Scratch(len(send))
	}
	if err := Reduce(l, cfg, send, whole, op, 0); err != nil {
		return err
	}
	return scatterLinear(l, cfg, whole, recv, b, 0)
}
