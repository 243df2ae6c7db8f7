package main

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/comm"
)

// sets does operations on groups, which are local, and compares them with operations on lists of ranks.
// Then it makes communicators that have other ranks on each host or only the calling rank.
func sets(k *call) error {
	all := k.c.Group()
	for range 1 + k.own.IntN(8) {
		a, b := k.someRanks(), k.someRanks()
		if err := k.algebra(all, a, b); err != nil {
			return fmt.Errorf("groups %v and %v of %d ranks: %w", a, b, all.Size(), err)
		}
	}
	if err := k.ranges(all); err != nil {
		return err
	}
	return k.comms()
}

// someRanks returns random ranks of the communicator, in a random order.
func (k *call) someRanks() []int {
	p := k.c.Size()
	return k.own.Perm(p)[:k.own.IntN(p+1)]
}

// is returns an error if g does not have these ranks of all.
func is(what string, g, all comm.Group, ranks []int) error {
	got, err := g.Translate(count(g.Size()), all)
	if err != nil {
		return err
	}
	if g.Rank() != indexOf(ranks, all.Rank()) {
		return fmt.Errorf("%s: this process has the rank %d in %v", what, g.Rank(), ranks)
	}
	return same(what, got, ranks)
}

// indexOf returns the index of a rank in a list, or comm.Undefined.
func indexOf(list []int, rank int) int {
	if i := slices.Index(list, rank); i >= 0 {
		return i
	}
	return comm.Undefined
}

// algebra checks the operations on the groups of the ranks a and b of all.
func (k *call) algebra(all comm.Group, a, b []int) error {
	ga, err := all.Incl(a...)
	if err != nil {
		return err
	}
	gb, err := all.Incl(b...)
	if err != nil {
		return err
	}
	without := func(from, ranks []int) []int {
		return slices.DeleteFunc(slices.Clone(from), func(r int) bool { return slices.Contains(ranks, r) })
	}
	rest, err := all.Excl(a...)
	if err != nil {
		return err
	}
	for _, x := range []struct {
		what string
		got  comm.Group
		want []int
	}{
		{"Incl", ga, a},
		{"Excl", rest, without(count(all.Size()), a)},
		{"Union", ga.Union(gb), append(slices.Clone(a), without(b, a)...)},
		{"Intersection", ga.Intersection(gb), without(a, without(a, b))},
		{"Difference", ga.Difference(gb), without(a, b)},
	} {
		if err := is(x.what, x.got, all, x.want); err != nil {
			return err
		}
	}
	order := slices.Clone(a)
	k.own.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	if k.own.IntN(2) == 0 {
		order = b
	}
	other, err := all.Incl(order...)
	if err != nil {
		return err
	}
	want := comm.Unequal
	switch sorted := slices.Sorted[int]; {
	case slices.Equal(a, order):
		want = comm.Ident
	case slices.Equal(sorted(slices.Values(a)), sorted(slices.Values(order))):
		want = comm.Similar
	}
	if got := ga.Compare(other); got != want {
		return fmt.Errorf("the groups of %v and %v are %v, not %v", a, order, got, want)
	}
	return nil
}

// ranges checks RangeIncl and RangeExcl of a random range.
func (k *call) ranges(all comm.Group) error {
	p := all.Size()
	r := comm.Range{First: k.own.IntN(p), Last: k.own.IntN(p), Stride: 1 + k.own.IntN(3)}
	if r.Last < r.First {
		r.Stride = -r.Stride
	}
	var ranks []int
	for at := r.First; r.Stride > 0 && at <= r.Last || r.Stride < 0 && at >= r.Last; at += r.Stride {
		ranks = append(ranks, at)
	}
	in, err := all.RangeIncl(r)
	if err != nil {
		return err
	}
	out, err := all.RangeExcl(r)
	if err != nil {
		return err
	}
	if err := is(fmt.Sprintf("RangeIncl of %+v", r), in, all, ranks); err != nil {
		return err
	}
	rest := slices.DeleteFunc(count(p), func(at int) bool { return slices.Contains(ranks, at) })
	return is(fmt.Sprintf("RangeExcl of %+v", r), out, all, rest)
}

// comms makes a communicator of this rank only, and one of the ranks that share hardware of a random
// kind, gives it a name, and frees both.
func (k *call) comms() error {
	self, err := k.c.Self()
	if err != nil {
		return err
	}
	if one, err := comm.AllreduceOne(self, k.c.Rank()+1, comm.Sum[int]); err != nil || self.Size() != 1 || one != k.c.Rank()+1 {
		return fmt.Errorf("a sum of one rank of %d is %d instead of %d: %w", self.Size(), one, k.c.Rank()+1, err)
	}
	if err := self.Free(); err != nil {
		return err
	}
	kinds := []comm.Hardware{comm.Host, comm.Host, comm.Package, comm.NUMA, comm.L3Cache, comm.Core, comm.Narrower}
	kind := kinds[k.rng.IntN(len(kinds))]
	near, err := k.c.SplitHardware(kind, k.c.Rank())
	if err != nil {
		return err
	}
	if near == nil && kind != comm.Host { // this rank may run on several pieces of the hardware
		return nil
	}
	if near == nil || kind == comm.Host && near.Size() != k.c.Size() { // all ranks run on one host
		return fmt.Errorf("%d of %d ranks run on this host", near.Size(), k.c.Size())
	}
	if kind == comm.Narrower && near.Size() == k.c.Size() {
		return fmt.Errorf("a split by Narrower gives a communicator of all %d ranks", near.Size())
	}
	name := fmt.Sprint("near ", k.c.Rank())
	if near.SetName(name); near.Name() != name {
		return fmt.Errorf("the name is %q instead of %q", near.Name(), name)
	}
	ranks, err := near.Group().Translate(count(near.Size()), k.c.Group())
	if err != nil {
		return err
	}
	got := make([]int, near.Size())
	if err := comm.Allgather(near, []int{k.c.Rank()}, got); err != nil {
		return err
	}
	if err := same("ranks with the same hardware", got, ranks); err != nil {
		return err
	}
	if !slices.IsSorted(ranks) {
		return fmt.Errorf("ranks %v with the same hardware, by ascending key", ranks)
	}
	if want := k.c.Compare(near); want != comm.Congruent && near.Size() == k.c.Size() {
		return fmt.Errorf("the communicator of all ranks is %v to its parent", want)
	}
	return near.Free()
}
