package coll

// The tables of algorithms, one per family. The names are the values of the coll.*.algorithm
// parameters. internal/params lists them too, and a test compares the two lists. The comment of an
// entry says what the algorithm does. For an algorithm that uses messages only, it also says, after
// "Auto:", for which calls [Auto] chooses it; [Config] has the thresholds. Config.autoHost and
// Config.shares decide when Auto chooses an algorithm that uses shared memory.

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
	// Messages to the rank at distance 1, 2, 4, …, in log P rounds. Auto: every Barrier.
	barrierByDissemination: {"dissemination", 0, barrierDissemination},
	// Up a binomial tree and down again, with the fewest messages. Only for SparseBarrier, or if
	// forced.
	barrierByTree: {"tree", 0, barrierTree},
	// Every rank reads the arrivals of all others.
	barrierByShared: {"shared", NeedsSharedMemory, barrierShared},
	// In shared memory within hosts, by messages between them.
	barrierByHosts: {"hierarchical", NeedsHosts, nil},
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
	// Binomial tree. Auto: small messages and few ranks, or two ranks.
	bcastByBinomial: {"binomial", 0, bcastBinomial},
	// k-nomial tree, flatter than the binomial one. Auto: small messages and many ranks.
	bcastByKnomial: {"knomial", 0, bcastKnomialRadix},
	// Pipelined chain, for large messages and few ranks. Only if forced.
	bcastByChain: {"chain", 0, bcastChain},
	// Pipelined binary tree. Auto: medium messages, and large ones if each rank's part is small and
	// the number of ranks is not a power of two.
	bcastByTree: {"tree", 0, bcastTree},
	// Scatter, then allgather in log P rounds. Auto: large messages if each rank's part is small, and
	// the number of ranks is a power of two.
	bcastByScatterDoubling: {"scatter_recursive_doubling", NeedsPowerOfTwo, bcastScatterDoubling},
	// Scatter, then allgather around a ring. Auto: large messages if each rank's part is large.
	bcastByScatterRing: {"scatter_ring", 0, bcastScatterRing},
	// One writer and many readers, segment by segment.
	bcastByShared: {"shared", NeedsSharedMemory, bcastShared},
	// In shared memory within hosts, by messages between them.
	bcastByHosts: {"hierarchical", NeedsHosts, nil},
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
	// Binomial tree. Auto: small messages and few ranks, or two ranks.
	reduceByBinomial: {"binomial", 0, reduceBinomial},
	// k-nomial tree, flatter than the binomial one. Auto: small messages and many ranks.
	reduceByKnomial: {"knomial", 0, reduceKnomialRadix},
	// Reduce-scatter, then gather. Auto: large messages, operations that commute.
	reduceByRabenseifner: {"rabenseifner", NeedsCommutative, reduceRabenseifner},
	// Pairwise reduce-scatter, then gather. Auto: large messages, operations that do not commute.
	reduceByPairwise: {"pairwise", 0, reducePairwise},
	// The root reads and combines all operands. If the vectors are long, every rank combines a slice.
	reduceByShared: {"shared", NeedsSharedMemory, reduceShared},
	// In shared memory within hosts, by messages between them.
	reduceByHosts: {"hierarchical", NeedsHosts | NeedsAdjacent, nil},
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
	// Every rank combines all operands in log P rounds. Auto: small messages.
	allreduceByDoubling: {"recursive_doubling", 0, allreduceDoubling},
	// Reduce-scatter, then allgather, in log P rounds each. Auto: medium messages, and large ones if
	// each rank's part is small; operations that commute.
	allreduceByRabenseifner: {"rabenseifner", NeedsCommutative, allreduceRabenseifner},
	// Segments travel twice around a ring. Auto: large messages if each rank's part is large;
	// operations that commute.
	allreduceByRing: {"ring", NeedsCommutative, allreduceRing},
	// Pairwise reduce-scatter, then ring allgather. Auto: medium and large messages, operations that
	// do not commute.
	allreduceByPairwise: {"pairwise", 0, allreducePairwise},
	// Every rank reads and combines all operands or, if the vectors are long, one slice.
	allreduceByShared: {"shared", NeedsSharedMemory, allreduceShared},
	// In shared memory within hosts, by messages between them.
	allreduceByHosts: {"hierarchical", NeedsHosts | NeedsAdjacent, nil},
}

const (
	gatherByBinomial = iota
	gatherByLinear
	gatherByShared
	gatherByHosts
)

