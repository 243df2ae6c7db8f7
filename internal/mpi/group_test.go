package mpi

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func groupOf(self int, ranks ...int) Group { return Group{ranks: ranks, self: self + 1} }

func TestGroupSets(t *testing.T) {
	a, b := groupOf(3, 3, 1, 5), groupOf(3, 5, 0, 3)
	require.Equal(t, []int{3, 1, 5, 0}, a.Union(b).ranks)
	require.Equal(t, []int{3, 5}, a.Intersection(b).ranks)
	require.Equal(t, []int{5, 3}, b.Intersection(a).ranks)
	require.Equal(t, []int{1}, a.Difference(b).ranks)
	require.Equal(t, []int{3, 1, 5}, a.ranks, "operations must not change their operands")
	require.Equal(t, 0, a.Rank())
	require.Equal(t, 2, b.Rank())
	require.Equal(t, Undefined, a.Difference(b).Rank())

	var none Group
	require.Equal(t, 0, none.Size())
	require.Equal(t, Undefined, none.Rank())
	require.Equal(t, Ident, none.Union(a).Compare(a))
	require.Equal(t, 0, none.Union(a).Rank())
	require.Equal(t, Ident, a.Intersection(none).Compare(none))
}

func TestGroupCompare(t *testing.T) {
	a := groupOf(0, 0, 1, 2)
	require.Equal(t, Ident, a.Compare(groupOf(5, 0, 1, 2)))
	require.Equal(t, Similar, a.Compare(groupOf(0, 2, 1, 0)))
	require.Equal(t, Unequal, a.Compare(groupOf(0, 0, 1)))
	require.Equal(t, Unequal, a.Compare(groupOf(0, 0, 1, 3)))
	require.Equal(t, "ident similar unequal", Ident.String()+" "+Similar.String()+" "+Unequal.String())
}

func TestGroupInclExcl(t *testing.T) {
	g := groupOf(0, 10, 11, 12, 13, 14, 15, 16)
	in, err := g.Incl(6, 0, 3)
	require.NoError(t, err)
	require.Equal(t, []int{16, 10, 13}, in.ranks)
	ex, err := g.Excl(6, 0, 3)
	require.NoError(t, err)
	require.Equal(t, []int{11, 12, 14, 15}, ex.ranks)
	in, err = g.RangeIncl(Range{0, 6, 3}, Range{5, 4, -1})
	require.NoError(t, err)
	require.Equal(t, []int{10, 13, 16, 15, 14}, in.ranks)
	ex, err = g.RangeExcl(Range{1, 6, 2})
	require.NoError(t, err)
	require.Equal(t, []int{10, 12, 14, 16}, ex.ranks)
	in, err = g.Incl()
	require.NoError(t, err)
	require.Equal(t, 0, in.Size())

	const huge = int(^uint(0) >> 1)
	in, err = g.RangeIncl(Range{2, 6, huge}, Range{5, 0, -huge - 1})
	require.NoError(t, err)
	require.Equal(t, []int{12, 15}, in.ranks)

	for name, f := range map[string]func() (Group, error){
		"negative":       func() (Group, error) { return g.Incl(-1) },
		"too large":      func() (Group, error) { return g.Excl(7) },
		"twice":          func() (Group, error) { return g.Incl(1, 2, 1) },
		"range outside":  func() (Group, error) { return g.RangeIncl(Range{0, 7, 1}) },
		"ranges overlap": func() (Group, error) { return g.RangeExcl(Range{0, 3, 1}, Range{3, 4, 1}) },
	} {
		_, err := f()
		require.ErrorIs(t, err, ErrRank, name)
	}
	_, err = g.RangeIncl(Range{0, 1, 0})
	require.ErrorIs(t, err, ErrArg)
}

func TestGroupTranslate(t *testing.T) {
	a, b := groupOf(0, 4, 2, 7), groupOf(0, 7, 4)
	got, err := a.Translate([]int{0, 1, 2, ProcNull, 0}, b)
	require.NoError(t, err)
	require.Equal(t, []int{1, Undefined, 0, ProcNull, 1}, got)
	_, err = a.Translate([]int{3}, b)
	require.ErrorIs(t, err, ErrRank)
}

// TestGroupLaws checks that operations on random groups obey the laws of sets.
func TestGroupLaws(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	random := func() Group { return groupOf(0, r.Perm(12)[:r.IntN(13)]...) }
	for range 500 {
		a, b := random(), random()
		u, i, d := a.Union(b), a.Intersection(b), a.Difference(b)
		require.Equal(t, a.Size()+b.Size(), u.Size()+i.Size())
		require.Equal(t, a.Size(), i.Size()+d.Size())
		require.NotEqual(t, Unequal, u.Compare(b.Union(a)))
		require.NotEqual(t, Unequal, i.Compare(b.Intersection(a)))
		require.Equal(t, Ident, a.Compare(u.Difference(b.Difference(a))))
		require.True(t, u.contains(a) && u.contains(b) && a.contains(i))
		for _, x := range d.ranks {
			require.False(t, slices.Contains(b.ranks, x))
		}
	}
}
