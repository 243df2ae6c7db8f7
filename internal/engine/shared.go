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
// Ranks whose rail has shared memory can map each other's memory and wait for words in it. The
// ranks decide what they store there. The engine lets a rank that waits sleep, wakes it, and
// reports failures to it.
//
//	writer: word.Store(n) ── Context.Wake(rank)
//	reader: Context.Await(ctx, rank of the writer, &word, n)

// SharesMemory reports whether a rank of the group and this one can map each other's memory. For
// this rank itself it reports whether any transport has shared memory.
func (c *Context) SharesMemory(rank int) bool { return c.sharedRail(rank) != nil }

// sharedRail returns the rail by which a rank of the group and this one can map each other's
// memory, or nil.
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

// sharedRail returns the first rail that has shared memory, or nil.
func (e *Engine) sharedRail() *rail {
	for i := range e.rails {
		if e.rails[i].shared != nil {
			return &e.rails[i]
		}
	}
	return nil
}

// AllocShared allocates n bytes that ranks which share memory with this one can map by the key of
// the region. FreeShared frees them.
func (c *Context) AllocShared(n int) ([]byte, transport.MemoryRegion, error) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.closedErr(); err != nil {
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

// FreeShared frees memory of AllocShared. The caller makes sure that no rank uses the memory any
// more.
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
	if err := e.closedErr(); err != nil {
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

// Wake wakes a rank of the group if it sleeps. The caller has stored a value by sync/atomic to a
// word in shared memory that the rank may wait for. Wake takes no lock and may be called at any
// time. If a rank stores a word that one of its own goroutines waits for, it calls Wake for
// itself.
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

// Await blocks until the word has reached least: until word - least, as a signed number, is not
// negative. The word is in shared memory, and a rank of the group stores it. Await returns an
// error if that rank has failed, the communicator is revoked, the engine is closed, or ctx has
// ended.
//
// Await first loads only the word for a moment; if ranks outnumber cores it yields its core a few
// times meanwhile. Then it waits like any goroutine: it leads if no other goroutine does, and so
// polls the transports. A leader loads all words that goroutines wait for between two polls, and
// once more after it has armed the transports to sleep. So a Wake either finds the leader awake
// or ends its sleep:
//
//	loads of the word, no lock ──► waiter in Engine.wordWaiters ──► leader, or follower of one
//
// Hot path: no allocation and no lock in the first part, and no system call except the yields.
func (c *Context) Await(ctx context.Context, rank int, word *atomic.Uint64, least uint64) error {
	e := c.e
	glances := e.spinLimit.Load()
	for turn := 0; ; turn++ {
		for range glances {
			if reached(word, least) {
				return nil
			}
		}
		if glances != spinsCrowded || turn == yieldsCrowded || engines.Load() > 1 {
			break
		}
		sys.Yield() // so that the rank which stores the word can run
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for !reached(word, least) {
		err := c.cannotReceive(c.world(rank))
		if err == nil {
			err = e.awaitIn(ctx, &e.wordWaiters, awaited{word: word, least: least, from: c, key: matchKey{source: c.world(rank)}})
		}
		if err != nil && !reached(word, least) { // a word that has reached least takes precedence over an error
			return err
		}
	}
	return nil
}

// reached reports whether a word, a sequence number that wraps around, has reached least.
func reached(word *atomic.Uint64, least uint64) bool { return int64(word.Load()-least) >= 0 }

// checkWords wakes the waiters whose word has reached its value, and reports whether there are
// any.
func (e *Engine) checkWords() (some bool) {
	for _, w := range e.wordWaiters {
		if w.ready || reached(w.word, w.least) {
			some = true
			e.wake(w)
		}
	}
	return some
}
