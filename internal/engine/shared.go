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
// Ranks whose rail has shared memory can map each other's memory, and wait for words in it: numbers
// of 64 bits that another rank stores. The ranks decide what the words mean. The engine puts a
// goroutine that waits to sleep, wakes it, and reports failures to it:
//
//	writer: word.Store(n) ── Context.Wake(rank)
//	reader: Context.Await(ctx, rank of the writer, &word, n)

// SharesMemory reports whether a rank of the group and this rank can map each other's memory. For
// this rank itself it reports whether any transport of this rank has shared memory.
func (c *Context) SharesMemory(rank int) bool { return c.sharedRail(rank) != nil }

// sharedRail returns the rail through which a rank of the group and this rank can map each other's
// memory; nil: they cannot.
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

// sharedRail returns the first rail whose transport has shared memory; nil: there is none.
func (e *Engine) sharedRail() *rail {
	for i := range e.rails {
		if e.rails[i].shared != nil {
			return &e.rails[i]
		}
	}
	return nil
}

// AllocShared allocates n bytes. Ranks that share memory with this one can map them, by the key of
// the region that AllocShared returns. FreeShared frees them.
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

// FreeShared frees memory of AllocShared; mr is its region. The caller makes sure that no rank uses
// the memory any more.
func (c *Context) FreeShared(mr transport.MemoryRegion) error {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if c.e.closed {
		return nil // Engine.close frees the memory with the transports
	}
	return mr.Close()
}

// MapShared maps the memory that a rank of the group has allocated by AllocShared. key is the key
// of its region.
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

// UnmapShared unmaps memory that MapShared has returned.
func (c *Context) UnmapShared(mem []byte) error {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.sharedRail(); r != nil && !e.closed {
		return r.shared.Unmap(mem)
	}
	return nil
}

// Wake wakes a rank of the group if it sleeps. The caller has just stored a word in shared memory,
// by sync/atomic, for which the rank may wait. Wake takes no lock, and may be called at any time.
// If a goroutine waits for a word that its own rank stores, that rank calls Wake for itself.
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

// WakeAll calls Wake for each of the ranks in ranks except this one; the caller has stored words as
// for Wake. While no rank of the host sleeps, the cost of WakeAll does not depend on the number of
// ranks.
//
//	waker                                      rank that is about to sleep
//	stores the word (a full barrier)           announces itself in Asleep and in its own flag (full barriers)
//	Asleep?  no: returns                       looks at the word again
//	         yes: Notify looks at each flag    sleeps if the word has not reached its value
//
// Invariant: each side stores before it looks. So at least one of two things is true: the waker
// sees that the rank is about to sleep, or the rank sees the word and does not sleep.
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

// someAsleep reports whether a rank that shares memory with this one may be asleep, or about to
// fall asleep.
func (e *Engine) someAsleep() bool {
	for i := range e.rails {
		if s := e.rails[i].shared; s != nil && s.Asleep() {
			return true
		}
	}
	return false
}

// Await blocks until the word has reached least: until word - least, as a signed number, is not
// negative. So the word may wrap around. The word is in shared memory, and rank is the rank of the
// group that stores it. Await returns an error if that rank has ended or is in Finalize, the
// communicator is revoked, the engine is closed or has failed, or ctx has ended.
//
// Await first only loads the word, for about a microsecond. If ranks outnumber cores or another
// thread wants the core, it loads the word fewer times, and yields the core a few times in between.
// Then Await waits like any goroutine in the engine: it leads if no other goroutine does, which
// means that it polls the transports. A leader loads all words that goroutines of its rank wait for
// after each poll, and once more after it has armed the transports for a sleep. So a Wake either
// finds the leader awake, or ends its sleep:
//
//	loads of the word, no lock ──► waiter in Engine.wordWaiters ──► leader, or follower of one
//
// Hot path: no allocation and no lock before the first poll, and no system call except the yields.
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
		sys.Yield() // because the rank that stores the word may need this core
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for !reached(word, least) {
		err := c.cannotReceive(c.world(rank))
		if err == nil {
			err = e.awaitIn(ctx, &e.wordWaiters, awaited{word: word, least: least, from: c, key: matchKey{source: c.world(rank)}})
		}
		// If the word has reached least, Await returns nil in spite of the error.
		if err != nil && !reached(word, least) {
			return err
		}
	}
	return nil
}

// reached reports whether a word has reached least. The word is a sequence number that wraps
// around, so reached looks at the sign of the difference.
func reached(word *atomic.Uint64, least uint64) bool { return int64(word.Load()-least) >= 0 }

// checkWords wakes the waiters of Context.Await whose word has reached the value that they wait
// for. It reports whether there are such waiters.
func (e *Engine) checkWords() (some bool) {
	for _, w := range e.wordWaiters {
		if w.ready || reached(w.word, w.least) {
			some = true
			e.wake(w)
		}
	}
	return some
}
