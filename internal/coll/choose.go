package coll

import (
	"math"
	"sort"
)

// Auto is the name that stands for the automatic choice of an algorithm: by the length of the data,
// the number of ranks, the hosts and the operation.
const Auto = "auto"

// Family is a set of calls that share a table of algorithms and the parameter that forces one.
type Family int

// The families. A family includes the v-form of its call, for example FamilyGather includes Gatherv.
// FamilyReduceScatter also includes ReduceScatterBlock, and FamilyScan includes Exscan.
const (
	FamilyBarrier Family = iota
	FamilyBcast
	FamilyReduce
	FamilyAllreduce
	FamilyGather
	FamilyScatter
	FamilyAllgather
	FamilyAlltoall
	FamilyReduceScatter
	FamilyScan
)

const families = int(FamilyScan) + 1

var familyNames = [families]string{
	FamilyBarrier: "barrier", FamilyBcast: "bcast", FamilyReduce: "reduce", FamilyAllreduce: "allreduce",
	FamilyGather: "gather", FamilyScatter: "scatter", FamilyAllgather: "allgather", FamilyAlltoall: "alltoall",
	FamilyReduceScatter: "reduce_scatter", FamilyScan: "scan",
}

// Families returns all families.
func Families() []Family {
	fs := make([]Family, families)
	for i := range fs {
		fs[i] = Family(i)
	}
	return fs
}

// String returns the family's name in parameters, for example "reduce_scatter", or "unknown".
func (f Family) String() string {
	if f < 0 || int(f) >= families {
		return "unknown"
	}
	return familyNames[f]
}

// Key returns the name of the parameter that forces the family's algorithm, for example
// "coll.bcast.algorithm".
func (f Family) Key() string { return "coll." + f.String() + ".algorithm" }

// Needs is a bit set of conditions. An algorithm can run a call only if the call meets all conditions
// in the algorithm's Needs.
type Needs uint8

// The conditions.
const (
	NeedsCommutative Needs = 1 << iota // the operation commutes
	NeedsPowerOfTwo                    // the number of ranks is a power of two
	// The call has blocks of one length; the v-forms and ReduceScatter never meet this.
	NeedsEqualCounts
	// All ranks share memory. An element has at most Host.maxElem bytes, and the data at most
	// Host.maxBytes bytes.
	NeedsSharedMemory
	// The ranks are on several hosts, and those of each host share memory. The limits of
	// NeedsSharedMemory hold too.
	NeedsHosts
	NeedsAdjacent // the ranks of each host are consecutive, or the operation commutes
)

// Info describes an algorithm.
type Info struct {
	Family Family
	Name   string
	Needs  Needs
}

// Algorithms returns all algorithms: the families in their order, each with the algorithms in the
// order of its table.
func Algorithms() []Info {
	var all []Info
	for _, f := range Families() {
		all = append(all, f.infos()...)
	}
	return all
}

func (f Family) names() []string {
	var names []string
	for _, i := range f.infos() {
		names = append(names, i.Name)
	}
	return names
}

// algorithm is an entry of a family's table of algorithms. F is the type of the functions that run
// the calls of the family.
type algorithm[F any] struct {
	name  string
	needs Needs
	run   F
}

// facts are the inputs of a choice of algorithm. A choice reads only those parts of them that are
// equal on all ranks, so all ranks choose the same algorithm.
type facts struct {
	size int // number of ranks

	// bytes is the length of the vector, of one block (gather, scatter, alltoall) or of all blocks
	// (allgather, reduce-scatter). It is 0 for Barrier, and for the calls in which only some ranks
	// know the lengths (Gatherv, Scatterv, Alltoallv).
	bytes int

	elem     int  // bytes of an element; 0: the call combines nothing
	commutes bool // the call combines elements, and its operation commutes
	uniform  bool // the call is on blocks of equal length

	host   *Host // the shared memory that the call may use; nil: the call uses messages only
	picked int   // what Pick has returned for this call; Unpicked: nothing has called Pick
}

// on returns f with the facts that depend on link l: size, host and picked.
func (f facts) on(l Link) facts {
	f.size, f.picked = l.Size(), Unpicked
	if hl, ok := l.(HostLink); ok {
		if h, picked := hl.Host(); h != nil {
			f.host, f.picked = h, picked
		}
	}
	return f
}

func (f facts) meets(n Needs) bool {
	return (n&NeedsCommutative == 0 || f.commutes) &&
		(n&NeedsPowerOfTwo == 0 || isPow2(f.size)) &&
		(n&NeedsEqualCounts == 0 || f.uniform) &&
		(n&(NeedsSharedMemory|NeedsHosts) == 0 || f.meetsHosts(n))
}

