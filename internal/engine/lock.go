package engine

import (
	"runtime"
	"sync/atomic"
)

// mutex is the engine's lock. Sections under it are short, but for that of a
// leader, which holds it while it polls and lets others in between two polls
// where some wait. So who finds it taken tries again for a while before it
// sleeps. It differs from sync.Mutex in two things: the holder sees at the cost
// of a load whether anybody waits, and taking and freeing it when nobody does
// are one atomic instruction each, without a test before.
//
//	state  ┌ waiters ─────────────────┬ taken ┐
//	       └ bits 31 to 1             ┴ bit 0 ┘
//
// Invariants:
//   - a goroutine in lockSlow counts as a waiter until it has the lock;
//   - who frees the lock while there are waiters leaves a token in wake, and who
//     sleeps takes it and tries again; so a waiter that sleeps while the lock is
//     free has a token coming, and each holder that it loses to leaves another;
//   - with waiters nobody takes the lock but by lockSlow: none is passed by for long.
type mutex struct {
	state atomic.Int32
	wake  chan struct{} // of one token
}

const (
	lockTaken  = 1
	lockWaiter = 2
)

func (m *mutex) init() { m.wake = make(chan struct{}, 1) }

func (m *mutex) lock() {
	if !m.state.CompareAndSwap(0, lockTaken) {
		m.lockSlow()
	}
}

func (m *mutex) unlock() {
	if m.state.Add(-lockTaken) != 0 {
		m.unlockSlow()
	}
}

// TryLock takes the lock if it is free and nobody waits for it.
func (m *mutex) TryLock() bool { return m.state.CompareAndSwap(0, lockTaken) }

// Lock is lock, for sync.Cond.
func (m *mutex) Lock() { m.lock() }

// Unlock is unlock, for sync.Cond.
func (m *mutex) Unlock() { m.unlock() }

// A waiter looks at the lock so often, then so often between turns of other
// goroutines, then sleeps. A turn may take a time slice of the runtime.
const (
	lockGlances = 50
	lockTurns   = 5
)

func (m *mutex) lockSlow() {
	m.state.Add(lockWaiter)
	for i := 0; ; i++ {
		if s := m.state.Load(); s&lockTaken == 0 {
			if m.state.CompareAndSwap(s, s-lockWaiter+lockTaken) {
				return
			}
			continue
		}
		switch {
		case i < lockGlances:
		case i < lockGlances+lockTurns:
			runtime.Gosched()
		default:
			<-m.wake
			i = 0
		}
	}
}

func (m *mutex) unlockSlow() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// contended says that somebody waits for the lock, which the caller holds.
func (m *mutex) contended() bool { return m.state.Load() != lockTaken }

// breathe lets those in who wait for the lock. The leader calls it between two
// polls.
func (m *mutex) breathe() {
	if m.contended() {
		m.breatheSlow()
	}
}

func (m *mutex) breatheSlow() {
	m.unlock()
	for i := 0; i < lockGlances+lockTurns && m.state.Load() >= lockWaiter; i++ {
		if i >= lockGlances {
			runtime.Gosched()
		}
	}
	m.lock()
}
