package mpi

import (
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Split implements comm.Comm.Split, which documents the call.
func (c *Comm) Split(color, key int) (*Comm, error) {
	return c.split("Split", calls.Call{What: calls.KindSplit}, color, key)
}

// SplitNode implements comm.Comm.SplitNode, which documents the call.
func (c *Comm) SplitNode(key int) (*Comm, error) {
	n, err := c.SplitHardware(Host, key)
	return n, RenamedTo(err, "SplitNode")
}

// splitArgs holds the arguments of one rank in a call that makes communicators or a window. Each
// rank gathers the arguments of all ranks. In Split, the ranks with the same color then make a
// communicator; the other calls check that the arguments fit together.
type splitArgs struct {
	// For Split: the color. For Create: the hash of the group. For windows: the hash of the element
	// type.
	color int64
	// For Split: the key. For Create: the rank in the group, or Undefined. For windows: the number
	// of elements of this rank's part.
	key int64
	id  uint64 // the new communicator's id, if this rank becomes its rank 0
}

// split does the work of Split for the call k. name is the call's name in errors.
func (c *Comm) split(name string, k calls.Call, color, key int) (*Comm, error) {
	l, err := c.begin(name)
	if err != nil {
		return nil, err
	}
	s := l.s
	if color < 0 && color != Undefined {
		return nil, l.end(fmt.Errorf("%w: colour %d is negative and not Undefined", ErrArg, color))
	}
	all, err := l.allgatherArgs(k, splitArgs{color: int64(color), key: int64(key)})
	if err != nil {
		return nil, l.end(err)
	}
	type member struct {
		key  int64
		rank int
	}
	var members []member
	for r := range all {
		if all[r].color == int64(color) {
			members = append(members, member{all[r].key, r})
		}
	}
	// members are in the order of c's ranks. A stable sort keeps this order among equal keys.
	slices.SortStableFunc(members, func(a, b member) int {
		switch {
		case a.key < b.key:
			return -1
		case a.key > b.key:
			return 1
		}
		return 0
	})
	ranks := make([]int, len(members))
	lowest := s.rank // of the ranks with this colour, the lowest one has chosen the id
	for i, m := range members {
		ranks[i] = m.rank
		lowest = min(lowest, m.rank)
	}
	id := all[lowest].id
	if err := l.end(nil); err != nil || color == Undefined {
		return nil, err
	}
	return c.part(id, ranks), nil
}

// allgatherArgs sends own, the arguments of this rank, to all ranks, and returns the arguments of
// all ranks, by rank. It sets own.id to a new id. k has the kind and the root of the call. The slice
// is scratch memory of l, valid until l.end.
func (l *link) allgatherArgs(k calls.Call, own splitArgs) ([]splitArgs, error) {
	own.id = l.s.job.newID()
	all := elem.Slice[splitArgs](l.Scratch(l.Size() * elem.SizeOf[splitArgs]()))
	all[l.Rank()] = own
	l.what = coll.KindAllgather
	l.send, l.recv = elem.Bytes(all[l.Rank():l.Rank()+1]), elem.Bytes(all)
	l.sign(k.What, k.Root, 0)
	return all, l.perform()
}

// Create implements comm.Comm.Create, which documents the call.
func (c *Comm) Create(g Group) (*Comm, error) {
	l, err := c.begin("Create")
	if err != nil {
		return nil, err
	}
	s := l.s
	if !s.local.contains(g) {
		return nil, l.end(fmt.Errorf("%w: the communicator does not have all processes of the group", ErrGroup))
	}
	self := slices.Index(g.ranks, s.job.number)
	if self < 0 {
		self = Undefined
	}
	all, err := l.allgatherArgs(calls.Call{What: calls.KindCreate}, splitArgs{color: s.hashOf(g), key: int64(self)})
	if err != nil || self == Undefined {
		return nil, l.end(err)
	}
	ranks, err := g.Translate(countUp(g.Size()), s.group)
	if err != nil {
		return nil, l.end(err)
	}
	for i, r := range ranks {
		if all[r].color != s.hashOf(g) || all[r].key != int64(i) {
			return nil, l.end(fmt.Errorf("%w: %s passed another group", ErrGroup, s.rankName(r)))
		}
	}
	if s.inter != nil {
		if ranks, err = s.membersOf(all, s.inter.Local); err == nil {
			var remote []int
			remote, err = s.membersOf(all, s.inter.Remote)
			ranks = append(ranks, remote...)
		}
		if err != nil {
			return nil, l.end(err)
		}
	}
	id := all[slices.Min(ranks)].id
	if err := l.end(nil); err != nil {
		return nil, err
	}
	return c.part(id, ranks), nil
}

// membersOf returns the ranks of a group of an intercommunicator that are in the group that they pass
// to Create, in the order of that group. If they do not pass the same group, it returns ErrGroup.
func (s *state) membersOf(all []splitArgs, group coll.Span) ([]int, error) {
	var ranks []int
	for r := group.First; r < group.First+group.N; r++ {
		if all[r].key != Undefined {
			ranks = append(ranks, r)
		}
	}
	slices.SortFunc(ranks, func(a, b int) int { return int(all[a].key - all[b].key) })
	for i, r := range ranks {
		if all[r].key != int64(i) || all[r].color != all[ranks[0]].color {
			return nil, fmt.Errorf("%w: %s passed another group than %s", ErrGroup, s.rankName(r), s.rankName(ranks[0]))
		}
	}
	return ranks, nil
}

// CreateGroup implements comm.Comm.CreateGroup, which documents the call.
func (c *Comm) CreateGroup(g Group, tag int) (*Comm, error) {
	const name = "CreateGroup"
	s, err := c.live()
	if err != nil {
		return nil, c.fail(name, noRank, tag, err)
	}
	// All ranks of an intercommunicator get this error, so no rank waits for the caller.
	if err := s.checkIntra(); err != nil {
		return nil, c.fail(name, noRank, tag, err)
	}
	self := slices.Index(g.ranks, s.job.number)
	switch {
	case tag < 0 || tag > seqMask:
		err = fmt.Errorf("%w: not in 0 … %d", ErrTag, seqMask)
	case self < 0:
		err = fmt.Errorf("%w: the caller is not in the group", ErrGroup)
	case !s.group.contains(g):
		err = fmt.Errorf("%w: the communicator does not have all processes of the group", ErrGroup)
	}
	var places []int
	if err == nil {
		places, err = g.Translate(countUp(g.Size()), s.group)
	}
	if err != nil { // other members of the group may wait for the caller
		err = c.fail(name, noRank, tag, err)
		s.revoke(err)
		return nil, err
	}
	l := s.take(c, name, groupTag|tag)
	l.enterRecord()
	// CreateGroup has no place in the order of collectives, so no collective may wait for its end.
	if l.hasSlot {
		l.dropSlot()
	}
	l.sign(calls.KindCreateGroup, 0, 0)
	buf := l.Scratch(16)
	if self == 0 {
		putUint64(buf, s.job.newID())
		putUint64(buf[8:], uint64(s.hashOf(g)))
	}
	if err := l.sendDownTree(buf, places, self); err != nil {
		return nil, l.end(err)
	}
	id := getUint64(buf)
	if getUint64(buf[8:]) != uint64(s.hashOf(g)) {
		err := l.end(fmt.Errorf("%w: rank 0 of the group passed another group", ErrGroup))
		// Other members may have made the new communicator, so revoke it.
		own := s.newLike(id)
		own.revoke(err)
		own.abandon()
		return nil, err
	}
	if err := l.end(nil); err != nil {
		return nil, err
	}
	return &Comm{s: s.job.newState(id, Group{ranks: g.ranks, self: s.group.self}, self), ctx: c.ctx}, nil
}

// sendDownTree sends buf from rank places[0] to all ranks in places, down a binomial tree. self is
// the caller's index in places.
func (l *link) sendDownTree(buf []byte, places []int, self int) error {
	mask := 1
	for mask < len(places) && self&mask == 0 {
		mask *= 2
	}
	if self != 0 {
		if err := l.Recv(buf, places[self-mask]); err != nil {
			return err
		}
	}
	for mask /= 2; mask > 0; mask /= 2 {
		if child := self + mask; child < len(places) {
			if err := l.Send(buf, places[child]); err != nil {
				return err
			}
		}
	}
	return nil
}

// hashOf returns a hash of a group whose processes the communicator has. Ranks compare it to detect
// that they have passed different groups.
func (s *state) hashOf(g Group) int64 {
	h := fnv.New64a()
	_, _ = h.Write(elem.Bytes(s.job.ranksOf(g))) // never fails
	return int64(h.Sum64())
}

// countUp returns the numbers 0 to n-1.
func countUp(n int) []int {
	c := make([]int, n)
	for i := range c {
		c[i] = i
	}
	return c
}

// Self implements comm.Comm.Self, which documents the call.
func (c *Comm) Self() (*Comm, error) {
	s, err := c.live()
	if err != nil {
		return nil, c.fail("Self", noRank, noRank, err)
	}
	j := s.job
	own := j.groupOf([]int{j.world.Rank})
	return &Comm{s: j.newState(j.newID(), own, 0), ctx: c.ctx}, nil
}