var gathers = []algorithm[rootedFunc]{
	// Up a binomial tree. Auto: small blocks.
	gatherByBinomial: {"binomial", NeedsEqualCounts, gatherBinomial},
	// Every rank sends to the root. Auto: large or unequal blocks.
	gatherByLinear: {"linear", 0, gatherLinear},
	// The root reads all blocks.
	gatherByShared: {"shared", NeedsSharedMemory, gatherShared},
	// In shared memory within hosts, by messages between them.
	gatherByHosts: {"hierarchical", NeedsHosts | NeedsAdjacent | NeedsEqualCounts, nil},
}

const (
	scatterByBinomial = iota
	scatterByLinear
	scatterByShared
	scatterByHosts
)

var scatters = []algorithm[rootedFunc]{
	// Down a binomial tree. Auto: small blocks.
	scatterByBinomial: {"binomial", NeedsEqualCounts, scatterBinomial},
	// The root sends to every rank. Auto: large or unequal blocks.
	scatterByLinear: {"linear", 0, scatterLinear},
	// Every rank reads its block.
	scatterByShared: {"shared", NeedsSharedMemory, scatterShared},
	// In shared memory within hosts, by messages between them.
	scatterByHosts: {"hierarchical", NeedsHosts | NeedsAdjacent | NeedsEqualCounts, nil},
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
	// Exchanges at distance 1, 2, 4 and so on. Auto: small totals of equal counts, if the number of
	// ranks is a power of two.
	allgatherByDoubling: {"recursive_doubling", NeedsPowerOfTwo | NeedsEqualCounts, allgatherDoubling},
	// log P rounds for any number of ranks. Auto: small totals of equal counts, if the number of ranks
	// is not a power of two.
	allgatherByBruck: {"bruck", NeedsEqualCounts, allgatherBruck},
	// From neighbour to neighbour. Auto: large totals, two ranks, or unequal counts of many ranks.
	allgatherByRing: {"ring", 0, allgatherRing},
	// Every rank sends to every other. Auto: small totals of unequal counts, few ranks.
	allgatherByLinear: {"linear", 0, allgatherLinear},
	// Every rank reads all blocks.
	allgatherByShared: {"shared", NeedsSharedMemory, allgatherShared},
	// In shared memory within hosts, by messages between them.
	allgatherByHosts: {"hierarchical", NeedsHosts | NeedsAdjacent | NeedsEqualCounts, nil},
}

const (
	alltoallByBruck = iota
	alltoallByPairwise
	alltoallByScattered
	alltoallByShared
)

var alltoalls = []algorithm[alltoallFunc]{
	// log P rounds of combined messages. Auto: tiny blocks, many ranks.
	alltoallByBruck: {"bruck", NeedsEqualCounts, alltoallBruck},
	// One partner at a time. Auto: large blocks.
	alltoallByPairwise: {"pairwise", 0, alltoallPairwise},
	// Many transfers at once. Auto: unequal or medium blocks, and tiny ones of few ranks.
	alltoallByScattered: {"scattered", 0, alltoallScattered},
	// Every rank reads its blocks.
	alltoallByShared: {"shared", NeedsSharedMemory, alltoallShared},
}

const (
	reduceScatterByHalving = iota
	reduceScatterByPairwise
	reduceScatterByReduce
	reduceScatterByShared
)

var reduceScatters = []algorithm[reduceScatterFunc]{
	// Exchanges of halves in log P rounds. Auto: small and medium totals, operations that commute.
	reduceScatterByHalving: {"recursive_halving", NeedsCommutative, reduceScatterHalving},
	// Each rank combines its own block of all operands. Auto: large totals.
	reduceScatterByPairwise: {"pairwise", 0, reduceScatterPairwise},
	// Reduce to rank 0, then scatterv. Auto: small totals, operations that do not commute.
	reduceScatterByReduce: {"reduce_scatterv", 0, reduceScatterReduce},
	// Every rank combines its own block of all operands.
	reduceScatterByShared: {"shared", NeedsSharedMemory, reduceScatterShared},
}

const (
	scanByDoubling = iota
	scanByShared
)

var scans = []algorithm[scanFunc]{
	// Prefixes of 1, 2, 4, … ranks, in log P rounds. Auto: every Scan and Exscan.
	scanByDoubling: {"recursive_doubling", 0, scanDoubling},
	// Every rank combines the operands of lower ranks and, in Scan, its own.
	scanByShared: {"shared", NeedsSharedMemory, scanShared},
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
