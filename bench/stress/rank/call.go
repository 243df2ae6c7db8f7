package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/weft-hpc/weft/comm"
)

// call is one operation of this rank: the arguments, and the buffers in use. "To draw" means to choose
// at random.
type call struct {
	*job
	c      *comm.Comm // the communicator of the operation
	rng    *rand.Rand // gives the same numbers on all ranks of c, if all draw in the same order
	own    *rand.Rand // gives different numbers on each rank
	salt   uint64     // determines the test data; different for every operation and communicator
	tag    int        // the first of the tagsPerOperation tags that the operation may use
	budget int        // number of bytes that all ranks together may transfer in the operation

	depth   int  // number of Spawns between the job's own processes and those of c
	endless bool // exchange goes on until it fails

	closers []func() error // the functions that call.close calls
}

// close checks that the memory around the operation's buffers is unchanged, and frees the buffers.
func (k *call) close() error {
	for _, f := range k.closers {
		if err := f(); err != nil {
			return err
		}
	}
	k.closers = nil
	return nil
}

// wait waits for all requests, with a randomly chosen function of package comm, and returns their
// statuses.
func (k *call) wait(rs []comm.Request) ([]comm.Status, error) {
	sts := make([]comm.Status, len(rs))
	switch k.own.IntN(11) {
	case 0:
		for _, i := range k.own.Perm(len(rs)) {
			var err error
			if sts[i], err = rs[i].Wait(); err != nil {
				return sts, err
			}
		}
	case 1:
		for range rs {
			i, st, err := comm.WaitAny(rs)
			if err != nil {
				return sts, err
			}
			sts[i] = st
		}
	case 2:
		for left := len(rs); left > 0; {
			done, err := comm.WaitSome(rs, nil)
			for _, d := range done {
				sts[d.Index], err = d.Status, errors.Join(err, d.Err)
			}
			if err != nil {
				return sts, err
			}
			left -= len(done)
		}
	case 3:
		for left := len(rs); left > 0; k.delay() {
			for _, d := range comm.TestSome(rs, nil) {
				if sts[d.Index] = d.Status; d.Err != nil {
					return sts, d.Err
				}
				left--
			}
			runtime.Gosched()
		}
	case 4:
		for range rs {
			for found := false; !found; runtime.Gosched() {
				var i int
				var st comm.Status
				var err error
				if i, st, found, err = comm.TestAny(rs); err != nil {
					return sts, err
				}
				if found {
					sts[i] = st
				}
			}
		}
	case 5:
		for done := range comm.Completed(rs) {
			if done.Err != nil {
				return sts, done.Err
			}
			sts[done.Index] = done.Status
		}
	case 6:
		done, err := comm.WaitEach(rs, nil)
		return each(sts, done, err)
	case 7:
		for {
			done, all, err := comm.TestEach(rs, nil)
			if all || err != nil {
				return each(sts, done, err)
			}
			runtime.Gosched()
		}
	case 8: // Peek leaves the requests as they are
		for i, r := range rs {
			for found := false; !found; runtime.Gosched() {
				var err error
				if sts[i], found, err = r.Peek(); err != nil {
					return sts, err
				}
			}
		}
		if k.own.IntN(2) == 0 {
			return sts, comm.WaitAll(rs)
		}
		if all, err := comm.TestAll(rs); !all || err != nil {
			return sts, fmt.Errorf("TestAll of complete requests: %v, %w", all, err)
		}
	case 9:
		for i, r := range rs {
			var err error
			if sts[i], err = r.WaitContext(k.c.Context()); err != nil {
				return sts, err
			}
		}
	default:
		for i, r := range rs {
			for {
				st, ok, err := r.Test()
				if err != nil {
					return sts, err
				}
				if ok {
					sts[i] = st
					break
				}
				runtime.Gosched()
			}
		}
	}
	return sts, nil
}

// each stores the results of WaitEach or TestEach, which are done and err, in sts.
func each(sts []comm.Status, done []comm.Completion, err error) ([]comm.Status, error) {
	if err == nil && len(done) != len(sts) {
		err = fmt.Errorf("%d completions of %d requests", len(done), len(sts))
	}
	for i, d := range done {
		if d.Index != i && err == nil {
			err = fmt.Errorf("completion %d has the index %d", i, d.Index)
		}
		sts[i] = d.Status
	}
	return sts, err
}

// subject returns a random element type, the same on all ranks.
func (k *call) subject() subject { return subjects[k.rng.IntN(len(subjects))] }

// drawBudget returns a random call.budget of at most limit bytes. Most are small, so that a job does
// many operations in its time.
func drawBudget(rng *rand.Rand, limit int) int {
	switch rng.IntN(20) {
	case 0:
		return limit
	case 1, 2, 3, 4:
		return min(limit, 1<<20)
	default:
		return min(limit, 128<<10)
	}
}

// limits are sizes in bytes near which protocols and algorithms may change.
var limits = []int{8, 16, 64, 128, 256, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20}

// length returns a random number of elements of size bytes each, the same on all ranks. copies
// times that many elements fit k.budget.
func (k *call) length(size, copies int) int {
	most := k.budget / (size * max(copies, 1))
	n := 0
	switch k.rng.IntN(8) {
	case 0:
		n = k.rng.IntN(4)
	case 1, 2, 3:
		n = limits[k.rng.IntN(len(limits))]/size + k.rng.IntN(3) - 1
	default: // the logarithm of n is uniformly distributed
		n = int(math.Exp(k.rng.Float64() * math.Log(float64(most+1))))
	}
	return max(min(n, most), 0)
}

// delay sometimes delays this rank, so that the ranks do not reach their calls at the same time.
func (k *call) delay() {
	switch k.own.IntN(64) {
	case 0:
		time.Sleep(time.Duration(k.own.IntN(int(time.Millisecond))))
	case 1, 2, 3:
		for begun, d := time.Now(), time.Duration(k.own.IntN(100))*time.Microsecond; time.Since(begun) < d; {
		}
	case 4, 5, 6:
		runtime.Gosched()
	case 7:
		runtime.GC()
	}
}

// mix returns a hash of three numbers, by the finalizer of splitmix64 (Steele, Lea,
// Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
func mix(a, b, c uint64) uint64 {
	x := a ^ b*0x9e3779b97f4a7c15 ^ (c+1)*0xd1b54a32d192ed03
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// same returns nil if got equals want. Otherwise it returns an error that begins with what and describes
// the first difference.
func same[T comparable](what string, got, want []T) error {
	if len(got) != len(want) {
		return fmt.Errorf("%s: %d elements instead of %d", what, len(got), len(want))
	}
	first, n := 0, 0
	for i := range got {
		if got[i] != want[i] {
			if n++; n == 1 {
				first = i
			}
		}
	}
	if n > 0 {
		return fmt.Errorf("%s: %d of %d elements differ, the first is %d: %v instead of %v", what, n, len(got), first, got[first], want[first])
	}
	return nil
}

func newRand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// branch returns a random number generator of its own for another goroutine of this rank, because
// goroutines must not share k.own.
func (k *call) branch() *rand.Rand { return rand.New(rand.NewPCG(k.own.Uint64(), 0)) }
