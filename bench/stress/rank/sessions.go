package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/comm"
)

// sessions opens one or two sessions, checks their groups, and makes communicators of random ranks with
// them: two of the same group with different tags, and an intercommunicator.
func sessions(k *call) error {
	for i := range 1 + k.rng.IntN(2) {
		s := k.c.Session()
		opened := k.rng.IntN(2) == 0
		if opened {
			var err error
			if s, err = comm.Open(k.c.Context()); err != nil {
				return err
			}
		}
		if err := k.session(s, fmt.Sprint("stress ", k.tag, " ", i)); err != nil {
			return err
		}
		if !opened {
			continue
		}
		if err := s.Close(); err != nil {
			return err
		}
		if _, err := s.Psets(); !errors.Is(err, comm.ErrClosed) {
			return fmt.Errorf("a closed session: %w", unexpected(err, comm.ErrClosed))
		}
	}
	return nil
}

func (k *call) session(s *comm.Session, tag string) error {
	if err := k.checkSets(s); err != nil {
		return err
	}
	me, perm := k.c.Rank(), k.rng.Perm(k.c.Size())
	cut := k.rng.IntN(len(perm) + 1)
	lists := [2][]int{perm[:cut], perm[cut:]} // ranks of c
	leaders := [2]int{k.rng.IntN(max(cut, 1)), k.rng.IntN(max(len(perm)-cut, 1))}
	side := 0
	if slices.Contains(lists[1], me) {
		side = 1
	}
	var groups [2]comm.Group
	for i, list := range lists {
		var err error
		if groups[i], err = k.c.Group().Incl(list...); err != nil {
			return err
		}
	}
	// The two groups make their communicators at the same time. The salts of their data differ.
	sub := *k
	sub.salt, sub.closers = mix(k.salt, uint64(side), 4), nil
	var made [2]*comm.Comm
	for i := range made {
		var err error
		k.delay()
		if made[i], err = s.Comm(groups[side], fmt.Sprint(tag, " ", i)); err != nil {
			return err
		}
		if at := slices.Index(lists[side], me); made[i].Rank() != at || made[i].Size() != len(lists[side]) {
			return fmt.Errorf("rank %d of %d of the ranks %v", made[i].Rank(), made[i].Size(), lists[side])
		}
	}
	subject := k.subject()
	seed := k.rng.Uint64() // the groups draw different numbers from here on
	for _, i := range []int{1, 0} {
		sub.c, sub.rng = made[i], newRand(seed, uint64(side))
		if err := subject.collectives(&sub); err != nil {
			return err
		}
		if err := sub.close(); err != nil {
			return err
		}
		if err := made[i].Free(); err != nil {
			return err
		}
	}
	if cut == 0 || cut == len(perm) {
		return nil
	}
	inter, err := s.Intercomm(groups[side], leaders[side], groups[1-side], leaders[1-side], tag)
	if err != nil {
		return err
	}
	sub = *k
	sub.rng = newRand(seed, 2)
	if err := sub.exchange(inter, lists, side); err != nil {
		return err
	}
	return sub.merge(inter, lists, side, nil)
}

// checkSets checks the process sets of a session. All ranks are on one host and run one program.
func (k *call) checkSets(s *comm.Session) error {
	names, err := s.Psets()
	if err != nil {
		return err
	}
	if !slices.Contains(names, "mpi://WORLD") || !slices.Contains(names, "mpi://SELF") || !slices.Contains(names, "weft://HOST") {
		return fmt.Errorf("the process sets are %q", names)
	}
	job := k.c.Job()
	for _, name := range names {
		g, err := s.Group(name)
		if err != nil {
			return err
		}
		size, rank := job.Size, job.Rank
		if name == "mpi://SELF" {
			size, rank = 1, 0
		}
		if g.Size() != size || g.Rank() != rank {
			return fmt.Errorf("rank %d of %d in the set %q, not %d of %d", g.Rank(), g.Size(), name, rank, size)
		}
	}
	if _, err := s.Group("stress://NONE"); !errors.Is(err, comm.ErrArg) {
		return fmt.Errorf("a set that does not exist: %w", unexpected(err, comm.ErrArg))
	}
	return nil
}
