package engine

import (
	"runtime"

	"github.com/weft-hpc/weft/internal/sys"
)

// Further methods of Port, for groups whose ranks share memory.

// Region returns the key by which ranks that share memory with this one map the region of buf,
// and the offset of buf in the region. s is the span that contains buf. ok is false if s is nil
// or no rail has shared memory. Region does not check that a peer can map the memory. The caller
// holds the lock.
func (p *Port) Region(s *Span, buf []byte) (key uint64, off int, ok bool) {
	r := p.e.sharedRail()
	if r == nil || s == nil || s.regions[r.index] == nil {
		return 0, 0, false
	}
	return s.regions[r.index].Key(), int(address(buf) - s.start), true
}

// StopProgress says that peers no longer need this rank's progress for the port, so asynchronous
// progress no longer serves it. The caller holds the lock.
func (p *Port) StopProgress() {
	e := p.e
	if !p.counted {
		return
	}
	p.counted = false
	if e.active--; e.active == 0 && e.asleep {
		e.signal() // the background goroutine no longer needs to sleep on the transports
	}
}

// Defunct reports whether the engine is closed or has failed. The caller must not use mapped
// memory then. The caller holds the lock.
func (p *Port) Defunct() bool { return p.e.closedErr() != nil }

// pausesPerYield is the number of Pauses per call of Yield if ranks do not outnumber cores. Yield
// wakes a thread that may find nothing to do, which takes microseconds.
const pausesPerYield = 32

// Pause polls the transports once, unless another goroutine has the lock, and calls Yield from
// time to time. A goroutine that polls shared memory and never waits in the engine calls Pause
// every few microseconds. The caller does not hold the lock.
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

// Yield offers the processor to other goroutines and, if ranks outnumber cores, the core to other
// ranks. The caller does not hold the lock.
func (p *Port) Yield() {
	runtime.Gosched()
	if p.e.policy.poll == 0 {
		sys.Yield()
	}
}

// Gone reports whether a rank of the group has ended, as far as this rank knows. The caller holds
// the lock.
func (p *Port) Gone(rank int) bool { return p.e.peers[p.c.world(rank)].err != nil }
