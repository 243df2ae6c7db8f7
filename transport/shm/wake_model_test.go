//go:build linux && !portable

package shm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// sleepModel is two ranks that want to sleep until a word is set, and one that sets it, in
// the steps of wait.go. Each step is one access to shared memory.
type sleepModel struct {
	word  bool
	count int // fileHeader.sleepers
	flags [2]uint32
	at    [3]int // the next step of each rank; the last one is the waker
	wakes int    // the sleeper that the waker looks at
}

// The steps of a rank that sleeps, in the order of program.
const (
	announceCount = iota // sleepers counts it
	announceFlag         // its flag says so
	lookAgain            // it looks at the word
	waits                // futex_wait while the flag says so
	undo                 // the word was there: what wakeRank does for itself
	slept
)

// step makes the next step of a rank, and reports whether there is one.
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

// lost returns the number of ways to interleave the steps that leave a rank asleep though
// the word is set, or leave the count wrong.
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

// TestNoSleepIsMissed tries all orders of the steps by which ranks go to sleep and are woken.
func TestNoSleepIsMissed(t *testing.T) {
	require.Zero(t, sleepModel{}.lost([]int{announceCount, announceFlag, lookAgain, waits}))
	require.Positive(t, sleepModel{}.lost([]int{lookAgain, announceCount, announceFlag, waits}), "the look comes before the announcement")
	require.Positive(t, sleepModel{}.lost([]int{announceFlag, lookAgain, announceCount, waits}), "the count comes after the look")
}
