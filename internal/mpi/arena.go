package mpi

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport"
)

// arena is the shared memory that the collectives of a communicator use.
//
// The first collective that may use an arena makes it. Each rank allocates its part and sends to all
// ranks the key of this part and the set of ranks that it shares memory with. Then each rank maps
// the parts of the other ranks of its host, and tells all ranks whether it could. So all ranks
// have the same information, and either all of them have an arena or none.
//
// Free puts the arena into the pool after all ranks have finished with it; see pool.go. On a
// communicator that was revoked or that has lost a rank, no rank knows whether another rank still
// reads the arena, so the arena stays until Finalize.
type arena struct {
	id      uint64 // of the communicator that made it; unique in the job
	ranks   []int  // world ranks of that communicator
	host    *coll.Host
	members []int                    // ranks in the communicator, by rank within the host
	views   [][]byte                 // mapped parts of other ranks
	own     transport.MemoryRegion   // this rank's part
	upTo    [coll.KindExscan + 1]int // result of coll.SharedUpTo for each kind of call
}

// noArena is the value of state.arena of a communicator that never has an arena.
var noArena = new(arena)

// arenaInfo is what each rank sends to all ranks about its part of an arena.
type arenaInfo struct {
	Lowest int64  // the lowest rank that it shares memory with; its own rank if there is no other
	Ranks  int64  // number of ranks that it shares memory with, including itself
	Has    int64  // 1: it has allocated its part
	Key    uint64 // of its part
}

// makeArena takes an arena from the pool or makes a new one. It returns noArena if any rank cannot
// allocate or map its parts. All ranks of the communicator call it in the same collective.
func (l *link) makeArena() (*arena, error) {
	s := l.s
	l.recordCall() // below, this rank may wait for a rank that made another call
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
	infos := make([]arenaInfo, l.Size())
	infos[s.rank] = own
	if err := l.exchange(elem.Bytes(infos[s.rank:s.rank+1]), elem.Bytes(infos)); err != nil {
		return nil, err
	}
	lowest, ok := groupByHost(infos)
	if !ok {
		a.release(s)
		return noArena, nil
	}
	shape := coll.NewShape(lowest)
	err := a.connect(s, shape, infos, mem)
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

// exchange is an allgather by messages: all gets the own part of each rank, by rank.
func (l *link) exchange(own, all []byte) error { return coll.Allgather(l, nil, own, all) }

// groupByHost returns for each rank the lowest rank that it shares memory with. ok is true if the
// ranks agree on which ranks share memory, all ranks have their part of the arena, and at least
// two ranks share memory.
func groupByHost(infos []arenaInfo) (lowest []int, ok bool) {
	lowest = make([]int, len(infos))
	ranks := make([]int64, len(infos)) // by lowest rank
	for r, c := range infos {
		if c.Has == 0 || c.Lowest < 0 || c.Lowest > int64(r) {
			return nil, false
		}
		lowest[r] = int(c.Lowest)
		ranks[c.Lowest]++
	}
	for r, c := range infos {
		if c.Ranks != ranks[lowest[r]] || lowest[lowest[r]] != lowest[r] {
			return nil, false
		}
		ok = ok || c.Ranks > 1
	}
	return lowest, ok
}

// connect maps the parts of the other ranks of this host. mem is this rank's own part.
func (a *arena) connect(s *state, shape coll.Shape, infos []arenaInfo, mem []byte) error {
	arenas := make([][]byte, len(a.members))
	for i, r := range a.members {
		arenas[i] = mem
		if r == s.rank {
			continue
		}
		view, err := s.coll.MapShared(r, infos[r].Key)
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

// release unmaps and frees the memory of the arena. The caller knows that no rank uses it any more.
func (a *arena) release(s *state) {
	// An error would only mean that memory stays allocated.
	for _, v := range a.views {
		_ = s.coll.UnmapShared(v)
	}
	if a.own != nil {
		_ = s.coll.FreeShared(a.own)
	}
}

// closeSlotTimeout bounds how long the engine waits, when it closes, for a collective to leave the
// arena. The collective's waits have ended by then, so only an operation of the program can delay it.
const closeSlotTimeout = 5 * time.Second

// closeSlots closes the slots of all communicators, so that no collective uses shared memory while
// the engine frees it. The engine calls closeSlots when it closes.
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
		_ = s.closeSlot(ctx) // after the timeout there is nothing else to try
	}
}

var _ coll.HostLink = (*link)(nil)

// Host implements coll.HostLink.
func (l *link) Host() (*coll.Host, int) {
	if l.arena == nil {
		return nil, coll.Unpicked
	}
	return l.arena.host, l.algorithm
}

// Sig implements coll.HostLink.
func (l *link) Sig() uint16 { return l.env.Sig }

// Await implements coll.HostLink.
func (l *link) Await(rank int, word *atomic.Uint64, least uint64) error {
	peer := l.arena.members[rank]
	if l.unrecorded {
		l.recordCall()
	}
	l.noteWait(peer)
	return l.s.coll.Await(l.ctx, peer, word, least)
}

// Wake implements coll.HostLink.
//
// Hot path: no allocation, and no system call unless a rank sleeps.
func (l *link) Wake() { l.arena.wake(l.s) }

// wake wakes the other ranks of the host that sleep in Await.
func (a *arena) wake(s *state) { s.coll.WakeAll(a.members) }

// Mismatch implements coll.HostLink.
func (l *link) Mismatch(rank int) error {
	return &engine.MismatchError{Rank: l.arena.members[rank]}
}

// Miscount implements coll.HostLink.
func (l *link) Miscount(rank, have, want int) error {
	return l.wrongSent(l.arena.members[rank], have, want)
}
