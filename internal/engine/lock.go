package engine

import (
	"runtime"
	"sync/atomic"
)

// mutex is the engine's lock. Goroutines hold it for a short time, except a leader: it holds the
// lock while it polls, and lets other goroutines take it between two polls. So a goroutine that
// finds the lock taken tries again for a while before it sleeps. The lock differs from sync.Mutex
// in two things: the holder sees at the cost of a load whether a goroutine waits; and if no
// goroutine waits, taking and releasing the lock are one atomic instruction each.
//
//	state  ┌ waiters ─────────────────┬ starving ┬ taken ┐
//	       └ bits 31 to 2             ┴ bit 1    ┴ bit 0 ┘
//
// Invariants:
//   - A goroutine in lockSlow counts as a waiter until it has the lock.
//   - A goroutine that releases the lock while there are waiters leaves a token in wake. A waiter
//     that sleeps takes the token and tries again. So a waiter that sleeps while the lock is free
//     will get a token. A goroutine that takes the lock before this waiter leaves another token.
//   - A waiter that was woken but found the lock taken sets starving. The next holder that
//     releases the lock makes a waiter the owner, by a token in handOff. Otherwise each holder
//     would wake the waiter, and the next one would take the lock before the waiter runs.
//   - While there are waiters, a goroutine takes the lock only by lockSlow.
type mutex struct {
	state   atomic.Int32
	wake    chan struct{} // has room for one token
	handOff chan struct{} // has room for one token
}

const (
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

// TryLock takes the lock if it is free and no goroutine waits for it.
func (m *mutex) TryLock() bool { return m.state.CompareAndSwap(0, lockTaken) }

// A waiter loads the state lockSpins times, then lockYields times with a runtime.Gosched before
// each, then it sleeps. A Gosched may take a time slice of the runtime.
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
				<-m.handOff // this goroutine now owns the lock
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

// contended reports whether a goroutine waits for the lock. The caller holds the lock.
func (m *mutex) contended() bool { return m.state.Load() != lockTaken }

// yield lets goroutines that wait for the lock take it. The caller holds the lock before and
// after. A leader calls yield between two polls.
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
