package comm

import (
	"github.com/weft-hpc/weft/internal/mpi"
)

// Group is an ordered set of processes: the rank of each is its place in the
// order. Groups are values and never change; the zero Group is empty
// (MPI_GROUP_EMPTY). All calls are local, do not block and may run at once
// (MPI 4.1 §7.3).
type Group mpi.Group

// Comparison is how two groups relate.
type Comparison int

// The results of a comparison.
const (
	Ident   Comparison = iota // the same processes in the same order (MPI_IDENT)
	Similar                   // the same processes in another order (MPI_SIMILAR)
	Unequal                   // other processes (MPI_UNEQUAL)
)

// Size is the number of processes (MPI_Group_size).
func (g Group) Size() int { return mpi.Group(g).Size() }

// Rank is the calling process's rank in the group; Undefined if it is not in
// it (MPI_Group_rank).
func (g Group) Rank() int { return mpi.Group(g).Rank() }

// Union is all of g in its order, then what only h has in h's order
// (MPI_Group_union).
func (g Group) Union(h Group) Group { return Group(mpi.Group(g).Union(mpi.Group(h))) }

// Intersection is what both have, in g's order (MPI_Group_intersection).
func (g Group) Intersection(h Group) Group { return Group(mpi.Group(g).Intersection(mpi.Group(h))) }

// Difference is what g has and h has not, in g's order (MPI_Group_difference).
func (g Group) Difference(h Group) Group { return Group(mpi.Group(g).Difference(mpi.Group(h))) }

// Incl is the group of the given ranks of g, in the order given
// (MPI_Group_incl). A rank out of range or named twice is ErrRank.
func (g Group) Incl(ranks ...int) (Group, error) {
	h, err := mpi.Group(g).Incl(ranks...)
	return Group(h), err
}

// Excl is g without the given ranks, in g's order (MPI_Group_excl). A rank out
// of range or named twice is ErrRank.
func (g Group) Excl(ranks ...int) (Group, error) {
	h, err := mpi.Group(g).Excl(ranks...)
	return Group(h), err
}

// RangeIncl is Incl of the ranks that the ranges name (MPI_Group_range_incl).
// A stride of 0 is ErrArg.
func (g Group) RangeIncl(ranges ...Range) (Group, error) {
	h, err := mpi.Group(g).RangeIncl(cast[mpi.Range](ranges)...)
	return Group(h), err
}

// RangeExcl is Excl of the ranks that the ranges name (MPI_Group_range_excl).
// A stride of 0 is ErrArg.
func (g Group) RangeExcl(ranges ...Range) (Group, error) {
	h, err := mpi.Group(g).RangeExcl(cast[mpi.Range](ranges)...)
	return Group(h), err
}

// Translate returns for each of the given ranks of g the same process's rank
// in h: Undefined where h has it not, ProcNull for ProcNull
// (MPI_Group_translate_ranks). A rank out of range is ErrRank.
func (g Group) Translate(ranks []int, h Group) ([]int, error) {
	return mpi.Group(g).Translate(ranks, mpi.Group(h))
}

// Compare says how g and h relate (MPI_Group_compare).
func (g Group) Compare(h Group) Comparison { return Comparison(mpi.Group(g).Compare(mpi.Group(h))) }

// String names the comparison.
func (k Comparison) String() string { return mpi.Comparison(k).String() }

// Range names the ranks First, First+Stride, … up to Last, which may be left
// out by the stride. A negative stride counts down; a stride of 0 is an error.
type Range struct{ First, Last, Stride int }
