package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/weft-hpc/weft/comm"
)

// job is the state of this rank.
type job struct {
	options
	groups []group    // by slot; the first is the communicator of all ranks
	own    *rand.Rand // gives different numbers on each rank

	activity atomic.Pointer[string] // describes the current operation; printed on SIGUSR1
	failed   sync.Once              // for the first call of job.fail
	// With -survive: the rank exits at its first failed call, which is a second failure for the
	// other ranks.
	leaves bool
}

func newJob(c *comm.Comm, o options) *job {
	j := &job{options: o, own: rand.New(rand.NewPCG(o.seed, ^uint64(c.Rank()))), groups: make([]group, slots)}
	j.leaves = j.own.IntN(2) == 0 && !o.recover
	j.setActivity("nothing yet")
	j.groups[0].Comm = c
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() { // ends with the process
		for range asked {
			fmt.Fprintf(os.Stderr, "rank %d: %s\n", c.Rank(), *j.activity.Load())
		}
	}()
	return j
}

// world returns the communicator of all ranks.
func (j *job) world() *comm.Comm { return j.groups[0].Comm }

func (j *job) setActivity(what string) { j.activity.Store(&what) }

// run does the operations from first to end-1, and stops when one fails.
func (j *job) run() error {
	for i := j.first; j.end == 0 || i < j.end; i++ {
		if err := j.operation(i); err != nil {
			return j.fail(fmt.Errorf("seed %d, %d ranks, %s: %w", j.seed, j.world().Size(), *j.activity.Load(), err))
		}
	}
	j.setActivity("freeing communicators")
	for i := range j.groups[1:] {
		if err := j.groups[1+i].free(); err != nil {
			return j.fail(fmt.Errorf("seed %d, %d ranks, at the end: %w", j.seed, j.world().Size(), err))
		}
	}
	return nil
}

// fail handles err, the error of a call of this rank, and returns err. At its first call it prints
// the error, if -survive is set; then the rank exits, if leaves is set. Otherwise fail revokes all
// communicators of the rank. So calls of the rank's other goroutines, and calls of other ranks that
// wait for this rank, return errors.
func (j *job) fail(err error) error {
	j.failed.Do(func() {
		if j.survive {
			report(err)
			if j.leaves {
				os.Exit(0)
			}
		}
		for _, g := range j.groups {
			// Revoke returns an error if the slot is empty or its communicator was freed, which
			// does not matter.
			_ = g.Revoke()
		}
	})
	return err
}

// regroup is the weight of the operation job.regroup, which is not in operations.
const regroup = 8

// choice is an operation on a communicator. Its probability is proportional to its weight.
type choice struct {
	name   string
	weight int
	run    func(k *call) error
}

var operations = []choice{
	{"collectives", 40, func(k *call) error { return k.subject().collectives(k) }},
	{"messages", 25, func(k *call) error { return k.subject().messages(k) }},
	{"ring", 5, func(k *call) error { return k.subject().ring(k) }},
	{"barriers", 3, barriers},
	{"sums", 4, sums},
	{"parts", 4, parts},
	{"persistent", 6, persistent},
	{"requests", 3, requests},
	{"shared", 3, shared},
	{"attributes", 2, attributes},
	{"sets", 2, sets},
	{"neighbors", 5, neighbors},
	{"intercomm", 5, intercomm},
	{"files", 5, files},
	{"spawn", 2, spawn},
	{"connect", 3, connect},
	{"sessions", 3, sessions},
	{"sparse", 4, sparse},
	{"values", 4, values},
	{"views", 6, func(k *call) error { return k.subject().views(k) }},
	{"window", 12, func(k *call) error { return k.subject().window(k) }},
	{"regions", 6, func(k *call) error { return k.subject().regions(k) }},
	{"crowd", 3, crowd},
	{"contention", 5, func(k *call) error { return contentions[k.rng.IntN(len(contentions))](k) }},
}

// weigh returns the weight of an operation, or 0 if -only does not name it.
func (j *job) weigh(o choice) int {
	if len(j.only) > 0 && !slices.Contains(j.only, o.name) {
		return 0
	}
	return o.weight
}

// crowdAt replaces three of four random numbers by the number that selects the operation crowd. It
// implements -crowds.
func (j *job) crowdAt(drawn int) int {
	if drawn%4 == 0 {
		return drawn
	}
	at := 0
	for _, o := range operations {
		if o.name == "crowd" && j.weigh(o) > 0 {
			return at
		}
		at += j.weigh(o)
	}
	return drawn // the job does no crowd
}

// tagsPerOperation is the number of tags that an operation may use. Consecutive operations use different
// tags.
const tagsPerOperation = 64

// operation does operation number i. The first one is always regroup; until a recovery there is no
// regroup. All ranks draw the same
// operation and the same slot from rng. The slot may hold a different communicator on different
// ranks. The ranks of each of these communicators do the operation on it, and draw the same further
// numbers from rng.
func (j *job) operation(i int) error {
	rng := rand.New(rand.NewPCG(j.seed, uint64(i)))
	regroup, first := regroup, i == j.first
	if j.recover && i < firstRecovered {
		regroup, first = 0, false
	}
	total := regroup
	for _, o := range operations {
		total += j.weigh(o)
	}
	drawn := rng.IntN(total) - regroup
	if j.crowds && drawn >= 0 {
		drawn = j.crowdAt(drawn)
	}
	if drawn < 0 || first {
		j.setActivity(fmt.Sprintf("operation %d: new communicators", i))
		return j.regroup(i, rng)
	}
	slot := max(rng.IntN(2*slots)-slots, 0) // in 6 of 10 cases 0, the communicator of all ranks
	g := j.groups[slot]
	if g.Comm == nil {
		return nil
	}
	for _, o := range operations {
		if drawn -= j.weigh(o); drawn >= 0 {
			continue
		}
		j.setActivity(fmt.Sprintf("operation %d: %s in slot %d of %d ranks", i, o.name, slot, g.Size()))
		k := &call{job: j, c: g.Comm, rng: rng, own: j.own, salt: mix(j.seed, uint64(i), uint64(g.lowest)), tag: i % 1000 * tagsPerOperation}
		k.budget = drawBudget(rng, j.bytes)
		k.delay()
		err := o.run(k)
		if err == nil {
			err = k.close()
		}
		return err
	}
	return errors.New("no operation was drawn")
}
