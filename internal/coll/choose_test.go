package coll

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestChoice pins the default choice at each of its borders.
func TestChoice(t *testing.T) {
	c := DefaultConfig()
	const k, m = 1 << 10, 1 << 20
	type choice func(facts) int
	for _, x := range []struct {
		f    Family
		auto choice
		at   facts
		want string
	}{
		{FamilyBcast, c.autoBcast, facts{size: 2, bytes: 8}, "binomial"},
		{FamilyBcast, c.autoBcast, facts{size: 2, bytes: 8 * m}, "binomial"},
		{FamilyBcast, c.autoBcast, facts{size: 8, bytes: 64 * k}, "knomial"},
		{FamilyBcast, c.autoBcast, facts{size: 8, bytes: 64*k + 1}, "tree"},
		{FamilyBcast, c.autoBcast, facts{size: 8, bytes: 512 * k}, "scatter_ring"},
		{FamilyBcast, c.autoBcast, facts{size: 64, bytes: 512 * k}, "scatter_recursive_doubling"},
		{FamilyBcast, c.autoBcast, facts{size: 63, bytes: 512 * k}, "tree"},
		{FamilyReduce, c.autoReduce, facts{size: 4, bytes: 8 * k}, "binomial"},
		{FamilyReduce, c.autoReduce, facts{size: 9, bytes: 8 * k}, "knomial"},
		{FamilyReduce, c.autoReduce, facts{size: 9, bytes: 9 * k, commutes: true}, "rabenseifner"},
		{FamilyReduce, c.autoReduce, facts{size: 9, bytes: 9 * k}, "pairwise"},
		{FamilyAllreduce, c.autoAllreduce, facts{size: 9, bytes: 16 * k}, "recursive_doubling"},
		{FamilyAllreduce, c.autoAllreduce, facts{size: 9, bytes: 17 * k}, "pairwise"},
		{FamilyAllreduce, c.autoAllreduce, facts{size: 9, bytes: 17 * k, commutes: true}, "rabenseifner"},
		{FamilyAllreduce, c.autoAllreduce, facts{size: 9, bytes: m, commutes: true}, "ring"},
		{FamilyAllreduce, c.autoAllreduce, facts{size: 99, bytes: m, commutes: true}, "rabenseifner"},
		{FamilyGather, c.autoGather, facts{size: 9, bytes: 2 * k, uniform: true}, "binomial"},
		{FamilyGather, c.autoGather, facts{size: 9, bytes: 2*k + 1, uniform: true}, "linear"},
		{FamilyScatter, c.autoScatter, facts{size: 9, bytes: 2 * k, uniform: true}, "binomial"},
		{FamilyScatter, c.autoScatter, facts{size: 9}, "linear"},
		{FamilyAllgather, c.autoAllgather, facts{size: 8, bytes: 64 * k, uniform: true}, "recursive_doubling"},
		{FamilyAllgather, c.autoAllgather, facts{size: 9, bytes: 64 * k, uniform: true}, "bruck"},
		{FamilyAllgather, c.autoAllgather, facts{size: 9, bytes: 65 * k, uniform: true}, "ring"},
		{FamilyAllgather, c.autoAllgather, facts{size: 9, bytes: k}, "linear"},
		{FamilyAllgather, c.autoAllgather, facts{size: 17, bytes: k}, "ring"},
		{FamilyAlltoall, c.autoAlltoall, facts{size: 8, bytes: 256, uniform: true}, "bruck"},
		{FamilyAlltoall, c.autoAlltoall, facts{size: 7, bytes: 256, uniform: true}, "scattered"},
		{FamilyAlltoall, c.autoAlltoall, facts{size: 8, bytes: 32*k + 1, uniform: true}, "pairwise"},
		{FamilyAlltoall, c.autoAlltoall, facts{size: 8}, "scattered"},
		{FamilyReduceScatter, c.autoReduceScatter, facts{size: 5, bytes: 512 * k, commutes: true}, "recursive_halving"},
		{FamilyReduceScatter, c.autoReduceScatter, facts{size: 5, bytes: m, commutes: true}, "pairwise"},
		{FamilyReduceScatter, c.autoReduceScatter, facts{size: 5, bytes: 8 * k}, "reduce_scatterv"},
		{FamilyReduceScatter, c.autoReduceScatter, facts{size: 5, bytes: 9 * k}, "pairwise"},
	} {
		got := x.f.infos()[x.auto(x.at)]
		assert.Equal(t, x.want, got.Name, "%s %+v", x.f, x.at)
		assert.True(t, x.at.meets(got.Needs), "%s %+v", x.f, x.at)
	}
}

// TestChoiceCanDoTheCall: whatever the facts, the algorithm that is chosen can
// do the call.
func TestChoiceCanDoTheCall(t *testing.T) {
	c := DefaultConfig()
	for size := 2; size < 70; size++ {
		for bytes := 0; bytes < 8<<20; bytes = bytes*2 + 1 {
			for flags := range 4 {
				f := facts{size: size, bytes: bytes, commutes: flags&1 != 0, uniform: flags&2 != 0}
				for family, i := range map[Family]int{
					FamilyBcast: c.autoBcast(f), FamilyReduce: c.autoReduce(f), FamilyAllreduce: c.autoAllreduce(f),
					FamilyGather: c.autoGather(f), FamilyScatter: c.autoScatter(f), FamilyAllgather: c.autoAllgather(f),
					FamilyAlltoall: c.autoAlltoall(f), FamilyReduceScatter: c.autoReduceScatter(f),
				} {
					if a := family.infos()[i]; !f.meets(a.Needs) {
						t.Fatalf("%s %+v: %s needs %s", family, f, a.Name, a.Needs)
					}
				}
			}
		}
	}
}

func TestNames(t *testing.T) {
	assert.Equal(t, "commutative operation, power of two of ranks, equal counts", (NeedsCommutative | NeedsPowerOfTwo | NeedsEqualCounts).String())
	assert.Equal(t, "unknown", Family(-1).String())
	assert.Equal(t, "unknown", Kind(0).String())
	assert.Equal(t, "ReduceScatterBlock", KindReduceScatterBlock.String())
}
