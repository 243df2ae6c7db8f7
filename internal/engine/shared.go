package engine

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"

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

// Wake rouses a rank of the group if it sleeps, after a store to shared memory
// that it may wait for. It takes no lock and may be called at any time.
//
// Hot path: no allocation, no system call but to wake who sleeps.
func (c *Context) Wake(rank int) {
	w := c.world(rank)
	if p := &c.e.peers[w]; p.rail != nil && p.rail.shared != nil && p.rail.shared.Asleep() {
		p.rail.shared.Notify(transport.Addr(w))
	}
}

// Await blocks until the word, in shared memory and set by a rank of the group,
// has reached least: until word - least, as a signed number, is not negative.
// Errors: that rank has failed, the communicator is revoked, the engine is
// closed, or ctx has ended.
//
// Hot path: no allocation, no lock and no system call while it polls.
func (c *Context) Await(ctx context.Context, rank int, word *atomic.Uint64, least uint64) error {
	e := c.e
	for int64(word.Load()-least) < 0 {
		e.mu.lock()
		e.poll()
		err := e.cannotAwait(c, c.world(rank))
		e.mu.unlock()
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			if int64(word.Load()-least) >= 0 {
				return nil
			}
			return err
		}
		runtime.Gosched()
	}
	return nil
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
