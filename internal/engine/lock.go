package engine

import (
	"runtime"
	"sync/atomic"
)

// mutex is the engine's lock. In contrast to sync.Mutex, the holder can see, at the cost of a load,
// whether a goroutine waits for the lock. If no goroutine waits, to take or release the lock is one
// atomic instruction.
//
// A leader, which polls the transports for the rank, holds the lock while it polls, and lets other
// goroutines take it between two polls. All other holders keep it for a short time. So a goroutine
// that finds the lock taken tries again for a while before it sleeps.
//
//	state  ┌ number of waiters ───────┬ starving ┬ taken ┐
//	       └ bits 31 to 2             ┴ bit 1    ┴ bit 0 ┘
//
// Invariants:
//   - A goroutine in lockSlow counts as a waiter until it has the lock.
//   - A goroutine that releases the lock while there are waiters leaves a token in the channel
//     wake, unless the channel holds one, or the goroutine makes a waiter the owner (see starving).
//     A waiter that sleeps takes the token and tries again. If another goroutine has taken the lock
//     in the meantime, that goroutine leaves a token when it releases the lock. So a waiter that
//     sleeps while the lock is free always gets a token.
//   - A waiter that was woken, and finds the lock taken also after its spins and yields, sets
//     starving. The next goroutine that releases the lock then makes a waiter the owner, by a token
//     in handOff. Without this, goroutines that take the lock again and again could always be
//     faster than the waiter.
//   - While there are waiters, a goroutine takes the lock only in lockSlow.
type mutex struct {
	state   atomic.Int32
	wake    chan struct{} // wakes a waiter, which then tries again; has room for one token
	handOff chan struct{} // makes a waiter the owner of the lock; has room for one token
}

const (
	// The bits of mutex.state, and the number that a waiter adds to it.
	lockTaken    = 1
	lockStarving = 2
	lockWaiter   = 4
)

func (m *mutex) init() {
	m.wake = make(chan struct{}, 1)
	m.handOff = make(chan struct{}, 1)
}

func (m *mutex) Lock() {
	if !m.state.CompareAndSwap(0, lockTaken) {
		m.lockSlow()
	}
}

func (m *mutex) Unlock() {
	if !m.state.CompareAndSwap(lockTaken, 0) {
		m.unlockSlow()
	}
}

// TryLock takes the lock if it is free and no goroutine waits for it. It reports whether it has.
func (m *mutex) TryLock() bool { return m.state.CompareAndSwap(0, lockTaken) }

// A waiter that finds the lock taken loads the state lockSpins times. Then it loads it lockYields
// times more, with a runtime.Gosched before each load. Then it sleeps. There are few Gosched,
// because each may take a whole time slice of the Go scheduler.
const (
	lockSpins  = 50
	lockYields = 5
)

func (m *mutex) lockSlow() {
	m.state.Add(lockWaiter)
	for i, woken := 0, false; ; i++ {
		s := m.state.Load()
		if s&lockTaken == 0 {
			if m.state.CompareAndSwap(s, s-lockWaiter+lockTaken) {
				return
			}
			continue
		}
		switch {
		case i < lockSpins:
		case i < lockSpins+lockYields:
			runtime.Gosched()
		case woken && s&lockStarving == 0:
			if m.state.CompareAndSwap(s, s|lockStarving) {
				<-m.handOff // the goroutine that released the lock has left it taken for this goroutine
				return
			}
		default:
			<-m.wake
			i, woken = 0, true
		}
	}
}

func (m *mutex) unlockSlow() {
	for {
		s := m.state.Load()
		if s&lockStarving != 0 {
			if m.state.CompareAndSwap(s, s-lockWaiter-lockStarving) {
				m.handOff <- struct{}{}
				return
			}
			continue
		}
		if m.state.CompareAndSwap(s, s-lockTaken) {
			break
		}
	}
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// contended reports whether another goroutine waits for the lock. The caller holds the lock.
func (m *mutex) contended() bool { return m.state.Load() != lockTaken }

// yield releases the lock if goroutines wait for it, and takes it again after one of them has had
// the chance to take it. The caller holds the lock before and after. A leader calls yield between
// two polls.
func (m *mutex) yield() {
	if m.contended() {
		m.yieldSlow()
	}
}

func (m *mutex) yieldSlow() {
	m.Unlock()
	for i := 0; i < lockSpins+lockYields && m.state.Load() >= lockWaiter; i++ {
		if i >= lockSpins {
			runtime.Gosched()
		}
	}
	m.Lock()
}
