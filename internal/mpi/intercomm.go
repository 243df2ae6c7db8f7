package mpi

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Intercommunicators (MPI 4.1 §7.6)
//
// An intercommunicator has two groups. A message of a process goes to the other group, the remote
// group, and carries the sender's rank in its own group. Below this package, an intercommunicator
// is a communicator of all processes of both groups, the union:
//
//	                      rank     0     1     2     3     4     in the union
//	                               ├───────────┤     ├─────┤
//	group A, as A sees it          0     1     2     0     1     remote group of A
//
// The collective context is that of the union. So Barrier, Dup, Free, Agree and revocation are
// those of the union, and collectives between the groups are built of messages in it
// (coll_inter.go). The context of point-to-point messages has the remote group only.

// interState returns a state with the groups of an intercommunicator. localFirst says that the
// local group comes first in the union.
func interState(local, remote Group, localFirst bool) *state {
	nl, nr := len(local.ranks), len(remote.ranks)
	g := &coll.Groups{Local: coll.Span{First: 0, N: nl}, Remote: coll.Span{First: nl, N: nr}}
	union := Group{ranks: slices.Concat(local.ranks, remote.ranks), self: local.self}
	if !localFirst {
		g = &coll.Groups{Local: coll.Span{First: nr, N: nl}, Remote: coll.Span{First: 0, N: nr}}
		union.ranks = slices.Concat(remote.ranks, local.ranks)
	}
	rank := local.Rank()
	return &state{group: union, rank: g.Local.First + rank, local: local, peers: remote, localRank: rank, inter: g}
}

// rankName returns the name that a rank of the union has in errors. The text may travel to ranks of
// the other group, so the ranks of an intercommunicator have the names that they have in the world.
func (s *state) rankName(rank int) string {
	if s.inter == nil {
		return fmt.Sprintf("rank %d", rank)
	}
	return fmt.Sprintf("rank %d of the world", s.ranks[rank])
}

// remoteRanks returns the ranks in the remote group of those ranks of the union that are in it.
func (s *state) remoteRanks(ranks []int) (remote []int) {
	for _, r := range ranks {
		if at := r - s.inter.Remote.First; at >= 0 && at < s.inter.Remote.N {
			remote = append(remote, at)
		}
	}
	return remote
}

// checkIntra returns ErrArg if the communicator is an intercommunicator.
func (s *state) checkIntra() error {
	if s.inter == nil {
		return nil
	}
	return fmt.Errorf("%w: the call needs one group, and the communicator is an intercommunicator", ErrArg)
}

// checkIntra returns ErrArg if c is an intercommunicator.
func (c *Comm) checkIntra() error {
	if c == nil || c.s == nil {
		return nil // the call itself returns ErrClosed
	}
	return c.s.checkIntra()
}

// OneGroup returns ErrArg, as an error of the call op, if c is an intercommunicator.
func (c *Comm) OneGroup(op string) error { return c.fail(op, noRank, noRank, c.checkIntra()) }

// Remote implements comm.Comm.Remote, which documents the call.
func (c *Comm) Remote() (Group, bool) {
	if c == nil || c.s == nil || c.s.inter == nil {
		return Group{}, false
	}
	return c.s.peers, true
}

// The message that the leader of a group sends to the other leader, and later to its own group, in
// words: the header, and then the world ranks of a group.
const (
	interID     = iota // id of the new communicator
	interFirst         // 1: the group that gets the message comes first in the union
	interSize          // number of processes of the group that the ranks belong to
	interHeader        // number of words
)

