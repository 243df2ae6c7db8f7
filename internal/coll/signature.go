package coll

// Kind identifies a collective call.
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

// String returns the call's name.
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

// family returns the family of a call.
func (k Kind) family() Family { return kindFamilies[k] }

// agree is the set of arguments of a call that must be equal on all ranks.
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

// Signature returns a fingerprint of a call, which is never 0. The header of each message of the
// call carries it, so ranks that make different calls get an error instead of a deadlock. Equal
// calls have equal signatures; different calls have equal signatures with a probability of about
// 2^-16.
//
// count is the length per rank: of the vector, or of one block (Gather, Scatter, Allgather,
// Alltoall, ReduceScatterBlock), in the same unit on all ranks. For Allgatherv and ReduceScatter,
// count is the [Fold] of the counts. elem and opID are any numbers that identify the element type
// and the operation on all ranks. The table agreed lists the arguments that the signature of each
// kind of call depends on; it ignores the others.
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

// Fold returns a hash of counts, the counts of all ranks, for calls in which all ranks must pass
// the same counts. If such a call uses shared memory, nothing but its [Signature] detects that two
// ranks pass different counts.
//
// Hot path: no allocation.
func Fold(counts []int) int {
	h := uint64(len(counts))
	for _, n := range counts {
		h = mix(h, uint64(n))
	}
	return int(h)
}

// mix is one round of a multiplicative hash. The high bits of the result depend on all bits of v.
func mix(h, v uint64) uint64 {
	h = (h ^ v) * 0x9e3779b97f4a7c15
	return (h ^ h>>32) * 0xd6e8feb86659fd93
}
