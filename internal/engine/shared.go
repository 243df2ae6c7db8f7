package engine

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/transport"
)

// Shared memory of a group
//
// Ranks whose rail is one of shared memory can map each other's memory and
// wait for words in it. The ranks decide what they store there. The engine lets a rank
// that waits sleep, wakes it, and reports failures to it.
//
//	writer: word.Store(n) ── Context.Wake(rank)
//	reader: Context.Await(ctx, rank of the writer, &word, n)

// SharesMemory reports whether a rank of the group and this one can map each other's
// memory. For this rank itself it reports whether any transport is of shared memory.
func (c *Context) SharesMemory(rank int) bool { return c.sharedRail(rank) != nil }

// sharedRail returns the rail by which a rank of the group and this one can map each
// other's memory; nil: there is none.
func (c *Context) sharedRail(rank int) *rail {
	e := c.e
	w := c.world(rank)
	if int(w) == e.rank {
		return e.sharedRail()
	}
	if r := e.peers[w].rail; r.shared != nil {
		return r
	}
	return nil
}

// sharedRail returns the first rail of shared memory, or nil.
func (e *Engine) sharedRail() *rail {
	for i := range e.rails {
		if e.rails[i].shared != nil {
			return &e.rails[i]
		}
	}
	return nil
}

// AllocShared allocates n bytes that ranks which share memory with this one can
// map by the key of the region. Closing the region frees them.
func (c *Context) AllocShared(n int) ([]byte, transport.MemoryRegion, error) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.over(); err != nil {
		return nil, nil, err
	}
	r := e.sharedRail()
	if r == nil {
		return nil, nil, transport.ErrNotSupported
	}
	mem, mr, err := r.shared.Alloc(n)
	if err != nil {
		return nil, nil, fmt.Errorf("allocate %d bytes of shared memory: %w", n, err)
	}
	return mem, mr, nil
}

// FreeShared frees memory of AllocShared. No rank may use it any more.
func (c *Context) FreeShared(mr transport.MemoryRegion) error {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if c.e.closed {
		return nil // the closed domain has freed it
	}
	return mr.Close()
}

// MapShared maps the memory that a rank of the group has allocated by AllocShared.
func (c *Context) MapShared(rank int, key uint64) ([]byte, error) {
	e := c.e
	w := c.world(rank)
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.over(); err != nil {
		return nil, err
	}
	r := c.sharedRail(rank)
	if r == nil {
		return nil, transport.ErrNotSupported
	}
	mem, err := r.shared.Map(transport.Addr(w), key)
	if err != nil {
		return nil, fmt.Errorf("map memory of rank %d: %w", rank, e.peerError(w, err))
	}
	return mem, nil
}

// UnmapShared undoes MapShared.
func (c *Context) UnmapShared(mem []byte) error {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.sharedRail(); r != nil && !e.closed {
		return r.shared.Unmap(mem)
	}
	return nil
}

// Wake wakes a rank of the group if it sleeps. The caller has stored by sync/atomic to
// shared memory that the rank may wait for. Wake takes no lock and may be called at
// any time. A rank that stores a word that it waits for itself calls Wake for itself.
//
// Hot path: no allocation, no system call except to wake a rank that sleeps.
func (c *Context) Wake(rank int) {
	e := c.e
	w := c.world(rank)
	if int(w) == e.rank {
		e.signal()
		return
	}
	if s := e.peers[w].rail.shared; s != nil && s.Asleep() {
		s.Notify(transport.Addr(w))
	}
}

// WakeAll calls Wake for each of ranks except this one. Wake's conditions hold. While no rank
// of the host sleeps, the cost of WakeAll does not depend on the number of ranks.
//
//	waker                                      rank that is about to sleep
//	stores the word (a full barrier)           announces itself in Asleep and in its own flag (full barriers)
//	Asleep?  no: returns                       looks at the word again
//	         yes: Notify looks at each flag    sleeps if the word has not reached its value
//
// Invariant: each side stores before it looks. So the waker sees the announcement, or the
// rank sees the word and does not sleep.
//
// Hot path: no allocation, no system call except to wake a rank that sleeps.
func (c *Context) WakeAll(ranks []int) {
	e := c.e
	if !e.someAsleep() {
		return
	}
	for _, r := range ranks {
		if int(c.world(r)) != e.rank {
			c.Wake(r)
		}
	}
}

// someAsleep reports whether a rank that shares memory with this one may sleep.
func (e *Engine) someAsleep() bool {
	for i := range e.rails {
		if s := e.rails[i].shared; s != nil && s.Asleep() {
			return true
		}
	}
	return false
}

// Await blocks until the word, in shared memory and set by a rank of the group,
// has reached least: until word - least, as a signed number, is not negative.
// Errors: that rank has failed, the communicator is revoked, the engine is
// closed, or ctx has ended.
//
// Await looks at the word alone for a moment; if ranks outnumber cores it yields its
// core a few times meanwhile. Then it waits like any goroutine: it leads if no other
// does, and so moves the transports on. A leader looks at all words that goroutines
// wait for between two polls, and once more when it has armed to sleep, so that Wake
// finds it awake or ends the sleep:
//
//	glances at the word, no lock ──► waiter in Engine.words ──► leader, or follower of one
//
// Hot path: no allocation, no lock, and while it looks at the word alone no system call
// except the yields.
func (c *Context) Await(ctx context.Context, rank int, word *atomic.Uint64, least uint64) error {
	e := c.e
	glances := e.glances.Load()
	for turn := 0; ; turn++ {
		for range glances {
			if reached(word, least) {
				return nil
			}
		}
		if glances != glancesCrowded || turn == turnsCrowded || engines.Load() > 1 {
			break
		}
		sys.Yield() // to the rank that we wait for
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for !reached(word, least) {
		err := c.cannotReceive(c.world(rank))
		if err == nil {
			err = e.awaitIn(ctx, &e.words, awaited{word: word, least: least, from: c, key: matchKey{source: c.world(rank)}})
		}
		if err != nil && !reached(word, least) { // a word that has got there wins over an error
			return err
		}
	}
	return nil
}

// reached reports whether a word, a sequence number that wraps around, has reached least.
func reached(word *atomic.Uint64, least uint64) bool { return int64(word.Load()-least) >= 0 }

// lookAtWords tells the waiters whose word has got there, and reports whether there are any.
func (e *Engine) lookAtWords() (some bool) {
	for _, w := range e.words {
		if w.ready || reached(w.word, w.least) {
			some = true
			e.tell(w)
		}
	}
	return some
}
