package coll

// The tables of algorithms, one per family. The names are the values of the coll.*.algorithm
// parameters. internal/params lists them too, and a test compares the two lists. The comment of an
// entry says what the algorithm does. For an algorithm that uses messages only, it also says for which
// calls Auto chooses it; [Config] has the thresholds. Config.autoHost and Config.shares decide when
// Auto chooses an algorithm that uses shared memory.

type (
	barrierFunc   func(l Link, cfg *Config) error
	bcastFunc     func(l Link, cfg *Config, buf []byte, root int) error
	reduceFunc    func(l Link, cfg *Config, send, recv []byte, op Op, root int) error
	allreduceFunc func(l Link, cfg *Config, send, recv []byte, op Op) error
	rootedFunc    func(l Link, cfg *Config, send, recv []byte, b blocks, root int) error
	// The caller has copied the rank's own block from send to its place in recv. Some algorithms
	// send the block from send, because other ranks read it there faster than in memory that this
	// rank has just written.
	allgatherFunc     func(l Link, cfg *Config, send, recv []byte, b blocks) error
	alltoallFunc      func(l Link, cfg *Config, send []byte, sb blocks, recv []byte, rb blocks) error
	reduceScatterFunc func(l Link, cfg *Config, send, recv []byte, b blocks, op Op) error
	scanFunc          func(l Link, cfg *Config, send, recv []byte, op Op, exclusive bool) error
)

const (
	barrierByDissemination = iota
	barrierByTree
	barrierByShared
	barrierByHosts
)

var barriers = []algorithm[barrierFunc]{
	barrierByDissemination: {"dissemination", 0, barrierDissemination},   // messages to the rank at distance 1, 2, 4, …; log P rounds; every Barrier
	barrierByTree:          {"tree", 0, barrierTree},                     // up a binomial tree and down again, with the fewest messages; only for SparseBarrier, or if forced
	barrierByShared:        {"shared", NeedsSharedMemory, barrierShared}, // every rank reads the arrivals of all others
	barrierByHosts:         {"hierarchical", NeedsHosts, nil},            // in shared memory within hosts, by messages between them
}

const (
	bcastByBinomial = iota
	bcastByKnomial
	bcastByChain
	bcastByTree
	bcastByScatterDoubling
	bcastByScatterRing
	bcastByShared
	bcastByHosts
)

var bcasts = []algorithm[bcastFunc]{
	bcastByBinomial:        {"binomial", 0, bcastBinomial},                                        // binomial tree; small messages and few ranks, or two ranks
	bcastByKnomial:         {"knomial", 0, bcastKnomialRadix},                                     // k-nomial tree, flatter than the binomial one; small messages, many ranks
	bcastByChain:           {"chain", 0, bcastChain},                                              // pipelined chain, for large messages and few ranks; only if forced
	bcastByTree:            {"tree", 0, bcastTree},                                                // pipelined binary tree; medium messages, and large ones if each rank's part is small
	bcastByScatterDoubling: {"scatter_recursive_doubling", NeedsPowerOfTwo, bcastScatterDoubling}, // scatter, then allgather in log P rounds; large messages if each rank's part is small
	bcastByScatterRing:     {"scatter_ring", 0, bcastScatterRing},                                 // scatter, then allgather around a ring; large messages if each rank's part is large
	bcastByShared:          {"shared", NeedsSharedMemory, bcastShared},                            // one writer, many readers, segment by segment
	bcastByHosts:           {"hierarchical", NeedsHosts, nil},                                     // in shared memory within hosts, by messages between them
}

const (
	reduceByBinomial = iota
	reduceByKnomial
	reduceByRabenseifner
	reduceByPairwise
	reduceByShared
	reduceByHosts
)