func (f facts) meetsHosts(n Needs) bool {
	h := f.host
	return h != nil && f.elem <= h.maxElem && f.bytes <= h.maxBytes &&
		(n&NeedsSharedMemory != 0) == (h.Hosts() == 1) &&
		(n&NeedsAdjacent == 0 || h.adjacent || f.commutes)
}

// choose returns the function that runs a call with facts f: that of the algorithm that Pick has
// picked for the call, or else the one that [Config.pick] picks now. If the pick is byAuto, choose
// returns the function of the message algorithm with the index auto in the table.
func choose[F any](c *Config, fam Family, table []algorithm[F], f facts, auto int) F {
	k := f.picked
	if k == Unpicked {
		k = c.pick(fam, f)
	}
	if k == byAuto {
		k = auto
	}
	return table[k].run
}

// Values that stand in place of the index of an algorithm.
const (
	Unpicked = -2 // nothing has called Pick for this call
	byAuto   = -1 // the message algorithm that the method auto… of the family chooses, for example autoBcast
)

// pick returns the index of the family's forced algorithm, if there is one and the call meets its
// needs. Otherwise pick returns what autoHost chooses, or byAuto if the call uses messages only.
func (c *Config) pick(fam Family, f facts) int {
	if k := c.forced[fam]; k.index > 0 && f.meets(k.needs) {
		return int(k.index) - 1
	}
	if f.host != nil {
		return c.autoHost(fam, f)
	}
	return byAuto
}

// Pick chooses the algorithm of a collective on a communicator with Host h. picked stands for the
// algorithm (see [HostLink]). uses reports whether the algorithm uses shared memory: memory that all
// ranks share, or, if it is the hierarchical one, memory that the ranks of each host share. If uses
// is true, the caller runs the collective over a HostLink whose method Host returns h and picked. If
// uses is false, any Link will do.
//
// count is the number of bytes: of the vector (Bcast, Reduce, Allreduce, Scan, Exscan), of one
// block (Gather, Scatter, Allgather, Alltoall, ReduceScatterBlock) or of all blocks (Allgatherv,
// ReduceScatter). For other calls it is 0. op may be zero if the call combines nothing. All ranks
// get the same results.
//
// Hot path: no allocation.
func Pick(cfg *Config, h *Host, k Kind, count int, op Op) (picked int, uses bool) {
	cfg = orDefault(cfg)
	f := facts{size: len(h.of), bytes: count, elem: op.Size, commutes: op.Commutes, host: h}
	fam := k.family()
	switch k {
	case KindAllgather, KindReduceScatterBlock:
		f.bytes, f.uniform = count*f.size, true
	case KindGather, KindScatter, KindAlltoall:
		f.uniform = true
	default:
	}
	picked = cfg.pick(fam, f)
	return picked, picked >= int(sharedAlgorithm[fam])
}

func (c *Config) autoBcast(f facts) int {
	switch {
	case f.size == 2 || f.bytes <= c.BcastTreeBytes:
		if f.size >= c.KnomialRanks {
			return bcastByKnomial
		}
		return bcastByBinomial
	case f.bytes < c.BcastScatterBytes:
		return bcastByTree
	case f.bytes/f.size >= c.BcastBlockBytes:
		return bcastByScatterRing
	case isPow2(f.size):
		return bcastByScatterDoubling
	}
	return bcastByTree
}

func (c *Config) autoReduce(f facts) int {
	switch {
	case f.bytes <= c.ReduceTreeBytes && f.size >= c.KnomialRanks:
		return reduceByKnomial
	case f.bytes <= c.ReduceTreeBytes, f.size == 2:
		return reduceByBinomial
	case f.commutes:
		return reduceByRabenseifner
	}
	return reduceByPairwise
}

func (c *Config) autoAllreduce(f facts) int {
	switch {
	case f.bytes <= c.AllreduceDoublingBytes:
		return allreduceByDoubling
	case !f.commutes:
		return allreduceByPairwise
	case f.bytes >= c.AllreduceRingBytes && f.bytes/f.size >= c.AllreduceBlockBytes:
		return allreduceByRing
	}
	return allreduceByRabenseifner
}

func (c *Config) autoGather(f facts) int {
	if f.uniform && f.bytes <= c.GatherBinomialBytes {
		return gatherByBinomial
	}
	return gatherByLinear
}

func (c *Config) autoScatter(f facts) int {
	if f.uniform && f.bytes <= c.GatherBinomialBytes {
		return scatterByBinomial
	}
	return scatterByLinear
}

