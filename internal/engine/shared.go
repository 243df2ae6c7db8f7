package engine

import (
	"context"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// Shared memory of a group
//
// Ranks whose rail is one of shared memory can map each other's memory and
// wait for words in it. What they store there is theirs; that who waits sleeps,
// is woken, and learns of failures, is the engine's.
//
//	writer: word.Store(n) ── Context.Wake(rank)
//	reader: Context.Await(ctx, rank of the writer, &word, n)

// SharesMemory says whether a rank of the group and this one can map each
// other's memory; this rank itself can if any transport is of shared memory.
func (c *Context) SharesMemory(rank int) bool {
	e := c.e
	w := c.world(rank)
	if int(w) == e.rank {
		for i := range e.rails {
			if e.rails[i].shared != nil {
				return true
			}
		}
		return false
	}
	return e.peers[w].rail.shared != nil
}

// sharedRail is the first rail of shared memory, or nil.
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
	e.mu.lock()
	defer e.mu.unlock()
	r := e.sharedRail()
	switch {
	case e.closed:
		return nil, nil, ErrClosed
	case e.fatal != nil:
		return nil, nil, e.fatal
	case r == nil:
		return nil, nil, transport.ErrNotSupported
	}
	mem, mr, err := r.shared.Alloc(n)
	if err != nil {
		return nil, nil, fmt.Errorf("allocate %d bytes of shared memory: %w", n, err)
	}
	return mem, mr, nil
}

// FreeShared frees what AllocShared allocated, which no rank uses any more.
func (c *Context) FreeShared(mr transport.MemoryRegion) error {
	c.e.mu.lock()
	defer c.e.mu.unlock()
	if c.e.closed {
		return nil // with its domain
	}
	return mr.Close()
}

// MapShared gives access to what a rank of the group allocated by AllocShared.
func (c *Context) MapShared(rank int, key uint64) ([]byte, error) {
	e := c.e
	w := c.world(rank)
	e.mu.lock()
	defer e.mu.unlock()
	r := e.sharedRail()
	if int(w) != e.rank {
		r = e.peers[w].rail
	}
	switch {
	case e.closed:
		return nil, ErrClosed
	case e.fatal != nil:
		return nil, e.fatal
	case r == nil || r.shared == nil:
		return nil, transport.ErrNotSupported
	}
	mem, err := r.shared.Map(transport.Addr(w), key)
	if err != nil {
		return nil, fmt.Errorf("map memory of rank %d: %w", rank, e.peerError(w, err))
	}
	return mem, nil
}

// UnmapShared gives up what MapShared gave.
func (c *Context) UnmapShared(mem []byte) error {
	e := c.e
	e.mu.lock()
	defer e.mu.unlock()
	if r := e.sharedRail(); r != nil && !e.closed {
		return r.shared.Unmap(mem)
	}
	return nil
}

// Wake rouses a rank of the group if it sleeps, after a store by sync/atomic to
// shared memory that it may wait for. It takes no lock and may be called at any
// time. A rank that stores what it waits for itself wakes itself too.
//
// Hot path: no allocation, no system call but to wake who sleeps.
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

// Await blocks until the word, in shared memory and set by a rank of the group,
// has reached least: until word - least, as a signed number, is not negative.
// Errors: that rank has failed, the communicator is revoked, the engine is
// closed, or ctx has ended.
//
// It looks at the word alone for a moment, and gives its core to others a few
// times where ranks outnumber cores. Then it waits as others do, leads if
// nobody does, and so moves the transports on; whoever leads looks at the words
// of all who wait for one between two polls, and once more when it has armed to
// sleep, so that Wake finds it awake or ends the sleep:
//
//	glances at the word, no lock ──► waiter in Engine.words ──► leader, or follower of one
//
// Hot path: no allocation, no lock, and no system call while it glances but those
// that give the core away.
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
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) // to whom we wait for
	}
	e.mu.lock()
	err := e.awaitWord(ctx, c, c.world(rank), word, least)
	e.mu.unlock()
	return err
}

// reached says whether a word is not before least, as sequence numbers go.
func reached(word *atomic.Uint64, least uint64) bool { return int64(word.Load()-least) >= 0 }

func (e *Engine) awaitWord(ctx context.Context, c *Context, peer int32, word *atomic.Uint64, least uint64) (err error) {
	w := e.newWaiter()
	w.word, w.least = word, least
	e.words = append(e.words, w)
	for !reached(word, least) {
		if err = e.cannotAwait(c, peer); err != nil {
			break
		}
		w.ready = false
		if err = e.await(ctx, w); err != nil {
			break
		}
	}
	for i, x := range e.words {
		if x == w {
			last := len(e.words) - 1
			e.words[i] = e.words[last]
			e.words[last] = nil
			e.words = e.words[:last]
			break
		}
	}
	w.word = nil
	e.freeWaiter(w)
	if err != nil && reached(word, least) {
		return nil // what came first is what counts
	}
	return err
}

// lookAtWords tells those whose word has got there, and says whether there are some.
func (e *Engine) lookAtWords() (some bool) {
	for _, w := range e.words {
		if w.ready || reached(w.word, w.least) {
			some = true
			e.tell(w)
		}
	}
	return some
}

// tellWords has those who wait for a word look whether it can still come.
func (e *Engine) tellWords() {
	for _, w := range e.words {
		e.tell(w)
	}
}

// cannotAwait says why a rank of the group will set no word any more, or nil.
func (e *Engine) cannotAwait(c *Context, peer int32) error {
	switch {
	case e.closed:
		return ErrClosed
	case e.fatal != nil:
		return e.fatal
	case e.revoked[c.id/2] != nil:
		return e.revoked[c.id/2]
	}
	return e.peers[peer].err
}
