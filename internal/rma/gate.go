package rma

import (
	"runtime"
	"sync/atomic"
)

// gate counts the calls that access mapped memory, so that the memory stays mapped while a call is
// inside, that is, between enter and leave. After close no call can enter. Two words count the
// calls; single is the faster one:
//
//	word     counts                               enter                 leave
//	single   at most one call at a time           compare-and-swap 0→1  store 0
//	counted  calls that enter while single is 1   addition              addition
//
// A bit of counted closes the gate. A call that enters makes itself visible with a full barrier,
// and then reads whether the gate is closed. close sets the bit with a full barrier, and then reads
// whether calls are inside. So at least one of the two sees the other.
type gate struct {
	single  atomic.Uint32
	calls   uint32 // number of calls that entered by single; only the call inside accesses it
	counted atomic.Uint64
}

// The lower half of counted is the number of calls inside, and its highest bit closes the gate. The
// upper half is the number of calls that ever entered by counted.
const (
	gateClosed = 1 << 31
	gateCalls  = 1 << 32

	// One in pauseEvery calls lets the engine and other goroutines run. If a rank only reads an
	// element in a loop, until another rank changes it, no other call of the rank lets them run.
	pauseEvery = 128
)

// pass is the way in which a call has entered a gate.
type pass uint8

const (
	passNone pass = iota // the gate is closed
	passSingle
	passCounted
)

// enter enters the gate, unless it is closed; then it returns passNone.
//
// Hot path: no allocation, no lock.
func (g *gate) enter() pass {
	if g.single.CompareAndSwap(0, 1) {
		if g.counted.Load()&gateClosed == 0 {
			return passSingle
		}
		g.single.Store(0)
		return passNone
	}
	if g.counted.Add(gateCalls|1)&gateClosed == 0 {
		return passCounted
	}
	g.counted.Add(^uint64(0))
	return passNone
}

// leave ends a call that has entered. pause reports whether the caller should let the engine run.
// The stores of the call are visible before the gate is free. If fence is set, they are also
// visible before later loads of the caller.
//
// Hot path: no allocation, no lock.
func (g *gate) leave(p pass, fence bool) (pause bool) {
	if p == passCounted {
		return g.counted.Add(^uint64(0))/gateCalls%pauseEvery == 0
	}
	g.calls++
	pause = g.calls%pauseEvery == 0
	if fence {
		g.single.Store(0)
	} else {
		release32(&g.single)
	}
	return pause
}

// close closes the gate forever, and waits until no call is inside, which takes at most as long as
// the copy of one call.
func (g *gate) close() {
	for g.counted.Or(gateClosed); g.counted.Load()&(gateClosed-1) != 0 || g.single.Load() != 0; {
		runtime.Gosched()
	}
}
