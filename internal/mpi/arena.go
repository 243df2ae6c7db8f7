package mpi

import (
	"context"
	"github.com/weft-hpc/weft/internal/elem"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport"
)

// arena is the shared memory that the collectives of a communicator use.
//
// The first collective makes it: each rank allocates its part, tells all ranks by
// a message where it is and whom it shares memory with, maps the parts of the
// others of its host, and tells all whether that went well. So all ranks know
// the same of all, and have arenas together or not at all.
//
// Free puts the arena into the pool when all ranks have told each other that they
// are through with it; see pool.go. On a communicator that was revoked, or has lost
// a rank, no rank knows whether another still looks at it: it stays until Finalize.
type arena struct {
	id      uint64 // of the communicator that made it; unique in the job
	ranks   []int  // world ranks of that communicator
	host    *coll.Host
	members []int // by rank within the host: the communicator's
	views   [][]byte
	own     transport.MemoryRegion
	upTo    [coll.KindExscan + 1]int // by call: what coll.SharedUpTo answers
}

// noArena stands for that there is none and will be none.
var noArena = new(arena)

// arenaInfo is what a rank tells the others.
type arenaInfo struct {
	Lowest int64 // rank that it shares memory with; itself, if no other
	Ranks  int64 // that it shares memory with, itself included
	Has    int64 // 1: it has its part, under …
	Key    uint64
}

// makeArena takes an arena from the pool or makes one. It returns noArena if not
// all ranks can.
func (l *link) makeArena() (*arena, error) {
	s := l.s
	l.recordCall() // this rank may wait for one that made another call
	if a, err := l.adopt(); a != nil || err != nil {
		return a, err
	}
	a := &arena{id: s.id, ranks: s.group.ranks}
	for r := range l.Size() {
		if r == s.rank || s.coll.SharesMemory(r) {
			a.members = append(a.members, r)
		}
	}
	total := s.job.coll.SharedBytes
	own := arenaInfo{Lowest: int64(a.members[0]), Ranks: int64(len(a.members))}
	var mem []byte
	if n := coll.ArenaBytes(total, len(a.members)); len(a.members) == 1 {
		mem, own.Has = elem.AlignedBytes(n), 1
	} else if m, mr, err := s.coll.AllocShared(n); err == nil {
		mem, a.own = m, mr
		own.Has, own.Key = 1, mr.Key()
	}
	cards := make([]arenaInfo, l.Size())
	cards[s.rank] = own
	if err := l.exchange(elem.Bytes(cards[s.rank:s.rank+1]), elem.Bytes(cards)); err != nil {
		return nil, err
	}
	lowest, ok := groupByHost(cards)
	if !ok {
		a.release(s)
		return noArena, nil
	}
	shape := coll.NewShape(lowest)
	err := a.connect(s, shape, cards, mem)
	good := make([]byte, l.Size())
	if err == nil {
		good[s.rank] = 1
	}
	if err := l.exchange(good[s.rank:s.rank+1], good); err != nil {
		return nil, err
	}
	for _, g := range good {
		if g == 0 {
			a.release(s)
			return noArena, nil
		}
	}
	for k := range a.upTo {
		a.upTo[k] = coll.SharedUpTo(s.job.coll, a.host, coll.Kind(k))
	}
	return a, nil
}

// exchange is an allgather by messages.
func (l *link) exchange(own, all []byte) error { return coll.Allgather(l, nil, own, all) }

// hosts is by rank the lowest rank that it shares memory with; ok: the ranks
// agree, all have their part of the arena, and there is a host of several.
func groupByHost(cards []arenaInfo) (lowest []int, ok bool) {
	lowest = make([]int, len(cards))
	ranks := make([]int64, len(cards)) // by lowest rank
	for r, c := range cards {
		if c.Has == 0 || c.Lowest < 0 || c.Lowest > int64(r) {
			return nil, false
		}
		lowest[r] = int(c.Lowest)
		ranks[c.Lowest]++
	}
	for r, c := range cards {
		if c.Ranks != ranks[lowest[r]] || lowest[lowest[r]] != lowest[r] {
			return nil, false
		}
		ok = ok || c.Ranks > 1
	}
	return lowest, ok
}

// connect maps the parts of the others of this rank's host.
func (a *arena) connect(s *state, shape coll.Shape, cards []arenaInfo, mem []byte) error {
	arenas := make([][]byte, len(a.members))
	for i, r := range a.members {
		arenas[i] = mem
		if r == s.rank {
			continue
		}
		view, err := s.coll.MapShared(r, cards[r].Key)
		if err != nil {
			return err
		}
		a.views = append(a.views, view)
		arenas[i] = view
	}
	var err error
	a.host, err = coll.NewHost(shape, s.rank, arenas, s.job.coll.SharedBytes)
	return err
}

// release gives the memory back. No rank uses it any more.
func (a *arena) release(s *state) {
	// Errors would be of memory that is of no use to anyone.
	for _, v := range a.views {
		_ = s.coll.UnmapShared(v)
	}
	if a.own != nil {
		_ = s.coll.FreeShared(a.own)
	}
}

// closeSlotTimeout bounds how long an engine that closes waits for a collective to
// leave the arena: its waits have ended, and only a function of the program's
// may hold it up.
const closeSlotTimeout = 5 * time.Second

// closeSlots sees to it that nobody is in shared memory that goes.
func (j *job) closeSlots() {
	ctx, cancel := context.WithTimeout(context.Background(), closeSlotTimeout)
	defer cancel()
	j.stall.mu.Lock()
	states := make([]*state, 0, len(j.stall.states))
	for _, s := range j.stall.states {
		states = append(states, s)
	}
	j.stall.mu.Unlock()
	for _, s := range states {
		_ = s.closeSlot(ctx) // the time is over: there is nothing else to be done
	}
}

var _ coll.HostLink = (*link)(nil)

// Host is comm.link.Host.
func (l *link) Host() (*coll.Host, int) {
	if l.arena == nil {
		return nil, coll.Unpicked
	}
	return l.arena.host, l.algorithm
}

// Sig is comm.link.Sig.
func (l *link) Sig() uint16 { return l.env.Sig }

// Await is comm.link.Await.
func (l *link) Await(rank int, word *atomic.Uint64, least uint64) error {
	peer := l.arena.members[rank]
	if l.unrecorded {
		l.recordCall()
	}
	l.noteWait(peer)
	return l.s.coll.Await(l.ctx, peer, word, least)
}

// Wake is comm.link.Wake.
//
// Hot path: no allocation, no system call but to wake who sleeps.
func (l *link) Wake() { l.arena.wake(l.s) }

// wake wakes the other ranks of the host that sleep.
func (a *arena) wake(s *state) { s.coll.WakeAll(a.members) }

// Mismatch is comm.link.Mismatch.
func (l *link) Mismatch(rank int) error {
	return &engine.MismatchError{Rank: l.arena.members[rank]}
}

// Miscount is comm.link.Miscount.
func (l *link) Miscount(rank, have, want int) error {
	return l.wrongSent(l.arena.members[rank], have, want)
}
