package main

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/weft-hpc/weft/comm"
)

// slots is the length of job.groups, and so the largest number of communicators that a rank has at a
// time. An entry of job.groups is a slot. All ranks create the communicators in a slot by one collective
// call, for example a Split. A rank that gets none has an empty slot.
const slots = 5

// group is the communicator in a slot. The zero group means that the slot is empty.
type group struct {
	*comm.Comm
	lowest int // the lowest rank, in the communicator of all ranks, of the communicator's members
}

func (g *group) free() error {
	if g.Comm == nil {
		return nil
	}
	err := g.Free()
	if err != nil {
		return fmt.Errorf("free: %w", err)
	}
	*g = group{}
	return nil
}

// regroup replaces the communicator in a random slot by one that it creates from the communicator in
// another slot, the parent, and checks the ranks of the new communicator. i is the number of the
// operation.
func (j *job) regroup(i int, rng *rand.Rand) error {
	slot, from := 1+rng.IntN(slots-1), max(rng.IntN(2*slots)-slots, 0)
	if from == slot {
		from = 0
	}
	if err := j.groups[slot].free(); err != nil {
		return err
	}
	parent := j.groups[from].Comm
	if parent == nil {
		return nil
	}
	made, members, err := newComm(parent, rng, i)
	if err != nil {
		return err
	}
	if made == nil {
		if members != nil {
			return fmt.Errorf("got no communicator of ranks %v", members)
		}
		return nil
	}
	j.groups[slot] = group{Comm: made}
	if at := slices.Index(members, parent.Rank()); made.Size() != len(members) || made.Rank() != at {
		return fmt.Errorf("rank %d of %d instead of rank %d of the ranks %v", made.Rank(), made.Size(), at, members)
	}
	world, err := made.Group().Translate(count(made.Size()), j.world().Group())
	if err != nil {
		return err
	}
	want, err := parent.Group().Translate(members, j.world().Group())
	if err != nil {
		return err
	}
	if err := same("ranks in the world", world, want); err != nil {
		return err
	}
	j.groups[slot].lowest = slices.Min(world)
	got := make([]int, made.Size())
	if err := comm.Allgather(made, []int{j.world().Rank()}, got); err != nil {
		return err
	}
	return same("ranks that answered", got, want)
}

// newComm creates a communicator of ranks of the parent by a random function. members are the ranks of
// the parent that the communicator must have, in their order. On a rank that is not in the
// communicator, made and members are nil.
func newComm(parent *comm.Comm, rng *rand.Rand, tag int) (made *comm.Comm, members []int, err error) {
	size, me := parent.Size(), parent.Rank()
	switch rng.IntN(5) {
	case 0:
		made, err = parent.Dup()
		return made, count(size), err
	case 1:
		made, err = parent.SplitNode(-me) // all ranks are on one host; the keys reverse their order
		members = count(size)
		slices.Reverse(members)
		return made, members, err
	case 2, 3:
		colors, keys := make([]int, size), make([]int, size)
		n := 1 + rng.IntN(3)
		for r := range size {
			colors[r], keys[r] = rng.IntN(n), rng.IntN(3)
			if rng.IntN(8) == 0 {
				colors[r] = comm.Undefined
			}
		}
		if colors[me] != comm.Undefined {
			for r := range size {
				if colors[r] == colors[me] {
					members = append(members, r)
				}
			}
			slices.SortStableFunc(members, func(a, b int) int { return keys[a] - keys[b] })
		}
		made, err = parent.Split(colors[me], keys[me])
		return made, members, err
	default:
		some := rng.Perm(size)[:1+rng.IntN(size)]
		in := slices.Contains(some, me)
		g, err := parent.Group().Incl(some...)
		if err != nil {
			return nil, nil, err
		}
		switch {
		case rng.IntN(2) == 0:
			if !in {
				g = comm.Group{}
			}
			made, err = parent.Create(g)
		case in:
			made, err = parent.CreateGroup(g, tag)
		}
		if !in {
			some = nil
		}
		return made, some, err
	}
}

// count returns the numbers from 0 to n-1.
func count(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}