var reduces = []algorithm[reduceFunc]{
	reduceByBinomial:     {"binomial", 0, reduceBinomial},                        // binomial tree; small messages and few ranks, or two ranks
	reduceByKnomial:      {"knomial", 0, reduceKnomialRadix},                     // k-nomial tree, flatter than the binomial one; small messages, many ranks
	reduceByRabenseifner: {"rabenseifner", NeedsCommutative, reduceRabenseifner}, // reduce-scatter, then gather; large messages, operations that commute
	reduceByPairwise:     {"pairwise", 0, reducePairwise},                        // pairwise reduce-scatter, then gather; large messages, operations that do not commute
	reduceByShared:       {"shared", NeedsSharedMemory, reduceShared},            // the root reads and combines all operands; of long vectors every rank combines a slice
	reduceByHosts:        {"hierarchical", NeedsHosts | NeedsAdjacent, nil},      // in shared memory within hosts, by messages between them
}

const (
	allreduceByDoubling = iota
	allreduceByRabenseifner
	allreduceByRing
	allreduceByPairwise
	allreduceByShared
	allreduceByHosts
)

var allreduces = []algorithm[allreduceFunc]{
	allreduceByDoubling:     {"recursive_doubling", 0, allreduceDoubling},              // every rank combines all operands in log P rounds; small messages
	allreduceByRabenseifner: {"rabenseifner", NeedsCommutative, allreduceRabenseifner}, // reduce-scatter, then allgather, in log P rounds each; medium messages, and large ones if each rank's part is small
	allreduceByRing:         {"ring", NeedsCommutative, allreduceRing},                 // segments twice around a ring; large messages if each rank's part is large
	allreduceByPairwise:     {"pairwise", 0, allreducePairwise},                        // pairwise reduce-scatter, then ring allgather; large messages, operations that do not commute
	allreduceByShared:       {"shared", NeedsSharedMemory, allreduceShared},            // every rank reads and combines all operands, or one slice of long vectors
	allreduceByHosts:        {"hierarchical", NeedsHosts | NeedsAdjacent, nil},         // in shared memory within hosts, by messages between them
}

const (
	gatherByBinomial = iota
	gatherByLinear
	gatherByShared
	gatherByHosts
)

var gathers = []algorithm[rootedFunc]{
	gatherByBinomial: {"binomial", NeedsEqualCounts, gatherBinomial},                       // up a binomial tree; small blocks
	gatherByLinear:   {"linear", 0, gatherLinear},                                          // every rank sends to the root; large or unequal blocks
	gatherByShared:   {"shared", NeedsSharedMemory, gatherShared},                          // the root reads all blocks
	gatherByHosts:    {"hierarchical", NeedsHosts | NeedsAdjacent | NeedsEqualCounts, nil}, // in shared memory within hosts, by messages between them
}

const (
	scatterByBinomial = iota
	scatterByLinear
	scatterByShared
	scatterByHosts
)

var scatters = []algorithm[rootedFunc]{
	scatterByBinomial: {"binomial", NeedsEqualCounts, scatterBinomial},                      // down a binomial tree; small blocks
	scatterByLinear:   {"linear", 0, scatterLinear},                                         // the root sends to every rank; large or unequal blocks
	scatterByShared:   {"shared", NeedsSharedMemory, scatterShared},                         // every rank reads its block
	scatterByHosts:    {"hierarchical", NeedsHosts | NeedsAdjacent | NeedsEqualCounts, nil}, // in shared memory within hosts, by messages between them
}

const (
	allgatherByDoubling = iota
	allgatherByBruck
	allgatherByRing
	allgatherByLinear
	allgatherByShared
	allgatherByHosts
)

var allgathers = []algorithm[allgatherFunc]{
	allgatherByDoubling: {"recursive_doubling", NeedsPowerOfTwo | NeedsEqualCounts, allgatherDoubling}, // exchanges at distance 1, 2, 4, …; small totals of equal counts
	allgatherByBruck:    {"bruck", NeedsEqualCounts, allgatherBruck},                                   // log P rounds for any number of ranks; small totals of equal counts
	allgatherByRing:     {"ring", 0, allgatherRing},                                                    // from neighbour to neighbour; large totals, two ranks, or unequal counts of many ranks
	allgatherByLinear:   {"linear", 0, allgatherLinear},                                                // every rank sends to every other; small totals of unequal counts, few ranks
	allgatherByShared:   {"shared", NeedsSharedMemory, allgatherShared},                                // every rank reads all blocks
	allgatherByHosts:    {"hierarchical", NeedsHosts | NeedsAdjacent | NeedsEqualCounts, nil},          // in shared memory within hosts, by messages between them
}

