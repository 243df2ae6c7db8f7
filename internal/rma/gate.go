package rma

import (
	"runtime"
	"sync/atomic"
)

// gate keeps memory mapped under the calls that touch it, and when it is shut
// lets nobody in any more.
//
//	one call at a time   alone   0 → 1 by a compare-and-swap, 1 → 0 by a store
//	those beside it      crowd   up by an addition, down by another
//	shut                 a bit of crowd
//
// Who comes makes itself seen by a full barrier and then looks whether the gate is
// shut; who shuts it does that by one and then looks who is inside. So one of the
// two sees the other.
type gate struct {
	alone atomic.Uint32
	calls uint32 // that have been alone; of whoever is
	crowd atomic.Uint64
}

// crowd counts in its lower half the calls inside, of which the highest bit
// shuts the gate, and in its upper half those that ever were.
const (
	gateShut  = 1 << 31
	gateCalls = 1 << 32

	// pauseEvery calls one looks after the engine and the other goroutines: a
	// rank that asks for an element again and again, until another changes it,
	// calls nothing that would.
	pauseEvery = 128
)

// pass is how a call has got in.
type pass uint8

const (
	passNone pass = iota // it has not
	passAlone
	passCrowd
)

// enter lets a call in unless the gate is shut.
//
// Hot path: no allocation, no lock.
func (g *gate) enter() pass {
	if g.alone.CompareAndSwap(0, 1) {
		if g.crowd.Load()&gateShut == 0 {
			return passAlone
		}
		g.alone.Store(0)
		return passNone
	}
	if g.crowd.Add(gateCalls|1)&gateShut == 0 {
		return passCrowd
	}
	g.crowd.Add(^uint64(0))
	return passNone
}

// leave ends a call that got in; pause: it is time to look after the engine.
// What the call has stored is seen before the gate is left, but only with fence
// before what the caller loads from then on.
//
// Hot path: no allocation, no lock.
func (g *gate) leave(p pass, fence bool) (pause bool) {
	if p == passCrowd {
		return g.crowd.Add(^uint64(0))/gateCalls%pauseEvery == 0
	}
	g.calls++
	pause = g.calls%pauseEvery == 0
	if fence {
		g.alone.Store(0)
	} else {
		release32(&g.alone)
	}
	return pause
}

// shut shuts the gate for good and waits until nobody is inside, which takes as
// long as a copy.
func (g *gate) shut() {
	for g.crowd.Or(gateShut); g.crowd.Load()&(gateShut-1) != 0 || g.alone.Load() != 0; {
		runtime.Gosched()
	}
}