// Intercomm implements comm.Comm.Intercomm, which documents the call.
func (c *Comm) Intercomm(leader int, peer *Comm, remoteLeader, tag int) (*Comm, error) {
	const name = "Intercomm"
	l, err := c.begin(name)
	if err != nil {
		if c != nil && c.s != nil && c.s.localRank == leader {
			giveUp(peer, err)
		}
		return nil, err
	}
	s := l.s
	// This barrier checks that all ranks of the group have made the same call before their leader waits for
	// the other one.
	l.what = coll.KindBarrier
	l.sign(calls.KindIntercomm, leader, 0)
	head := elem.Slice[uint64](l.Scratch(8 * interHeader))
	var remote []int
	if err = s.checkIntra(); err == nil {
		err = l.checkRoot(leader)
	}
	leads := err != nil || s.rank == leader // a rank whose arguments are wrong may be the leader that the others mean
	if err == nil && leads {
		err = s.checkLeader(peer, remoteLeader, tag)
	}
	if err == nil {
		err = l.perform()
	}
	if err == nil && leads {
		remote, err = c.meetLeader(name, peer, remoteLeader, tag, head)
	}
	if err != nil {
		if (leads || errors.Is(err, ErrMismatch)) && remote == nil { // the ranks may pass different leaders
			giveUp(peer, err)
		}
		return nil, l.end(err)
	}
	l.what, l.root, l.recv = coll.KindBcast, leader, elem.Bytes(head)
	err = l.perform()
	if err == nil {
		if s.rank != leader {
			remote = make([]int, head[interSize])
		}
		l.recv = elem.Bytes(remote)
		if err = l.perform(); err != nil && s.rank != leader {
			remote = nil
		}
	}
	id, first := head[interID], head[interFirst] == 1
	if err = l.end(err); err != nil && remote == nil {
		return nil, err
	}
	own := s.job.addState(interState(s.group, s.job.groupOf(remote), first), id)
	if err != nil {
		own.revoke(err) // ranks of the other group may have the communicator already
		own.abandon()
		return nil, err
	}
	return &Comm{s: own, ctx: c.ctx}, nil
}

// giveUp revokes peer, the communicator of the leaders, because err has ended the call of this rank, and
// the other leader may wait in peer.
func giveUp(peer *Comm, err error) {
	if p, closed := peer.live(); closed == nil {
		p.revoke(err)
	}
}

// checkLeader checks the arguments of a leader. s is the state of its group.
func (s *state) checkLeader(peer *Comm, remoteLeader, tag int) error {
	p, err := peer.live()
	switch {
	case err != nil:
		return err
	case p.job != s.job:
		return fmt.Errorf("%w: the communicator of the leaders belongs to another job", ErrArg)
	case p.inter != nil:
		return p.checkIntra()
	case tag < 0 || tag > seqMask:
		return fmt.Errorf("%w: not in 0 … %d", ErrTag, seqMask)
	case uint(remoteLeader) >= uint(len(p.ranks)):
		return p.badRank()
	case remoteLeader == p.rank:
		return fmt.Errorf("%w: the caller is the leader of both groups", ErrRank)
	}
	return s.checkDisjoint([]int{p.ranks[remoteLeader]})
}

// meetLeader exchanges the groups with the other leader, which has the rank remoteLeader in peer. c is
// the communicator of the caller's group. meetLeader fills in the header for the caller's group, and
// returns the processes of the other group. An error revokes peer.
func (c *Comm) meetLeader(name string, peer *Comm, remoteLeader, tag int, head []uint64) (remote []int, err error) {
	p, err := peer.live()
	if err != nil {
		return nil, err
	}
	s := c.s
	l := p.take(&Comm{s: p, ctx: c.ctx}, name, groupTag|tag) // the context of the caller's communicator ends the call
	l.enterRecord()
	if l.hasSlot { // as in CreateGroup
		l.dropSlot()
	}
	l.sign(calls.KindIntercomm, 0, 0)
	theirs := elem.Slice[uint64](l.Scratch(8 * interHeader))
	head[interID], head[interSize] = s.job.newID(), uint64(len(s.ranks))
	if err = l.Sendrecv(elem.Bytes(head), remoteLeader, elem.Bytes(theirs), remoteLeader); err == nil {
		n := theirs[interSize]
		if n > uint64(s.job.world.Size) {
			return nil, l.end(fmt.Errorf("%w: a group of %d processes in a job of %d", ErrGroup, n, s.job.world.Size))
		}
		remote = make([]int, n)
		err = l.Sendrecv(elem.Bytes(s.ranks), remoteLeader, elem.Bytes(remote), remoteLeader)
	}
	if err == nil {
		err = s.checkDisjoint(remote)
	}
	if err != nil {
		return nil, l.end(err)
	}
	head[interSize] = theirs[interSize]
	if s.job.world.Rank < p.ranks[remoteLeader] {
		head[interFirst] = 1
	} else {
		head[interFirst], head[interID] = 0, theirs[interID]
	}
	return remote, l.end(nil)
}

