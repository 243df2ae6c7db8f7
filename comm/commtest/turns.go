package commtest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// The order of parallel tests
//
// The ranks of a job must make their calls of Run in the same order, but package testing starts
// parallel tests in any order. So a call of Run waits for its turn:
//
//	process 0: Run in A, B ──┐                          ┌──► B
//	process 1: Run in B    ──┼─ exchange of the names ──┼──► B, which all have
//	process 2: Run in B, A ──┘                          └──► B
//
// In each process one of the goroutines that wait, the conductor, exchanges the names of the tests
// that wait. If all processes have a name in common, that test has its turn. Otherwise another test
// may reach Run, so the conductors repeat the exchange. If no goroutine of any process can reach Run
// before a test has its turn, the processes run different tests.

// turns holds the calls of Run in this process that wait for their turn.
var turns struct {
	sync.Mutex
	waiting []*turn
	// A conductor is at work, or a test has its turn.
	busy bool
}

// turn is a call of Run that waits.
type turn struct {
	name string
	// Gets nil when the call has its turn, an error if the processes run different tests, and
	// errConduct if the goroutine is to be the conductor.
	granted chan error
}

// errConduct makes a goroutine that waits for its turn the conductor.
var errConduct = errors.New("conduct")

// offer is what a process tells the others about its tests.
type offer struct {
	Names []string // of the tests that wait
	Final bool     // no other test can reach Run before one of these has had its turn
}

// awaitTurn blocks until it is the turn of the test t in all processes. The caller then calls
// endTurn.
func awaitTurn(t testing.TB) error {
	w := &turn{t.Name(), make(chan error, 1)}
	turns.Lock()
	turns.waiting = append(turns.waiting, w)
	if !turns.busy {
		turns.busy = true
		w.granted <- errConduct
	}
	turns.Unlock()
	for {
		//nolint:errorlint // awaitTurn and conduct exchange the value itself
		if err := <-w.granted; err != errConduct {
			return err
		}
		conduct()
	}
}

// endTurn ends the turn of a test. Another test that waits becomes the conductor.
func endTurn() {
	turns.Lock()
	defer turns.Unlock()
	turns.busy = len(turns.waiting) > 0
	if turns.busy {
		turns.waiting[0].granted <- errConduct
	}
}

// conduct grants a turn to a test, or fails one. It blocks until all processes have a test that waits.
func conduct() {
	const longest = 50 * time.Millisecond
	for pause := time.Millisecond; ; pause = min(2*pause, longest) {
		var own offer
		turns.Lock()
		for _, w := range turns.waiting {
			own.Names = append(own.Names, w.name)
		}
		turns.Unlock()
		own.Final = testsWait()
		all, err := comm.AllgatherValue(world, own)
		if err == nil {
			if name, ok := common(all); ok {
				grant(name, nil)
				return
			}
			err = differs(all)
		}
		if err != nil {
			grant(own.Names[0], err)
			return
		}
		time.Sleep(pause)
	}
}

// grant ends the wait of the first test with the name. If err is not nil, the test fails, and its
// turn is over.
func grant(name string, err error) {
	turns.Lock()
	i := slices.IndexFunc(turns.waiting, func(w *turn) bool { return w.name == name })
	w := turns.waiting[i]
	turns.waiting = slices.Delete(turns.waiting, i, i+1)
	turns.Unlock()
	w.granted <- err
	if err != nil {
		endTurn()
	}
}

// common returns the first test of process 0 for which all processes wait.
func common(all []offer) (name string, ok bool) {
	i := slices.IndexFunc(all[0].Names, func(n string) bool {
		return !slices.ContainsFunc(all, func(o offer) bool { return !slices.Contains(o.Names, n) })
	})
	if i < 0 {
		return "", false
	}
	return all[0].Names[i], true
}

// differs returns an error if the processes run different tests: none of them can offer another
// test. The processes have no test in common.
func differs(all []offer) error {
	if slices.ContainsFunc(all, func(o offer) bool { return !o.Final }) {
		return nil
	}
	other := 1 // a process that does not wait for the first test of process 0
	for slices.Contains(all[other].Names, all[0].Names[0]) {
		other++
	}
	return fmt.Errorf("commtest: the processes run different tests: rank 0 %s, and rank %d %s", all[0].Names[0], other, all[other].Names[0])
}

// testsWait reports whether each goroutine that runs a test waits: for its turn, for a subtest, or for
// the end of the test of which it is a parallel subtest.
func testsWait() bool {
	for _, g := range strings.Split(allStacks(), "\n\n") {
		if !strings.Contains(g, "testing.tRunner(") || strings.Contains(g, "commtest.awaitTurn(") {
			continue
		}
		head, _, _ := strings.Cut(g, "\n")
		blocked := strings.Contains(head, "[chan receive")
		inTesting := slices.ContainsFunc([]string{"testing.(*T).Run(", "testing.(*T).Parallel(", "testing.tRunner.func"}, func(f string) bool {
			return strings.Contains(g, f)
		})
		if !blocked || !inTesting {
			return false
		}
	}
	return true
}

// allParallel is the value of -parallel with which all parallel tests reach Run.
const allParallel = math.MaxInt32
