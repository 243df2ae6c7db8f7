package engine

import (
	"runtime"

	"github.com/weft-hpc/weft/internal/sys"
)

// This file has the methods of Port for groups whose ranks can map each other's memory.

// Region returns what a rank that shares memory with this one needs to access buf by loads and
// stores: the key of the memory region that the rank maps, and the offset of buf in the region, in
// bytes. s is the span that contains buf. ok is false if s is nil, or if the memory of the span does
// not belong to a shared heap. Region does not check that a certain rank can map the region.
// The caller holds the lock.
func (p *Port) Region(s *Span, buf []byte) (key uint64, off int, ok bool) {
	r := p.e.sharedRail()
	if r == nil || s == nil || s.home == nil || s.regions[r.index] != s.home {
		return 0, 0, false
	}
	return s.regions[r.index].Key(), int(address(buf) - s.start), true
}

// StopProgress records that peers no longer need this rank to poll for the port, so asynchronous
// progress no longer counts the port. The caller holds the lock.
func (p *Port) StopProgress() {
	e := p.e
	if !p.counted {
		return
	}
	p.counted = false
	if e.active--; e.active == 0 && e.asleep {
		e.signal() // so that the background goroutine, if it is the one that sleeps on the transports, stops
	}
}

// Defunct reports whether the engine is closed or has failed. If so, the caller must not use memory
// that it has mapped from peers. The caller holds the lock.
func (p *Port) Defunct() bool { return p.e.closedErr() != nil }

// pausesPerYield is the number of calls of Pause per call of Yield, if ranks do not outnumber
// cores. The number is not 1, because Yield may wake a thread that finds nothing to do, which takes
// microseconds.
const pausesPerYield = 32

// Pause polls the transports once and, at every pausesPerYield-th call, calls Yield. If another
// goroutine has the lock, Pause only calls Yield. It also calls Yield if ranks outnumber cores. A
// goroutine that waits for a value in shared memory by a loop of its own calls Pause every few
// microseconds. The caller does not hold the lock.
func (p *Port) Pause() {
	e := p.e
	if e.mu.TryLock() {
		e.poll()
		p.pauseCalls++
		rest := p.pauseCalls%pausesPerYield == 0 || e.policy.poll == 0
		e.mu.Unlock()
		if !rest {
			return
		}
	}
	p.Yield()
}

// Yield lets other goroutines use the processor of the Go scheduler. If ranks outnumber cores, it
// also lets other ranks use the core. The caller does not hold the lock.
func (p *Port) Yield() {
	runtime.Gosched()
	if p.e.policy.poll == 0 {
		sys.Yield()
	}
}

// Gone reports whether this rank knows that a rank of the group has ended. After a failure of the
// engine it returns true for every other rank. The caller holds the lock.
func (p *Port) Gone(rank int) bool { return p.e.peers[p.c.world(rank)].err != nil }
