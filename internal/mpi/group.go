package mpi

import (
	"fmt"
	"slices"
)

// Group is the type behind comm.Group: an ordered set of processes (MPI 4.1 §7.3).
type Group struct {
	// Numbers of the processes, in the order of the group; see processes. Other groups may share the
	// slice, so it is never written.
	ranks []int
	self  int // 1 + the number of this process, for Rank; 0: not known, so Rank returns Undefined
}

// Comparison is the result of comparing two groups or communicators. A larger value means a larger
// difference.
type Comparison int

// The results of a comparison.
const (
	Ident     Comparison = iota // the same processes in the same order (MPI_IDENT)
	Congruent                   // of communicators: different ones of identical groups (MPI_CONGRUENT)
	Similar                     // the same processes in another order (MPI_SIMILAR)
	Unequal                     // other processes (MPI_UNEQUAL)
)

// String returns "ident", "congruent", "similar" or "unequal", and "unknown" for any other value.
func (k Comparison) String() string {
	switch k {
	case Ident:
		return "ident"
	case Congruent:
		return "congruent"
	case Similar:
		return "similar"
	case Unequal:
		return "unequal"
	}
	return "unknown"
}

// Range is the type behind comm.Range: the ranks First, First+Stride, … up to Last.
type Range struct{ First, Last, Stride int }

// Size implements comm.Group.Size, which documents the call.
func (g Group) Size() int { return len(g.ranks) }

// Rank implements comm.Group.Rank, which documents the call.
func (g Group) Rank() int {
	if i := slices.Index(g.ranks, g.self-1); i >= 0 {
		return i
	}
	return Undefined
}

// set returns, by number of each process of g, its rank in g.
func (g Group) set() map[int]int {
	m := make(map[int]int, len(g.ranks))
	for i, r := range g.ranks {
		m[r] = i
	}
	return m
}

// with returns a group of the processes with these numbers. It knows the rank of this process
// if g or other does.
func (g Group) with(ranks []int, other Group) Group {
	return Group{ranks: ranks, self: max(g.self, other.self)}
}

// Union implements comm.Group.Union, which documents the call.
func (g Group) Union(h Group) Group {
	in := g.set()
	ranks := slices.Clone(g.ranks)
	for _, r := range h.ranks {
		if _, ok := in[r]; !ok {
			ranks = append(ranks, r)
		}
	}
	return g.with(ranks, h)
}

// Intersection implements comm.Group.Intersection, which documents the call.
func (g Group) Intersection(h Group) Group {
	in := h.set()
	var ranks []int
	for _, r := range g.ranks {
		if _, ok := in[r]; ok {
			ranks = append(ranks, r)
		}
	}
	return g.with(ranks, h)
}

// Difference implements comm.Group.Difference, which documents the call.
func (g Group) Difference(h Group) Group {
	in := h.set()
	var ranks []int
	for _, r := range g.ranks {
		if _, ok := in[r]; !ok {
			ranks = append(ranks, r)
		}
	}
	return g.with(ranks, h)
}

// Incl implements comm.Group.Incl, which documents the call.
func (g Group) Incl(ranks ...int) (Group, error) {
	if _, err := g.flagRanks("Incl", ranks); err != nil {
		return Group{}, err
	}
	out := make([]int, len(ranks))
	for i, r := range ranks {
		out[i] = g.ranks[r]
	}
	return Group{ranks: out, self: g.self}, nil
}

// Excl implements comm.Group.Excl, which documents the call.
func (g Group) Excl(ranks ...int) (Group, error) {
	excluded, err := g.flagRanks("Excl", ranks)
	if err != nil {
		return Group{}, err
	}
	out := make([]int, 0, len(g.ranks)-len(ranks))
	for i, r := range g.ranks {
		if !excluded[i] {
			out = append(out, r)
		}
	}
	return Group{ranks: out, self: g.self}, nil
}

// RangeIncl implements comm.Group.RangeIncl, which documents the call.
func (g Group) RangeIncl(ranges ...Range) (Group, error) {
	ranks, err := g.expand("RangeIncl", ranges)
	if err != nil {
		return Group{}, err
	}
	return g.Incl(ranks...)
}

// RangeExcl implements comm.Group.RangeExcl, which documents the call.
func (g Group) RangeExcl(ranges ...Range) (Group, error) {
	ranks, err := g.expand("RangeExcl", ranges)
	if err != nil {
		return Group{}, err
	}
	return g.Excl(ranks...)
}

// Translate implements comm.Group.Translate, which documents the call.
func (g Group) Translate(ranks []int, h Group) ([]int, error) {
	in := h.set()
	out := make([]int, len(ranks))
	for i, r := range ranks {
		if r == ProcNull {
			out[i] = ProcNull
			continue
		}
		if r < 0 || r >= len(g.ranks) {
			return nil, g.badRank("Translate", r)
		}
		if at, ok := in[g.ranks[r]]; ok {
			out[i] = at
		} else {
			out[i] = Undefined
		}
	}
	return out, nil
}

// Compare implements comm.Group.Compare, which documents the call.
func (g Group) Compare(h Group) Comparison {
	if slices.Equal(g.ranks, h.ranks) {
		return Ident
	}
	if len(g.ranks) == len(h.ranks) && g.Difference(h).Size() == 0 {
		return Similar
	}
	return Unequal
}

// contains reports whether all processes of h are in g.
func (g Group) contains(h Group) bool { return h.Difference(g).Size() == 0 }

// flagRanks returns, by rank of g, whether ranks contains the rank. If ranks contains a rank that g
// does not have, or the same rank twice, flagRanks returns ErrRank. op is the name of the method of
// Group, for the error.
func (g Group) flagRanks(op string, ranks []int) ([]bool, error) {
	seen := make([]bool, len(g.ranks))
	for _, r := range ranks {
		if r < 0 || r >= len(g.ranks) {
			return nil, g.badRank(op, r)
		}
		if seen[r] {
			return nil, &Error{Op: "Group." + op, Peer: r, Tag: noRank, Err: fmt.Errorf("%w: listed twice", ErrRank)}
		}
		seen[r] = true
	}
	return seen, nil
}

// expand returns all ranks in the ranges, in order. op is the name of the method of Group, for
// errors.
func (g Group) expand(op string, ranges []Range) ([]int, error) {
	var ranks []int
	for _, x := range ranges {
		if x.Stride == 0 {
			return nil, &Error{Op: "Group." + op, Peer: noRank, Tag: noRank, Err: fmt.Errorf("%w: a range with stride 0", ErrArg)}
		}
		for _, r := range []int{x.First, x.Last} {
			if r < 0 || r >= len(g.ranks) {
				return nil, g.badRank(op, r)
			}
		}
		if x.Stride > 0 {
			for r := x.First; r <= x.Last; r += x.Stride {
				ranks = append(ranks, r)
				if x.Stride > x.Last-r { // the next rank is beyond Last; r+Stride may overflow
					break
				}
			}
		} else {
			for r := x.First; r >= x.Last; r += x.Stride {
				ranks = append(ranks, r)
				if x.Stride < x.Last-r {
					break
				}
			}
		}
	}
	return ranks, nil
}

func (g Group) badRank(op string, r int) error {
	return &Error{Op: "Group." + op, Peer: r, Tag: noRank,
		Err: fmt.Errorf("%w: the group has %d", ErrRank, len(g.ranks))}
}