// checkDisjoint returns ErrGroup if a process of the remote group is not in the job, or is in the
// group of s, too. ranks are the ranks of the remote group in the job.
func (s *state) checkDisjoint(ranks []int) error {
	own := make(map[int]bool, len(s.ranks))
	for _, r := range s.ranks {
		own[r] = true
	}
	for _, r := range ranks {
		if uint(r) >= uint(s.job.world.Size) || own[r] {
			return fmt.Errorf("%w: the remote group has rank %d of the world", ErrGroup, r)
		}
	}
	return nil
}

// Merge implements comm.Comm.Merge, which documents the call.
func (c *Comm) Merge(high bool) (*Comm, error) {
	l, err := c.begin("Merge")
	if err != nil {
		return nil, err
	}
	s := l.s
	if s.inter == nil {
		return nil, l.end(fmt.Errorf("%w: the communicator is not an intercommunicator", ErrArg))
	}
	color := int64(0)
	if high {
		color = 1
	}
	all, err := l.allgatherArgs(calls.Call{What: calls.KindMerge}, splitArgs{color: color})
	if err != nil {
		return nil, l.end(err)
	}
	first, second := s.inter.Local, s.inter.Remote
	if second.First == 0 {
		first, second = second, first
	}
	for _, g := range []coll.Span{first, second} {
		for r := g.First; r < g.First+g.N; r++ {
			if all[r].color != all[g.First].color {
				return nil, l.end(fmt.Errorf("%w: %s and %s of the same group pass different values of high",
					ErrMismatch, s.rankName(g.First), s.rankName(r)))
			}
		}
	}
	if all[first.First].color > all[second.First].color {
		first, second = second, first
	}
	id := all[first.First].id
	if err := l.end(nil); err != nil {
		return nil, err
	}
	of := func(g coll.Span) []int { return s.group.ranks[g.First : g.First+g.N] }
	merged := Group{ranks: slices.Concat(of(first), of(second)), self: s.group.self}
	return &Comm{s: s.job.newState(id, merged, merged.Rank()), ctx: c.ctx}, nil
}

// part returns the communicator of the processes of c with these ranks of the union, or nil if the
// caller is not among them. For an intercommunicator, ranks has ranks of both groups, in any order;
// part returns nil if it has no rank of one of the groups.
func (c *Comm) part(id uint64, ranks []int) *Comm {
	s := c.s
	pick := func(ok func(rank int) bool) Group {
		g := Group{self: s.group.self}
		for _, r := range ranks {
			if ok(r) {
				g.ranks = append(g.ranks, s.group.ranks[r])
			}
		}
		return g
	}
	isLocal := func(r int) bool {
		return s.inter == nil || r >= s.inter.Local.First && r < s.inter.Local.First+s.inter.Local.N
	}
	local := pick(isLocal)
	if local.Rank() == Undefined {
		return nil
	}
	if s.inter == nil {
		return &Comm{s: s.job.newState(id, local, local.Rank()), ctx: c.ctx}
	}
	remote := pick(func(r int) bool { return !isLocal(r) })
	if len(remote.ranks) == 0 {
		return nil
	}
	return &Comm{s: s.job.addState(interState(local, remote, s.inter.Local.First == 0), id), ctx: c.ctx}
}

// Compare implements comm.Comm.Compare, which documents the call.
func (c *Comm) Compare(d *Comm) Comparison {
	if c == nil || d == nil || c.s == nil || d.s == nil {
		if (c == nil || c.s == nil) && (d == nil || d.s == nil) {
			return Ident
		}
		return Unequal
	}
	if c.s == d.s {
		return Ident
	}
	if (c.s.inter == nil) != (d.s.inter == nil) {
		return Unequal
	}
	return max(Congruent, c.s.local.Compare(d.s.local), c.s.peers.Compare(d.s.peers))
}
