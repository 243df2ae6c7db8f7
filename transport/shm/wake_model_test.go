//go:build linux && !portable

package shm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// sleepModel models the steps of wait.go: two ranks that sleep until a word is set, and a third
// that sets it, the waker. Each step is one access to shared memory.
type sleepModel struct {
	word  bool
	count int // fileHeader.sleepers
	flags [2]uint32
	at    [3]int // the next step of each rank; the waker is the last one
	wakes int    // the rank that the waker wakes next
}

// The steps of a rank that sleeps. program gives their order.
const (
	announceCount = iota // add 1 to sleepers
	announceFlag         // set the flag to asleep
	lookAgain            // load the word
	waits                // futex_wait while the flag is asleep
	undo                 // if the word was set: wakeRank for itself
	slept
)

// step makes the next step of a rank. It returns false if the rank sleeps or has no step left.
func (m *sleepModel) step(rank int, program []int) bool {
	if rank == len(m.flags) {
		return m.stepWaker()
	}
	at := m.at[rank]
	if at < len(program) {
		at = program[at]
	}
	switch at {
	case announceCount:
		m.count++
	case announceFlag:
		m.flags[rank] = asleep
	case lookAgain:
		if m.word {
			m.at[rank] = undo
			return true
		}
	case waits:
		if m.flags[rank] == asleep {
			return false
		}
	case undo:
		m.wakeRank(rank)
	default:
		return false
	}
	m.at[rank]++
	if at >= waits {
		m.at[rank] = slept
	}
	return true
}

func (m *sleepModel) stepWaker() bool {
	switch at := m.at[len(m.flags)]; {
	case at == 0:
		m.word = true
	case at == 1:
		if m.count == 0 {
			m.at[len(m.flags)] = 3
			return true
		}
	case at == 2 && m.wakes < len(m.flags):
		m.wakeRank(m.wakes)
		if m.wakes++; m.wakes < len(m.flags) {
			return true
		}
	default:
		return false
	}
	m.at[len(m.flags)]++
	return true
}

func (m *sleepModel) wakeRank(rank int) {
	if m.flags[rank] == asleep {
		m.flags[rank] = awake
		m.count--
	}
}

// lost returns the number of interleavings of the steps after which a rank still sleeps although
// the word is set, or the count is wrong.
func (m sleepModel) lost(program []int) (n int) {
	moved := false
	for rank := range m.at {
		next := m
		if next.step(rank, program) {
			moved = true
			n += next.lost(program)
		}
	}
	if !moved && (m.at[0] != slept || m.at[1] != slept || m.count != 0) {
		n++
	}
	return n
}

// TestNoSleepIsMissed tries all interleavings of the steps by which ranks go to sleep and are woken.
func TestNoSleepIsMissed(t *testing.T) {
	require.Zero(t, sleepModel{}.lost([]int{announceCount, announceFlag, lookAgain, waits}))
	require.Positive(t, sleepModel{}.lost([]int{lookAgain, announceCount, announceFlag, waits}), "a rank that looks before it announces its sleep misses a wake")
	require.Positive(t, sleepModel{}.lost([]int{announceFlag, lookAgain, announceCount, waits}), "a rank that is counted only after its look misses a wake")
}
