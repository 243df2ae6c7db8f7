package coll

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestChoice pins the default choice of message algorithms on both sides of each threshold.
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
		{FamilyReduce, c.autoReduce, facts{size: 2, bytes: 9 * k, commutes: true}, "binomial"},
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

// TestChoiceCanDoTheCall checks that a call meets the needs of the algorithm that the default
// choice returns for it.
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
						t.Fatalf("%s %+v does not meet the needs of %s", family, f, a.Name)
					}
				}
			}
		}
	}
}

func TestNames(t *testing.T) {
	assert.Equal(t, "unknown", Family(-1).String())
	assert.Equal(t, "unknown", Kind(0).String())
	assert.Equal(t, "ReduceScatterBlock", KindReduceScatterBlock.String())
}

// hostWith returns the Host of rank 0 of a communicator. lowest holds, by rank, the lowest rank
// with which the rank shares memory.
func hostWith(t *testing.T, lowest ...int) *Host {
	shape := NewShape(lowest)
	var arenas [][]byte
	size := 0 // number of ranks of rank 0's host
	for _, low := range lowest {
		if low == 0 {
			size++
		}
	}
	for range size {
		arenas = append(arenas, make([]byte, ArenaBytes(64<<10, size)))
	}
	h, err := NewHost(shape, 0, arenas, 64<<10)
	assert.NoError(t, err)
	return h
}

// TestChoiceOnOneHost checks that OneHost replaces the pairwise alltoall by the scattered one.
func TestChoiceOnOneHost(t *testing.T) {
	f := facts{size: 8, bytes: 1 << 20, uniform: true}
	c := DefaultConfig()
	assert.Equal(t, alltoallByPairwise, c.autoAlltoall(f))
	c.OneHost()
	assert.Equal(t, alltoallByScattered, c.autoAlltoall(f))
}

// TestChoiceOnHosts pins for which calls Pick chooses shared memory, a hierarchical algorithm or
// (Auto) messages, on both sides of each threshold.
func TestChoiceOnHosts(t *testing.T) {
	two, four := hostWith(t, 0, 0), hostWith(t, 0, 0, 0, 0)
	hosts, cyclic, many := hostWith(t, 0, 0, 2, 2), hostWith(t, 0, 1, 0, 1), hostWith(t, make([]int, 65)...)
	const k, m = 1 << 10, 1 << 20
	sum, own := Op{Size: 8, Commutes: true}, Op{Size: 8}
	for _, x := range []struct {
		h     *Host
		kind  Kind
		count int
		op    Op
		want  string
	}{
		{two, KindBarrier, 0, Op{}, "shared"},
		{two, KindBcast, 32 * k, Op{}, "shared"},
		{two, KindBcast, 32*k + 1, Op{}, Auto},
		{four, KindBcast, 99 * m, Op{}, "shared"},
		{two, KindReduce, 32 * k, sum, "shared"},
		{two, KindReduce, 32*k + 1, sum, Auto},
		{two, KindAllreduce, 99 * m, own, "shared"},
		{two, KindAllreduce, 99 << 30, own, Auto},      // more bytes than Host.maxBytes
		{two, KindAllreduce, 8, Op{Size: 9 * k}, Auto}, // an element of more bytes than Host.maxElem
		{two, KindAllgather, 32 * k, Op{}, "shared"},
		{two, KindAllgather, 32*k + 1, Op{}, Auto},
		{two, KindAllgatherv, 64*k + 2, Op{}, Auto},
		{four, KindAllgather, 99 * m, Op{}, "shared"},
		{four, KindGather, 512 * k, Op{}, "shared"},
		{four, KindGather, 512*k + 1, Op{}, Auto},
		{four, KindAlltoall, 2 * m, Op{}, "shared"},
		{four, KindAlltoall, 2*m + 1, Op{}, Auto},
		{four, KindAlltoallv, 0, Op{}, "shared"},
		{four, KindGatherv, 0, Op{}, "shared"},
		{four, KindReduceScatterBlock, 99 * m, own, "shared"},
		{four, KindExscan, 99 * m, own, "shared"},
		{many, KindBarrier, 0, Op{}, "shared"},
		{many, KindBcast, 8, Op{}, "shared"},
		{many, KindAllreduce, 8, sum, Auto},
		{hosts, KindBarrier, 0, Op{}, "hierarchical"},
		{hosts, KindBcast, 256 * k, Op{}, "hierarchical"},
		{hosts, KindBcast, 256*k + 1, Op{}, Auto},
		{hosts, KindAllreduce, 99 * m, own, "hierarchical"},
		{cyclic, KindAllreduce, 8, own, Auto},
		{cyclic, KindAllreduce, 8, sum, "hierarchical"},
		{cyclic, KindBcast, 8, Op{}, "hierarchical"},
		{hosts, KindAllgather, 64 * k, Op{}, "hierarchical"},
		{hosts, KindAllgather, 64*k + 1, Op{}, Auto},
		{hosts, KindAllgatherv, 8, Op{}, Auto},
		{cyclic, KindGather, 8, Op{}, Auto},
		{hosts, KindScatter, 64 * k, Op{}, "hierarchical"},
		{hosts, KindAlltoall, 8, Op{}, Auto},
	} {
		picked, uses := Pick(nil, x.h, x.kind, x.count, x.op)
		got := Auto
		if picked >= 0 {
			got = x.kind.family().infos()[picked].Name
		}
		assert.Equal(t, x.want, got, "%v of %d bytes", x.kind, x.count)
		assert.Equal(t, x.want != Auto, uses, "%v of %d bytes", x.kind, x.count)
		if up := SharedUpTo(nil, x.h, x.kind); up >= 0 && x.op.Size <= 64 {
			assert.Equal(t, x.want == "shared", x.count <= up, "%v of %d bytes", x.kind, x.count)
		}
	}
}

// TestSharedUpTo checks, for some counts and every forced algorithm, that Pick chooses shared
// memory for calls up to the count that SharedUpTo returns, also if the operation does not commute.
// A rank that already has the arena decides by the result of SharedUpTo, and a rank that has just
// created it decides by Pick; both must decide alike.
func TestSharedUpTo(t *testing.T) {
	h := hostWith(t, 0, 0, 0, 0, 0, 0, 0)
	for _, a := range Algorithms() {
		cfg := DefaultConfig()
		assert.NoError(t, cfg.Force(a.Family, a.Name))
		for k := KindBarrier; k <= KindExscan; k++ {
			up := SharedUpTo(cfg, h, k)
			for _, count := range []int{0, 8, 1 << 10, 1 << 20} {
				for _, op := range []Op{{Size: 8}, {Size: 8, Commutes: true}} {
					if picked, _ := Pick(cfg, h, k, count, op); count <= up {
						assert.Equal(t, int(sharedAlgorithm[k.family()]), picked, "%s %s: %v of %d bytes, %v", a.Family, a.Name, k, count, op.Commutes)
					}
				}
			}
		}
	}
}

// TestShape checks the hosts that NewShape derives from the lowest ranks.
func TestShape(t *testing.T) {
	s := NewShape([]int{0, 1, 0, 1, 4})
	assert.Equal(t, 3, s.Hosts())
	assert.Equal(t, []int{0, 1, 0, 1, 2}, s.of)
	assert.False(t, s.adjacent)
	s = NewShape([]int{0, 0, 2, 3, 3})
	assert.True(t, s.adjacent)
	assert.Equal(t, 2, s.largest)
}
