package main

import (
	"fmt"

	"github.com/weft-hpc/weft/comm"
)

// intercomm splits the ranks into two groups, and does collectives and messages between them. All
// ranks draw the groups, so each knows what the ranks of the other group send.
func intercomm(k *call) error {
	c, p := k.c, k.c.Size()
	if p < 2 {
		return nil
	}
	// The ranks of each group, in the order of their ranks in the group.
	var groups [2][]int
	for i, r := range k.rng.Perm(p) {
		side := k.rng.IntN(2)
		if i < 2 { // no group is empty
			side = i
		}
		groups[side] = append(groups[side], r)
	}
	leaders := [2]int{k.rng.IntN(len(groups[0])), k.rng.IntN(len(groups[1]))}
	side, key := 0, 0
	for s, g := range groups {
		for i, r := range g {
			if r == c.Rank() {
				side, key = s, i
			}
		}
	}
	theirs := groups[1-side]
	local, err := c.Split(side, key)
	if err != nil {
		return err
	}
	inter, err := local.Intercomm(leaders[side], c, theirs[leaders[1-side]], k.rng.IntN(3))
	if err != nil {
		return err
	}
	if err := k.exchange(inter, groups, side); err != nil {
		return err
	}
	if err := k.merge(inter, groups, side, nil); err != nil {
		return err
	}
	return local.Free()
}

// exchange does collectives and messages over an intercommunicator. groups has the members of both
// groups, in the order of their ranks: the numbers from 0 on, each once. side is the caller's group.
// If k.endless is set, exchange ends with an error only.
func (k *call) exchange(inter *comm.Comm, groups [2][]int, side int) error {
	key, theirs, p := inter.Rank(), groups[1-side], len(groups[0])+len(groups[1])
	me := groups[side][key]
	if g, ok := inter.Remote(); !ok || g.Size() != len(theirs) || inter.Size() != len(groups[side]) {
		return fmt.Errorf("the intercommunicator has groups of %d and %d ranks, not those of %v", inter.Size(), g.Size(), groups)
	}
	value := func(rank, round, j int) int64 {
		return int64(mix(k.salt, uint64(rank)<<32|uint64(round), uint64(j)) >> 8)
	}
	for round, rounds := 0, 1+k.rng.IntN(4); round < rounds || k.endless; round++ {
		size := k.length(8, 8*p)
		mine := make([]int64, size*len(theirs))
		for j := range mine {
			mine[j] = value(me, round, j)
		}
		k.delay()
		form, root := k.rng.IntN(6), k.rng.IntN(p)
		var got, want []int64
		var err error
		switch form {
		case 0: // Bcast from the rank root of c
			arg := comm.ProcNull
			got, want = make([]int64, size), make([]int64, size)
			for i, r := range theirs {
				if r == root {
					arg = i
					for j := range want {
						want[j] = value(root, round, j)
					}
				}
			}
			if me == root {
				arg = comm.Root
				copy(got, mine)
				copy(want, mine)
			}
			err = comm.Bcast(inter, got, arg)
		case 1:
			got = make([]int64, size)
			want = make([]int64, size)
			for j := range want {
				for _, r := range theirs {
					want[j] += value(r, round, j)
				}
			}
			_, err = k.wait([]comm.Request{comm.Iallreduce(inter, mine[:size], got, comm.Sum)})
		case 2:
			got = make([]int64, size*len(theirs))
			for _, r := range theirs {
				for j := range size {
					want = append(want, value(r, round, j))
				}
			}
			err = comm.Allgather(inter, mine[:size], got)
		case 3:
			got = make([]int64, size*len(theirs))
			for _, r := range theirs {
				for j := range size {
					want = append(want, value(r, round, key*size+j))
				}
			}
			err = comm.Alltoall(inter, mine, got)
		case 4: // partitions between the ranks with the same number in their groups
			got, want = make([]int64, 2*size), make([]int64, 2*size)
			if key < len(theirs) {
				for j := range want {
					want[j] = value(theirs[key], round, j)
				}
				whole := make([]int64, 2*size)
				for j := range whole {
					whole[j] = value(me, round, j)
				}
				err = k.exchangeParts(inter, whole, got, key)
			}
		default: // each rank sends its block i to rank i of the other group
			got = make([]int64, size*len(theirs))
			var rs []comm.Request
			for i := range theirs {
				rs = append(rs, comm.Irecv(inter, got[i*size:][:size], i, round))
			}
			for i, r := range theirs {
				rs = append(rs, comm.Isend(inter, mine[i*size:][:size], i, round))
				for j := range size {
					want = append(want, value(r, round, key*size+j))
				}
			}
			_, err = k.wait(rs)
		}
		if err == nil {
			err = same("data of the other group", got, want)
		}
		if err != nil {
			return fmt.Errorf("form %d, round %d, %d elements, groups %v: %w", form, round, size, groups, err)
		}
	}
	return nil
}

// exchangeParts sends a slice in two partitions to a rank of the other group, and receives a slice as
// long from that rank.
func (k *call) exchangeParts(inter *comm.Comm, out, in []int64, peer int) error {
	send, err := comm.PsendInit(inter, out, 2, peer, k.tag)
	if err != nil {
		return err
	}
	recv, err := comm.PrecvInit(inter, in, 2, peer, k.tag)
	if err != nil {
		return err
	}
	for _, f := range []func() error{recv.Start, send.Start, func() error { return send.ReadyList(1, 0) }, recv.Wait, send.Wait, send.Free, recv.Free} {
		if err := f(); err != nil {
			return fmt.Errorf("partitions: %w", err)
		}
	}
	return nil
}

// merge merges the groups of an intercommunicator, and frees it. Then it does an operation on the
// merged communicator, unless operation is nil, and frees that communicator, too. The other arguments
// are those of exchange.
func (k *call) merge(inter *comm.Comm, groups [2][]int, side int, operation func(k *call) error) error {
	merged, err := inter.Merge(side == 1)
	if err != nil {
		return err
	}
	p, at := len(groups[0])+len(groups[1]), inter.Rank()+side*len(groups[1-side])
	if merged.Rank() != at || merged.Size() != p {
		return fmt.Errorf("rank %d of %d in the merged communicator, not %d of %d", merged.Rank(), merged.Size(), at, p)
	}
	if err := inter.Free(); err != nil {
		return err
	}
	if operation != nil {
		sub := *k
		sub.c, sub.closers = merged, nil
		if err := operation(&sub); err != nil {
			return fmt.Errorf("in the merged communicator: %w", err)
		}
		if err := sub.close(); err != nil {
			return err
		}
	}
	return merged.Free()
}
