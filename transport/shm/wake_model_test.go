//go:build linux && !portable

package shm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// sleepModel is the state of a model of wait.go. Two ranks, the sleepers, sleep until a word is
// set, and a third rank, the waker, sets the word and wakes them. Each step of a rank is one access
// to shared memory.
type sleepModel struct {
	word  bool      // what the sleepers wait for
	count int       // fileHeader.sleepers
	flags [2]uint32 // card.sleep of each sleeper: awake or asleep
	at    [3]int    // the next step of each rank; the waker is the last rank
	wakes int       // the sleeper that the waker wakes next
}

// The steps of a sleeper. A program is a list of the first four, in the order in which the sleeper
// takes them.
const (
	announceCount = iota // add 1 to count
	announceFlag         // set the sleeper's flag to asleep
	lookAgain            // load the word; if it is set, go to undo
	waits                // futex_wait, which lasts while the flag is asleep
	undo                 // the sleeper does wakeRank for itself
	slept                // the sleeper has no step left
)

// step does the next step of a rank. It returns false if the rank sleeps or has no step left.
// program gives the order of a sleeper's steps.
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

// lost tries all interleavings of the ranks' steps from the state m on. It returns the number of
// interleavings after which a sleeper still sleeps although the word is set, or count is not 0.
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

// TestNoSleepIsMissed tries all interleavings of the steps by which two ranks go to sleep and a
// third wakes them. With the order of wait.go no wake-up is lost. With each of two other orders, a
// wake-up is lost in some interleaving.
func TestNoSleepIsMissed(t *testing.T) {
	require.Zero(t, sleepModel{}.lost([]int{announceCount, announceFlag, lookAgain, waits}))
	require.Positive(t, sleepModel{}.lost([]int{lookAgain, announceCount, announceFlag, waits}), "a rank that looks before it announces its sleep misses a wake")
	require.Positive(t, sleepModel{}.lost([]int{announceFlag, lookAgain, announceCount, waits}), "a rank that is counted only after its look misses a wake")
}
