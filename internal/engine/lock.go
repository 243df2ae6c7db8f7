package engine

import (
	"runtime"
	"sync/atomic"
)

// mutex is the engine's lock. Sections under it are short, except a leader's: a
// leader holds the lock while it polls, and lets other goroutines in between two
// polls. So a goroutine that finds the lock taken tries again for a while before
// it sleeps. The lock differs from sync.Mutex in two things: the holder sees at
// the cost of a load whether a goroutine waits, and taking and freeing it when
// none does are one atomic instruction each.
//
//	state  ┌ waiters ─────────────────┬ starving ┬ taken ┐
//	       └ bits 31 to 2             ┴ bit 1    ┴ bit 0 ┘
//
// Invariants:
//   - a goroutine in lockSlow counts as a waiter until it has the lock;
//   - a goroutine that frees the lock while there are waiters leaves a token in
//     wake; a waiter that sleeps takes it and tries again. So a waiter that sleeps
//     while the lock is free has a token coming, and each holder that it loses to
//     leaves another;
//   - a waiter that was woken in vain is starving: the next holder that frees the
//     lock makes it the owner, by a token in handOff. Otherwise each holder would
//     wake it, and the next take the lock before it runs;
//   - while there are waiters, a goroutine takes the lock only by lockSlow.
type mutex struct {
	state   atomic.Int32
	wake    chan struct{} // of one token
	handOff chan struct{} // of one token
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

// A waiter looks at the lock so often, then so often between turns of other
// goroutines, then sleeps. A turn may take a time slice of the runtime.
const (
	lockGlances = 50
	lockTurns   = 5
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
		case i < lockGlances:
		case i < lockGlances+lockTurns:
			runtime.Gosched()
		case woken && s&lockStarving == 0:
			if m.state.CompareAndSwap(s, s|lockStarving) {
				<-m.handOff // and with it the lock
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

// contended reports whether a goroutine waits for the lock, which the caller
// holds.
func (m *mutex) contended() bool { return m.state.Load() != lockTaken }

// breathe lets goroutines in that wait for the lock. The leader calls it between
// two polls.
func (m *mutex) breathe() {
	if m.contended() {
		m.breatheSlow()
	}
}

func (m *mutex) breatheSlow() {
	m.Unlock()
	for i := 0; i < lockGlances+lockTurns && m.state.Load() >= lockWaiter; i++ {
		if i >= lockGlances {
			runtime.Gosched()
		}
	}
	m.Lock()
}
