package engine

import (
	"runtime"

	"github.com/weft-hpc/weft/internal/sys"
)

// What a port of a group that shares memory needs besides.

// Region is what ranks that share memory with this one map to reach buf, which
// lies in s, and where in it buf begins; ok is false where s is nil or no rail
// is of shared memory. Whether it can be mapped they find out. The caller holds
// the lock.
func (p *Port) Region(s *Span, buf []byte) (key uint64, off int, ok bool) {
	r := p.e.sharedRail()
	if r == nil || s == nil || s.regions[r.index] == nil {
		return 0, 0, false
	}
	return s.regions[r.index].Key(), int(address(buf) - s.start), true
}

// StopProgress says that peers need nothing of this rank's progress for the port any
// more: asynchronous progress does not look after it. The caller holds the lock.
func (p *Port) StopProgress() {
	e := p.e
	if !p.counted {
		return
	}
	p.counted = false
	if e.active--; e.active == 0 && e.asleep {
		e.signal() // it need not sleep on the transports
	}
}

// Defunct reports whether the engine is closed or has failed; mapped memory must not be
// used then. The caller holds the lock.
func (p *Port) Defunct() bool { return p.e.over() != nil }

// restEvery is how many Pauses are one that offers the processor to other
// goroutines where no ranks share it: to offer it wakes a thread that may find
// nothing to do, a matter of microseconds.
const restEvery = 32

// Pause moves the transports on once, unless another goroutine has the lock, and
// now and then offers the processor to others. A goroutine that polls shared memory
// and never waits in the engine calls it every few microseconds. The caller does not
// hold the lock.
func (p *Port) Pause() {
	e := p.e
	if e.mu.TryLock() {
		e.poll()
		p.pauses++
		rest := p.pauses%restEvery == 0 || e.policy.poll == 0
		e.mu.Unlock()
		if !rest {
			return
		}
	}
	p.Yield()
}

// Yield offers the processor to other goroutines, and to other ranks where they
// outnumber cores. The caller does not hold the lock.
func (p *Port) Yield() {
	runtime.Gosched()
	if p.e.policy.poll == 0 {
		sys.Yield()
	}
}

// Gone says whether a rank of the group has ended, as far as this rank knows. The
// caller holds the lock.
func (p *Port) Gone(rank int) bool { return p.e.peers[p.c.world(rank)].err != nil }