func (c *Config) autoAllgather(f facts) int {
	switch {
	case f.bytes > c.AllgatherSmallBytes, f.size == 2:
		return allgatherByRing
	case !f.uniform && f.size <= c.AllgatherLinearSize:
		return allgatherByLinear
	case !f.uniform:
		return allgatherByRing
	case isPow2(f.size):
		return allgatherByDoubling
	}
	return allgatherByBruck
}

func (c *Config) autoAlltoall(f facts) int {
	switch {
	case !f.uniform:
		return alltoallByScattered
	case f.bytes <= c.AlltoallBruckBytes && f.size >= c.AlltoallBruckRanks:
		return alltoallByBruck
	case f.bytes <= c.AlltoallScatterBytes:
		return alltoallByScattered
	}
	return alltoallByPairwise
}

func (c *Config) autoReduceScatter(f facts) int {
	switch {
	case f.commutes && f.bytes <= c.ReduceScatterHalvingBytes:
		return reduceScatterByHalving
	case !f.commutes && f.bytes <= c.ReduceScatterTreeBytes:
		return reduceScatterByReduce
	}
	return reduceScatterByPairwise
}

// SharedUpTo returns the largest count in bytes, up to [math.MaxInt32], for which [Pick] chooses
// the algorithm in memory that all ranks share, or -1 if there is no such count. The result is
// valid for elements of at most 64 bytes and any operation. For calls that [Host.Enter] does not
// list, SharedUpTo returns -1.
func SharedUpTo(cfg *Config, h *Host, k Kind) int {
	switch k {
	case KindBarrier, KindBcast, KindReduce, KindAllreduce, KindAllgather, KindAlltoall:
	default:
		return -1
	}
	cfg = orDefault(cfg)
	// uses reports whether Pick chooses shared memory for every operation. A forced algorithm may
	// serve only operations that commute; then Pick chooses differently for the others.
	uses := func(count int) bool {
		picked, _ := Pick(cfg, h, k, count, Op{})
		commuting, _ := Pick(cfg, h, k, count, Op{Commutes: true})
		return picked == commuting && picked == int(sharedAlgorithm[k.family()])
	}
	// All counts up to the result use shared memory, and all larger ones do not, so a binary search
	// finds the result.
	if !uses(0) {
		return -1
	}
	return sort.Search(math.MaxInt32, func(count int) bool { return !uses(count + 1) })
}

// autoHost returns the index of the algorithm in memory that all ranks share or, if there are
// several hosts, of the hierarchical algorithm. It returns byAuto if the thresholds of c choose
// messages, or if the call does not meet the needs of that algorithm.
func (c *Config) autoHost(fam Family, f facts) int {
	if f.host.Hosts() == 1 {
		if f.elem <= f.host.maxElem && f.bytes <= f.host.maxBytes && c.shares(fam, f) {
			return int(sharedAlgorithm[fam])
		}
		return byAuto
	}
	var needs Needs
	switch fam {
	case FamilyBarrier:
	case FamilyBcast:
		if f.bytes > c.HostsTotalBytes {
			return byAuto
		}
	case FamilyReduce, FamilyAllreduce:
		needs = NeedsAdjacent
	case FamilyGather, FamilyScatter, FamilyAllgather:
		if fam != FamilyAllgather {
			f.bytes *= f.size
		}
		if f.bytes > c.HostsTotalBytes {
			return byAuto
		}
		needs = NeedsAdjacent | NeedsEqualCounts
	default:
		return byAuto
	}
	if !f.meets(needs | NeedsHosts) {
		return byAuto
	}
	return int(sharedAlgorithm[fam]) + 1
}

// shares reports whether the thresholds of c choose shared memory, rather than messages, for a call
// whose ranks are all on one host.
func (c *Config) shares(fam Family, f facts) bool {
	most := c.SharedBlockBytes
	if f.size == 2 {
		most = c.SharedPairBytes
	}
	switch fam {
	case FamilyBarrier:
		return true
	case FamilyBcast:
		return f.size > 2 || f.bytes <= most
	case FamilyReduce:
		return f.size <= c.SharedRanks && (f.size > 2 || f.bytes <= most)
	case FamilyAllreduce, FamilyReduceScatter, FamilyScan:
		return f.size <= c.SharedRanks
	case FamilyAllgather:
		if f.size > 2 {
			return f.size <= c.SharedRanks
		}
		f.bytes /= f.size
	case FamilyAlltoall:
		if f.size > 2 {
			most = c.SharedPairsBytes / f.size
		}
	default:
	}
	return f.size <= c.SharedRanks && f.bytes <= most
}
