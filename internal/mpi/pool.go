package mpi

import (
	"github.com/weft-hpc/weft/internal/elem"
	"slices"
	"sync"
)

// arenaPool keeps arenas of communicators that were freed. The next communicator
// of the same processes in the same order uses one of them, so that it neither
// allocates nor maps memory.
//
//	   the first collective of a communicator
//	     │ the pools have none         │ all ranks have the same one
//	     ▼                             ▼
//	allocate, map                    adopt ◄────────────────────┐
//	     │                             │                        │
//	     ▼                             ▼                        │
//	    IN USE by one communicator ── Free ───────────────► IDLE in the pools
//	               │                 all ranks are              │
//	               │                 through with it            │ the pool is full, or
//	               │ revoked, or a rank failed                  │ a rank has not the arena
//	               ▼                                            ▼ that rank 0 proposes
//	     stays until Finalize                                released
//
// A reused arena is not cleared. Its numbers go on: the first call of the new
// communicator follows the last call of the old one, in which all ranks arrived.
// So whatever still lies in the arena is of an earlier call, as it is within the
// life of one communicator.
//
// Invariants:
//   - No rank uses an arena that is idle in the pool of any rank: a rank puts it
//     there after all ranks have left their last collective in it.
//   - Ranks adopt an arena all together or not at all. They have told each other
//     that all have it, at the same call with the same trace (coll.Host.Mark).
//   - An arena is in one pool, or of one communicator, and never of both.
//
// The pools of two ranks may differ, where goroutines free communicators at the
// same time or a call to Free was cut short. Then a proposal may fail; it costs
// a new arena.
type arenaPool struct {
	mu   sync.Mutex
	idle []*arena // guarded by mu; the oldest first, at most poolSize
}

// poolSize bounds the memory that a rank keeps for later communicators:
// coll.shared_memory bytes for each arena.
const poolSize = 4

// take removes the newest arena of the processes in ranks, or the one with an
// id if that is not 0. It returns nil if there is none.
func (p *arenaPool) take(ranks []int, id uint64) *arena {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, a := range slices.Backward(p.idle) {
		if (id == 0 || a.id == id) && slices.Equal(a.ranks, ranks) {
			p.idle = slices.Delete(p.idle, i, i+1)
			return a
		}
	}
	return nil
}

// put adds an arena. It returns the one that must be released in its place, or nil.
func (p *arenaPool) put(a *arena) (oldest *arena) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) == poolSize {
		oldest = p.idle[0]
		p.idle = slices.Delete(p.idle, 0, 1)
	}
	p.idle = append(p.idle, a)
	return oldest
}

// mark is what a rank has of an arena.
type mark struct {
	id uint64 // 0: none
	at uint64 // coll.Host.Mark
}

// adopt takes an arena from the pools of all ranks. Each rank proposes its newest.
// If the proposals differ, all look for that of rank 0, and tell each other whether
// they have it. adopt returns nil if not all ranks have the same arena. After an
// error the arena stays until Finalize: other ranks may have adopted it.
func (l *link) adopt() (*arena, error) {
	s := l.s
	pool := &s.job.arenas
	a := pool.take(s.group.ranks, 0)
	all := elem.Slice[mark](l.Scratch(l.Size() * elem.SizeOf[mark]()))
	same, err := l.compare(a, all)
	id := all[0].id
	if err != nil || same {
		return a, err
	}
	if a != nil && a.id != id {
		s.keep(a)
		a = nil
	}
	if id == 0 {
		return nil, nil
	}
	if a == nil {
		a = pool.take(s.group.ranks, id)
	}
	same, err = l.compare(a, all)
	if err == nil && !same && a != nil {
		a.release(s)
		a = nil
	}
	return a, err
}

// compare gathers what all ranks have. It reports whether all have the same.
func (l *link) compare(a *arena, all []mark) (same bool, err error) {
	own := all[l.s.rank:][:1]
	own[0] = mark{}
	if a != nil {
		own[0] = mark{a.id, a.host.Mark()}
	}
	err = l.exchange(elem.Bytes(own), elem.Bytes(all))
	return !slices.ContainsFunc(all, func(m mark) bool { return m != all[0] }), err
}

// giveBack puts the arena of a communicator into the pool, if it has one. All
// ranks are through with it.
func (s *state) recycleArena() {
	if a := s.arena.Swap(noArena); a != nil && a != noArena {
		a.host.Detach()
		s.keep(a)
	}
}

// keep puts an arena into the pool, and releases the oldest if there are too many.
func (s *state) keep(a *arena) {
	if oldest := s.job.arenas.put(a); oldest != nil {
		oldest.release(s)
	}
}
