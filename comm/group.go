package comm

import (
	"github.com/weft-hpc/weft/internal/mpi"
)

// Group is an ordered set of processes (MPI_Group, MPI 4.1 §7.3). The rank of a process in a group
// is its position. Groups are values and never change. The zero Group is empty (MPI_GROUP_EMPTY).
// All methods are local, do not block, and may run at the same time.
type Group mpi.Group

// Comparison is the result of [Group.Compare] or [Comm.Compare]. A larger value means a larger
// difference.
type Comparison int

// The results of a comparison.
const (
	Ident     Comparison = iota // the same processes in the same order (MPI_IDENT)
	Congruent                   // only for communicators: other contexts, identical groups (MPI_CONGRUENT)
	Similar                     // the same processes in another order (MPI_SIMILAR)
	Unequal                     // other processes (MPI_UNEQUAL)
)

// Size returns the number of processes (MPI_Group_size).
func (g Group) Size() int { return mpi.Group(g).Size() }

// Rank returns the rank of the calling process in the group (MPI_Group_rank). If the process is not
// in the group, Rank returns Undefined.
func (g Group) Rank() int { return mpi.Group(g).Rank() }

// Union returns the processes of g, followed by those that only h has, in h's order
// (MPI_Group_union).
func (g Group) Union(h Group) Group { return Group(mpi.Group(g).Union(mpi.Group(h))) }

// Intersection returns the processes that both groups have, in g's order (MPI_Group_intersection).
func (g Group) Intersection(h Group) Group { return Group(mpi.Group(g).Intersection(mpi.Group(h))) }

// Difference returns the processes of g that h does not have, in g's order (MPI_Group_difference).
func (g Group) Difference(h Group) Group { return Group(mpi.Group(g).Difference(mpi.Group(h))) }

// Incl returns the group of the given ranks of g, in the given order (MPI_Group_incl). If a rank is
// out of range or is given twice, it returns ErrRank.
func (g Group) Incl(ranks ...int) (Group, error) {
	h, err := mpi.Group(g).Incl(ranks...)
	return Group(h), err
}

// Excl returns g without the given ranks, in g's order (MPI_Group_excl). If a rank is out of range
// or is given twice, it returns ErrRank.
func (g Group) Excl(ranks ...int) (Group, error) {
	h, err := mpi.Group(g).Excl(ranks...)
	return Group(h), err
}

// RangeIncl is [Group.Incl] of all ranks in the ranges (MPI_Group_range_incl). If a stride is 0, it
// returns ErrArg; if the first or last rank of a range is out of range, ErrRank.
func (g Group) RangeIncl(ranges ...Range) (Group, error) {
	h, err := mpi.Group(g).RangeIncl(cast[mpi.Range](ranges)...)
	return Group(h), err
}

// RangeExcl is [Group.Excl] of all ranks in the ranges (MPI_Group_range_excl). If a stride is 0, it
// returns ErrArg; if the first or last rank of a range is out of range, ErrRank.
func (g Group) RangeExcl(ranges ...Range) (Group, error) {
	h, err := mpi.Group(g).RangeExcl(cast[mpi.Range](ranges)...)
	return Group(h), err
}

// Translate returns, for each of the given ranks of g, the rank of the same process in h
// (MPI_Group_translate_ranks). If h does not have the process, the result is Undefined. For
// ProcNull, the result is ProcNull. If a rank is out of range, Translate returns ErrRank.
func (g Group) Translate(ranks []int, h Group) ([]int, error) {
	return mpi.Group(g).Translate(ranks, mpi.Group(h))
}

// Compare returns whether g and h have the same processes, and in the same order
// (MPI_Group_compare).
func (g Group) Compare(h Group) Comparison { return Comparison(mpi.Group(g).Compare(mpi.Group(h))) }

// String returns "ident", "similar" or "unequal", and "unknown" for any other value.
func (k Comparison) String() string { return mpi.Comparison(k).String() }

// Range stands for the ranks First, First+Stride, First+2·Stride and so on, as long as they are at
// most Last, or at least Last if Stride is negative. A stride of 0 is an error.
type Range struct{ First, Last, Stride int }