const (
	alltoallByBruck = iota
	alltoallByPairwise
	alltoallByScattered
	alltoallByShared
)

var alltoalls = []algorithm[alltoallFunc]{
	alltoallByBruck:     {"bruck", NeedsEqualCounts, alltoallBruck},    // log P rounds of combined messages; tiny blocks, many ranks
	alltoallByPairwise:  {"pairwise", 0, alltoallPairwise},             // one partner at a time; large blocks
	alltoallByScattered: {"scattered", 0, alltoallScattered},           // many transfers at once; unequal or medium blocks, and tiny ones of few ranks
	alltoallByShared:    {"shared", NeedsSharedMemory, alltoallShared}, // every rank reads its blocks
}

const (
	reduceScatterByHalving = iota
	reduceScatterByPairwise
	reduceScatterByReduce
	reduceScatterByShared
)

var reduceScatters = []algorithm[reduceScatterFunc]{
	reduceScatterByHalving:  {"recursive_halving", NeedsCommutative, reduceScatterHalving}, // exchanges of halves in log P rounds; small and medium totals, operations that commute
	reduceScatterByPairwise: {"pairwise", 0, reduceScatterPairwise},                        // each rank combines its own block of all operands; large totals
	reduceScatterByReduce:   {"reduce_scatterv", 0, reduceScatterReduce},                   // reduce to rank 0, then scatterv; small totals, operations that do not commute
	reduceScatterByShared:   {"shared", NeedsSharedMemory, reduceScatterShared},            // every rank combines its own block of all operands
}

const (
	scanByDoubling = iota
	scanByShared
)

var scans = []algorithm[scanFunc]{
	scanByDoubling: {"recursive_doubling", 0, scanDoubling},   // prefixes of 1, 2, 4, … ranks; log P rounds; every Scan and Exscan
	scanByShared:   {"shared", NeedsSharedMemory, scanShared}, // every rank combines the operands of lower ranks and, in Scan, its own
}

// sharedAlgorithm holds, by family, the index of the shared memory algorithm in the family's table.
// If the family has a hierarchical algorithm, that algorithm has the next index.
var sharedAlgorithm = [families]uint8{
	FamilyBarrier: barrierByShared, FamilyBcast: bcastByShared, FamilyReduce: reduceByShared, FamilyAllreduce: allreduceByShared,
	FamilyGather: gatherByShared, FamilyScatter: scatterByShared, FamilyAllgather: allgatherByShared, FamilyAlltoall: alltoallByShared,
	FamilyReduceScatter: reduceScatterByShared, FamilyScan: scanByShared,
}

func (f Family) infos() []Info {
	switch f {
	case FamilyBarrier:
		return infos(f, barriers)
	case FamilyBcast:
		return infos(f, bcasts)
	case FamilyReduce:
		return infos(f, reduces)
	case FamilyAllreduce:
		return infos(f, allreduces)
	case FamilyGather:
		return infos(f, gathers)
	case FamilyScatter:
		return infos(f, scatters)
	case FamilyAllgather:
		return infos(f, allgathers)
	case FamilyAlltoall:
		return infos(f, alltoalls)
	case FamilyReduceScatter:
		return infos(f, reduceScatters)
	case FamilyScan:
		return infos(f, scans)
	}
	return nil
}

func infos[F any](f Family, table []algorithm[F]) []Info {
	l := make([]Info, len(table))
	for i, a := range table {
		l[i] = Info{Family: f, Name: a.name, Needs: a.needs}
	}
	return l
}
