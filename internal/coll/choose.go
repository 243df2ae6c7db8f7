package coll

import "strings"

// Auto is the name that stands for choosing the algorithm by size and ranks.
const Auto = "auto"

// Family is a set of calls that share their algorithms and one parameter.
type Family int

// The families. Gather covers Gatherv and so on; Scan covers Exscan.
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

// Families lists all families.
func Families() []Family {
	fs := make([]Family, families)
	for i := range fs {
		fs[i] = Family(i)
	}
	return fs
}

// String is the family's name in parameters.
func (f Family) String() string {
	if f < 0 || int(f) >= families {
		return "unknown"
	}
	return familyNames[f]
}

// Key is the parameter that forces the family's algorithm.
func (f Family) Key() string { return "coll." + f.String() + ".algorithm" }

// Needs is what a call must be for an algorithm to do it.
type Needs uint8

// The needs.
const (
	NeedsCommutative Needs = 1 << iota // operands may be swapped
	NeedsPowerOfTwo                    // of ranks
	NeedsEqualCounts                   // not for the v-forms
)

// String lists the needs in words; empty for none.
func (n Needs) String() string {
	var s []string
	if n&NeedsCommutative != 0 {
		s = append(s, "commutative operation")
	}
	if n&NeedsPowerOfTwo != 0 {
		s = append(s, "power of two of ranks")
	}
	if n&NeedsEqualCounts != 0 {
		s = append(s, "equal counts")
	}
	return strings.Join(s, ", ")
}

// Info describes an algorithm.
type Info struct {
	Family Family
	Name   string
	Doc    string // one line: what it does and where it is chosen
	Needs  Needs
}

// Algorithms lists all algorithms, by family.
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

// algorithm is a line of a family's table.
type algorithm[F any] struct {
	name  string
	needs Needs
	run   F
	doc   string
}

// facts are what a choice may depend on: only what every rank knows.
type facts struct {
	size     int
	bytes    int // of the vector, the block or the total: see each choice
	commutes bool
	uniform  bool // equal counts
}

func (f facts) meets(n Needs) bool {
	return (n&NeedsCommutative == 0 || f.commutes) &&
		(n&NeedsPowerOfTwo == 0 || isPow2(f.size)) &&
		(n&NeedsEqualCounts == 0 || f.uniform)
}

// choose takes the forced algorithm where it can do the call, else auto.
func choose[F any](c *Config, fam Family, table []algorithm[F], f facts, auto int) F {
	if k := int(c.forced[fam]); k > 0 && f.meets(table[k-1].needs) {
		return table[k-1].run
	}
	return table[auto].run
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
	case f.bytes <= c.ReduceTreeBytes:
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
	case f.bytes > c.AllgatherSmallBytes:
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
