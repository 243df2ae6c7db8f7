package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/weft-hpc/weft/comm"
)

// job is this rank's view of the job.
type job struct {
	options
	groups []group    // by slot; the first is the world
	own    *rand.Rand // not the same on all ranks

	doing  atomic.Pointer[string] // for whoever asks by a signal
	failed sync.Once
	leaves bool // where a call fails this rank ends at once, so that the others see one more die
}

func newJob(c *comm.Comm, o options) *job {
	j := &job{options: o, own: rand.New(rand.NewPCG(o.seed, ^uint64(c.Rank()))), groups: make([]group, slots)}
	j.leaves = j.own.IntN(2) == 0
	j.say("nothing yet")
	j.groups[0].Comm = c
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() { // ends with the process
		for range asked {
			fmt.Fprintf(os.Stderr, "rank %d is at %s\n", c.Rank(), *j.doing.Load())
		}
	}()
	return j
}

// world is the communicator of all ranks.
func (j *job) world() *comm.Comm { return j.groups[0].Comm }

func (j *job) say(what string) { j.doing.Store(&what) }

// run does the operations, up to the first that fails.
func (j *job) run() error {
	for i := j.first; j.end == 0 || i < j.end; i++ {
		if err := j.operation(i); err != nil {
			return j.fail(fmt.Errorf("seed %d, %d ranks, %s: %w", j.seed, j.world().Size(), *j.doing.Load(), err))
		}
	}
	j.say("freeing communicators")
	for i := range j.groups[1:] {
		if err := j.groups[1+i].free(); err != nil {
			return j.fail(fmt.Errorf("seed %d, %d ranks, at the end: %w", j.seed, j.world().Size(), err))
		}
	}
	return nil
}

// fail notes this rank's first failure, and ends what it does on all its
// communicators, so that its other goroutines and the ranks that wait for it
// come back. It returns err.
func (j *job) fail(err error) error {
	j.failed.Do(func() {
		if j.survive {
			report(err)
			if j.leaves {
				os.Exit(0)
			}
		}
		for _, g := range j.groups {
			_ = g.Revoke() // nobody has it, or it has been revoked
		}
	})
	return err
}

// regroup is the weight of the operation that makes a communicator.
const regroup = 8

// operations are the others; each is drawn as often as its weight says.
var operations = []struct {
	name   string
	weight int
	run    func(k *call) error
}{
	{"collectives", 40, func(k *call) error { return k.subject().collectives(k) }},
	{"messages", 25, func(k *call) error { return k.subject().messages(k) }},
	{"ring", 5, func(k *call) error { return k.subject().ring(k) }},
	{"barriers", 3, barriers},
	{"sums", 4, sums},
	{"window", 12, func(k *call) error { return k.subject().window(k) }},
	{"crowd", 3, crowd},
	{"contention", 5, func(k *call) error { return contentions[k.rng.IntN(len(contentions))](k) }},
}

// crowdAt turns three of four operations into crowds.
func crowdAt(drawn int) int {
	if drawn%4 == 0 {
		return drawn
	}
	at := 0
	for _, o := range operations {
		if o.name == "crowd" {
			break
		}
		at += o.weight
	}
	return at
}

// tagsPerOperation are the tags that an operation has for itself.
const tagsPerOperation = 64

// operation does one. All ranks of the world draw the same; those of one
// communicator go on together, and draw from rng as often as each other.
func (j *job) operation(i int) error {
	rng := rand.New(rand.NewPCG(j.seed, uint64(i)))
	total := regroup
	for _, o := range operations {
		total += o.weight
	}
	drawn := rng.IntN(total) - regroup
	if j.crowds && drawn >= 0 {
		drawn = crowdAt(drawn)
	}
	if drawn < 0 || i == j.first {
		j.say(fmt.Sprintf("operation %d: new communicators", i))
		return j.regroup(i, rng)
	}
	slot := max(rng.IntN(2*slots)-slots, 0) // the world half of the time
	g := j.groups[slot]
	if g.Comm == nil {
		return nil
	}
	for _, o := range operations {
		if drawn -= o.weight; drawn >= 0 {
			continue
		}
		j.say(fmt.Sprintf("operation %d: %s in slot %d of %d ranks", i, o.name, slot, g.Size()))
		k := &call{job: j, c: g.Comm, rng: rng, own: j.own, salt: mix(j.seed, uint64(i), uint64(g.lowest)), tag: i % 1000 * tagsPerOperation}
		k.budget = drawBudget(rng, j.bytes)
		k.dawdle()
		err := o.run(k)
		if err == nil {
			err = k.close()
		}
		return err
	}
	return errors.New("no operation has been drawn")
}
