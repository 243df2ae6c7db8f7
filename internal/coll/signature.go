package coll

// Kind is a collective call.
type Kind int

// The calls.
const (
	KindBarrier Kind = iota + 1
	KindBcast
	KindReduce
	KindAllreduce
	KindGather
	KindGatherv
	KindScatter
	KindScatterv
	KindAllgather
	KindAllgatherv
	KindAlltoall
	KindAlltoallv
	KindReduceScatterBlock
	KindReduceScatter
	KindScan
	KindExscan
)

var kindNames = [...]string{
	KindBarrier: "Barrier", KindBcast: "Bcast", KindReduce: "Reduce", KindAllreduce: "Allreduce",
	KindGather: "Gather", KindGatherv: "Gatherv", KindScatter: "Scatter", KindScatterv: "Scatterv",
	KindAllgather: "Allgather", KindAllgatherv: "Allgatherv", KindAlltoall: "Alltoall", KindAlltoallv: "Alltoallv",
	KindReduceScatterBlock: "ReduceScatterBlock", KindReduceScatter: "ReduceScatter", KindScan: "Scan", KindExscan: "Exscan",
}

// String is the call's name.
func (k Kind) String() string {
	if k < KindBarrier || int(k) >= len(kindNames) {
		return "unknown"
	}
	return kindNames[k]
}

var kindFamilies = [...]Family{
	KindBarrier: FamilyBarrier, KindBcast: FamilyBcast, KindReduce: FamilyReduce, KindAllreduce: FamilyAllreduce,
	KindGather: FamilyGather, KindGatherv: FamilyGather, KindScatter: FamilyScatter, KindScatterv: FamilyScatter,
	KindAllgather: FamilyAllgather, KindAllgatherv: FamilyAllgather, KindAlltoall: FamilyAlltoall, KindAlltoallv: FamilyAlltoall,
	KindReduceScatterBlock: FamilyReduceScatter, KindReduceScatter: FamilyReduceScatter, KindScan: FamilyScan, KindExscan: FamilyScan,
}

// family is that of a call.
func (k Kind) family() Family { return kindFamilies[k] }

// agree says which arguments of a call are the same on all ranks.
type agree uint8

const (
	agreeRoot agree = 1 << iota
	agreeCount
	agreeElem
	agreeOp
)

var agreed = [...]agree{
	KindBarrier:            0,
	KindBcast:              agreeRoot | agreeCount | agreeElem,
	KindReduce:             agreeRoot | agreeCount | agreeElem | agreeOp,
	KindAllreduce:          agreeCount | agreeElem | agreeOp,
	KindGather:             agreeRoot | agreeCount | agreeElem,
	KindGatherv:            agreeRoot | agreeElem,
	KindScatter:            agreeRoot | agreeCount | agreeElem,
	KindScatterv:           agreeRoot | agreeElem,
	KindAllgather:          agreeCount | agreeElem,
	KindAllgatherv:         agreeCount | agreeElem,
	KindAlltoall:           agreeCount | agreeElem,
	KindAlltoallv:          agreeElem,
	KindReduceScatterBlock: agreeCount | agreeElem | agreeOp,
	KindReduceScatter:      agreeCount | agreeElem | agreeOp,
	KindScan:               agreeCount | agreeElem | agreeOp,
	KindExscan:             agreeCount | agreeElem | agreeOp,
}

// Signature is a fingerprint of a call, to stand in the header of each of its
// messages, so that ranks that call different things get an error instead of
// waiting for ever. Two calls that differ have the same one with a probability
// of 2^-16; equal calls always do. It is never 0.
//
// count is the elements per rank: of the vector, or of one block (Gather,
// Scatter, Allgather, Alltoall, ReduceScatterBlock); for Allgatherv and
// ReduceScatter it is their Fold. elem is the size of an element, opID any
// number that stands for the operation on all ranks. What ranks need not agree
// on is left out: the count of Gatherv, Scatterv and Alltoallv, the root of
// calls without one, everything of Barrier.
func Signature(op Kind, root int, count, elem int, opID int) uint16 {
	var a agree
	if op > 0 && int(op) < len(agreed) {
		a = agreed[op]
	}
	h := mix(0x77656674, uint64(op))
	if a&agreeRoot != 0 {
		h = mix(h, uint64(root)+1)
	}
	if a&agreeCount != 0 {
		h = mix(h, uint64(count)+1)
	}
	if a&agreeElem != 0 {
		h = mix(h, uint64(elem)+1)
	}
	if a&agreeOp != 0 {
		h = mix(h, uint64(opID)+1)
	}
	s := uint16(h >> 48)
	if s == 0 {
		s = 1
	}
	return s
}

// Fold is a number that stands for the counts of all ranks where a call needs
// them to agree on each: in shared memory nobody else would notice.
//
// Hot path: no allocation.
func Fold(counts []int) int {
	h := uint64(len(counts))
	for _, n := range counts {
		h = mix(h, uint64(n))
	}
	return int(h)
}

// mix is one round of a multiplicative hash whose high bits depend on all of v.
func mix(h, v uint64) uint64 {
	h = (h ^ v) * 0x9e3779b97f4a7c15
	return (h ^ h>>32) * 0xd6e8feb86659fd93
}
