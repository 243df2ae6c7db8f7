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
func (c *Comm) Split(color, key int) (*Comm, error) { return c.split("Split", color, key) }

// SplitNode implements comm.Comm.SplitNode, which documents the call.
func (c *Comm) SplitNode(key int) (*Comm, error) {
	color := 0
	if s, err := c.live(); err == nil {
		color = s.job.world.HostOf[s.job.world.Rank]
	}
	return c.split("SplitNode", color, key)
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

func (c *Comm) split(name string, color, key int) (*Comm, error) {
	l, err := c.begin(name)
	if err != nil {
		return nil, err
	}
	s := l.s
	if color < 0 && color != Undefined {
		return nil, l.end(fmt.Errorf("%w: colour %d is negative and not Undefined", ErrArg, color))
	}
	all, err := l.allgatherArgs(calls.KindSplit, splitArgs{color: int64(color), key: int64(key)})
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
	own := -1
	for i, m := range members {
		ranks[i] = s.group.ranks[m.rank]
		if m.rank == s.rank {
			own = i
		}
	}
	id := all[members[0].rank].id
	if err := l.end(nil); err != nil || color == Undefined {
		return nil, err
	}
	return &Comm{s: s.job.newState(id, Group{ranks: ranks, self: s.group.self}, own), ctx: c.ctx}, nil
}

// allgatherArgs sends own, the arguments of this rank, to all ranks, and returns the arguments of
// all ranks, by rank. It sets own.id to a new id. sign is the kind of the call. The slice is
// scratch memory of l, valid until l.end.
func (l *link) allgatherArgs(sign coll.Kind, own splitArgs) ([]splitArgs, error) {
	own.id = l.s.job.newID()
	all := elem.Slice[splitArgs](l.Scratch(l.Size() * elem.SizeOf[splitArgs]()))
	all[l.Rank()] = own
	l.what = coll.KindAllgather
	l.send, l.recv = elem.Bytes(all[l.Rank():l.Rank()+1]), elem.Bytes(all)
	l.sign(sign, 0, 0)
	return all, l.perform()
}

// Create implements comm.Comm.Create, which documents the call.
func (c *Comm) Create(g Group) (*Comm, error) {
	l, err := c.begin("Create")
	if err != nil {
		return nil, err
	}
	s := l.s
	if !s.group.contains(g) {
		return nil, l.end(fmt.Errorf("%w: the communicator does not have all processes of the group", ErrGroup))
	}
	self := slices.Index(g.ranks, s.job.world.Rank)
	if self < 0 {
		self = Undefined
	}
	all, err := l.allgatherArgs(calls.KindCreate, splitArgs{color: g.hash(), key: int64(self)})
	if err != nil || self == Undefined {
		return nil, l.end(err)
	}
	places, err := g.Translate(countUp(g.Size()), s.group)
	if err != nil {
		return nil, l.end(err)
	}
	for i, r := range places {
		if all[r].color != g.hash() || all[r].key != int64(i) {
			return nil, l.end(fmt.Errorf("%w: rank %d passed another group", ErrGroup, r))
		}
	}
	id := all[places[0]].id
	if err := l.end(nil); err != nil {
		return nil, err
	}
	return &Comm{s: s.job.newState(id, Group{ranks: g.ranks, self: s.group.self}, self), ctx: c.ctx}, nil
}

// CreateGroup implements comm.Comm.CreateGroup, which documents the call.
func (c *Comm) CreateGroup(g Group, tag int) (*Comm, error) {
	const name = "CreateGroup"
	s, err := c.live()
	if err != nil {
		return nil, c.fail(name, noRank, tag, err)
	}
	if tag < 0 || tag > seqMask {
		return nil, c.fail(name, noRank, tag, fmt.Errorf("%w: not in 0 … %d", ErrTag, seqMask))
	}
	self := slices.Index(g.ranks, s.job.world.Rank)
	if self < 0 {
		return nil, c.fail(name, noRank, tag, fmt.Errorf("%w: the caller is not in the group", ErrGroup))
	}
	if !s.group.contains(g) {
		return nil, c.fail(name, noRank, tag, fmt.Errorf("%w: the communicator does not have all processes of the group", ErrGroup))
	}
	places, err := g.Translate(countUp(g.Size()), s.group)
	if err != nil {
		return nil, c.fail(name, noRank, tag, err)
	}
	l := s.take(c, name, groupTag|tag)
	// CreateGroup has no place in the order of collectives, so no collective may wait for its end.
	if l.hasSlot {
		l.dropSlot()
	}
	l.sign(calls.KindCreateGroup, 0, 0)
	buf := l.Scratch(16)
	if self == 0 {
		putUint64(buf, s.job.newID())
		putUint64(buf[8:], uint64(g.hash()))
	}
	if err := l.sendDownTree(buf, places, self); err != nil {
		return nil, l.end(err)
	}
	id := getUint64(buf)
	if getUint64(buf[8:]) != uint64(g.hash()) {
		return nil, l.end(fmt.Errorf("%w: rank 0 of the group passed another group", ErrGroup))
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

// hash returns a hash of the group. Ranks compare it to detect that they have passed different
// groups.
func (g Group) hash() int64 {
	h := fnv.New64a()
	_, _ = h.Write(elem.Bytes(g.ranks)) // never fails
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
