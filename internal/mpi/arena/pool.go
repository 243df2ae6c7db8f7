package arena

import (
	"slices"
	"sync"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
)

// Pool keeps the arenas of communicators that a rank has freed. A later communicator of the same
// processes in the same order can use one of them, and then neither allocates nor maps memory.
//
//	   the first collective of a communicator
//	     │ the pools have none         │ all ranks have the same one
//	     ▼                             ▼
//	allocate, map                    adopt ◄────────────────────┐
//	     │                             │                        │
//	     ▼                             ▼                        │
//	    IN USE by one communicator ── Free ───────────────► IDLE in the pools
//	               │                 all ranks have             │
//	               │                 finished with it           │ the pool is full, or a rank
//	               │ revoked, or a rank failed                  │ does not have the arena that
//	               ▼                                            ▼ rank 0 proposes
//	     stays until Finalize                                released
//
// A reused arena is not cleared. Its call numbers continue: the first call of the new communicator
// follows the last call of the old one, in which all ranks arrived. So the data that is still in
// the arena belongs to an earlier call, as it does between two calls of one communicator.
//
// Invariants:
//   - No rank uses an arena that is idle in the pool of any rank: a rank puts an arena into its
//     pool after all ranks have left their last collective in it.
//   - Either all ranks adopt an arena or none does. Before, they have exchanged their marks, which
//     show that all have the arena, after the same calls (coll.Host.Mark).
//   - An arena is either in the pool or belongs to one communicator.
//
// The pools of two ranks may differ, if goroutines free communicators at the same time or if the
// context of a call of Free ended. Then a proposal may fail, and the ranks make a new arena.
type Pool struct {
	mu   sync.Mutex
	idle []*Arena // in the order of put, the oldest first; at most PoolSize; guarded by mu
}

// PoolSize is the maximum number of arenas in a pool. The size of an arena is the tunable
// coll.shared_memory.
const PoolSize = 4

// take removes an arena from the pool and returns it. The arena is one of the processes in ranks,
// in this order: the one with the id or, if id is 0, the one that was put last. If there is none,
// take returns nil.
func (p *Pool) take(ranks []int, id uint64) *Arena {
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

// put adds an arena. If the pool was full, put removes the oldest arena and returns it; the caller
// releases it. Otherwise put returns nil.
func (p *Pool) put(a *Arena) (oldest *Arena) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) == PoolSize {
		oldest = p.idle[0]
		p.idle = slices.Delete(p.idle, 0, 1)
	}
	p.idle = append(p.idle, a)
	return oldest
}

// mark identifies an arena and the last call in it. Ranks compare their marks to find out whether
// they have the same arena, after the same calls.
type mark struct {
	id uint64 // of the arena; 0: the rank has none
	at uint64 // result of coll.Host.Mark, which identifies the last call
}

// adopt takes the same arena from the pools of all ranks. Each rank proposes its newest arena of
// the communicator's processes. If the proposals differ, each rank looks for the arena that rank 0
// has proposed, and the ranks tell each other whether they have it. If not all ranks have it, adopt
// returns nil, and the ranks that have it release it. After an error the arena stays until
// Finalize, because other ranks may have adopted it.
func (p *Pool) adopt(l coll.Link, c *Comm) (*Arena, error) {
	a := p.take(c.Ranks, 0)
	all := elem.Slice[mark](l.Scratch(l.Size() * elem.SizeOf[mark]()))
	same, err := compare(l, a, all)
	id := all[0].id
	if err != nil || same {
		return a, err
	}
	if a != nil && a.id != id {
		p.keep(a, c.Context)
		a = nil
	}
	if id == 0 {
		return nil, nil
	}
	if a == nil {
		a = p.take(c.Ranks, id)
	}
	same, err = compare(l, a, all)
	if err == nil && !same && a != nil {
		a.release(c.Context)
		a = nil
	}
	return a, err
}

// compare gathers the marks of all ranks into all, by rank, and reports whether all marks are
// equal. a is the arena that this rank proposes; nil: none.
func compare(l coll.Link, a *Arena, all []mark) (same bool, err error) {
	own := all[l.Rank():][:1]
	own[0] = mark{}
	if a != nil {
		own[0] = mark{a.id, a.Host.Mark()}
	}
	err = exchange(l, elem.Bytes(own), elem.Bytes(all))
	return !slices.ContainsFunc(all, func(m mark) bool { return m != all[0] }), err
}

// Recycle puts the arena of a communicator that is being freed into the pool. ctx is a context of
// that communicator. The caller makes sure that all ranks have finished with the arena.
func (p *Pool) Recycle(a *Arena, ctx *engine.Context) {
	a.Host.Detach()
	p.keep(a, ctx)
}

// keep puts an arena into the pool, and releases the oldest one if the pool was full.
func (p *Pool) keep(a *Arena, ctx *engine.Context) {
	if oldest := p.put(a); oldest != nil {
		oldest.release(ctx)
	}
}

// Idle returns the number of arenas in the pool, for tests.
func (p *Pool) Idle() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle)
}

// Lose releases the arenas in the pool, for tests. ctx may be a context of any communicator.
func (p *Pool) Lose(ctx *engine.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.idle {
		a.release(ctx)
	}
	p.idle = nil
}
