package mpi

import (
	"fmt"
	"github.com/weft-hpc/weft/internal/elem"
	"hash/fnv"
	"slices"

	"github.com/weft-hpc/weft/internal/coll"
)

// Split is comm.Comm.Split.
func (c *Comm) Split(color, key int) (*Comm, error) { return c.split("Split", color, key) }

// SplitNode is comm.Comm.SplitNode.
func (c *Comm) SplitNode(key int) (*Comm, error) {
	color := 0
	if s, err := c.live(); err == nil {
		color = s.job.world.HostOf[s.job.world.Rank]
	}
	return c.split("SplitNode", color, key)
}

// card is what a rank tells the others when communicators are made of parts:
// every rank gathers those of all, and sorts the few that concern it.
type card struct {
	color int64 // or what identifies the group
	key   int64
	id    uint64 // that the communicator gets if this rank becomes its rank 0
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
	cards, err := l.gatherCards(kindSplit, card{color: int64(color), key: int64(key)})
	if err != nil {
		return nil, l.end(err)
	}
	type member struct {
		key  int64
		rank int
	}
	var members []member
	for r := range cards {
		if cards[r].color == int64(color) {
			members = append(members, member{cards[r].key, r})
		}
	}
	// In c's order already: a stable sort keeps it where keys are equal.
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
	id := cards[members[0].rank].id
	if err := l.end(nil); err != nil || color == Undefined {
		return nil, err
	}
	return &Comm{s: s.job.newState(id, Group{ranks: ranks, self: s.group.self}, own), ctx: c.ctx}, nil
}

// gatherCards gives every rank's card to all; they are scratch memory.
func (l *link) gatherCards(sign coll.Kind, own card) ([]card, error) {
	own.id = l.s.job.newID()
	all := elem.Slice[card](l.Scratch(l.Size() * elem.SizeOf[card]()))
	all[l.Rank()] = own
	l.what = coll.KindAllgather
	l.send, l.recv = elem.Bytes(all[l.Rank():l.Rank()+1]), elem.Bytes(all)
	l.sign(sign, 0, 0)
	return all, l.perform()
}

// Create is comm.Comm.Create.
func (c *Comm) Create(g Group) (*Comm, error) {
	l, err := c.begin("Create")
	if err != nil {
		return nil, err
	}
	s := l.s
	if !s.group.contains(g) {
		return nil, l.end(fmt.Errorf("%w: it has processes that the communicator has not", ErrGroup))
	}
	self := slices.Index(g.ranks, s.job.world.Rank)
	if self < 0 {
		self = Undefined
	}
	cards, err := l.gatherCards(kindCreate, card{color: g.hash(), key: int64(self)})
	if err != nil || self == Undefined {
		return nil, l.end(err)
	}
	places, err := g.Translate(countUp(g.Size()), s.group)
	if err != nil {
		return nil, l.end(err)
	}
	for i, r := range places {
		if cards[r].color != g.hash() || cards[r].key != int64(i) {
			return nil, l.end(fmt.Errorf("%w: rank %d gave another", ErrGroup, r))
		}
	}
	id := cards[places[0]].id
	if err := l.end(nil); err != nil {
		return nil, err
	}
	return &Comm{s: s.job.newState(id, Group{ranks: g.ranks, self: s.group.self}, self), ctx: c.ctx}, nil
}

// CreateGroup is comm.Comm.CreateGroup.
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
		return nil, c.fail(name, noRank, tag, fmt.Errorf("%w: the caller is not in it", ErrGroup))
	}
	if !s.group.contains(g) {
		return nil, c.fail(name, noRank, tag, fmt.Errorf("%w: it has processes that the communicator has not", ErrGroup))
	}
	places, err := g.Translate(countUp(g.Size()), s.group)
	if err != nil {
		return nil, c.fail(name, noRank, tag, err)
	}
	l := s.take(c, name, groupTag|tag)
	if l.hasSlot { // it is in no order with the collectives, and none may have to wait for its end
		l.dropSlot()
	}
	l.sign(kindCreateGroup, 0, 0)
	buf := l.Scratch(16)
	if self == 0 {
		putUint64(buf, s.job.newID())
		putUint64(buf[8:], uint64(g.hash()))
	}
	if err := l.spread(buf, places, self); err != nil {
		return nil, l.end(err)
	}
	id := getUint64(buf)
	if getUint64(buf[8:]) != uint64(g.hash()) {
		return nil, l.end(fmt.Errorf("%w: its rank 0 gave another", ErrGroup))
	}
	if err := l.end(nil); err != nil {
		return nil, err
	}
	return &Comm{s: s.job.newState(id, Group{ranks: g.ranks, self: s.group.self}, self), ctx: c.ctx}, nil
}

// spread passes buf from the first of places to all, down a binomial tree; self
// is the caller's index.
func (l *link) spread(buf []byte, places []int, self int) error {
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

// hash identifies a group, for finding out that ranks gave different ones.
func (g Group) hash() int64 {
	h := fnv.New64a()
	_, _ = h.Write(elem.Bytes(g.ranks)) // never fails
	return int64(h.Sum64())
}

func countUp(n int) []int {
	c := make([]int, n)
	for i := range c {
		c[i] = i
	}
	return c
}
