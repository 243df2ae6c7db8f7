package fault

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/weft-hpc/weft/transport"
)

// Plan selects faults. Each field of type float64 is the probability of a fault, from 0 (never) to
// 1 (always). If a rank makes the same calls again with the same plan, and the provider's Reads
// return the same completions, the rank has the same faults. To give ranks or peers different
// faults, wrap a provider several times.
type Plan struct {
	Seed uint64 // of the random numbers that decide on faults

	Ranks []int // the ranks whose domains have faults; empty: all ranks
	Peers []int // the peers to which Again, Delay, Drop, Duplicate and Corrupt apply; empty: all peers

	// Legal faults. The contract in package transport permits them, so the engine must work as
	// without them.

	Again     float64 // a Send, Read, Write or Atomic returns ErrAgain
	Delay     float64 // Reads of the queue return a completion later; messages of one peer keep their order
	DelayMax  int     // the largest delay, in Reads of the queue; 0 means 8
	ShortRead float64 // a Read of the queue returns at most one completion
	EarlyWait float64 // a Wait returns at once

	// Faults that break the contract. The engine must return an error after them.

	Drop      float64 // a Send returns done, but sends nothing
	Duplicate float64 // a message arrives twice
	Corrupt   float64 // one to three bits of a received message are inverted
	// KillAt: the rank's KillAt-th call of Send, Read, Write or Atomic closes the domain, as if
	// the process died. 0 means never.
	KillAt int
}

// Legal returns a plan that has all legal faults, and no others, with fixed probabilities.
func Legal(seed uint64) Plan {
	return Plan{Seed: seed, Again: 0.1, Delay: 0.05, ShortRead: 0.2, EarlyWait: 0.2}
}

// IsLegal reports whether the plan has no faults that break the contract.
func (p Plan) IsLegal() bool {
	return p.Drop == 0 && p.Duplicate == 0 && p.Corrupt == 0 && p.KillAt == 0
}

// String returns the plan as Go source, so that a test can be run again with it.
func (p Plan) String() string {
	v := reflect.ValueOf(p)
	var fields []string
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsZero() {
			fields = append(fields, fmt.Sprintf("%s: %#v", v.Type().Field(i).Name, f.Interface()))
		}
	}
	return "fault.Plan{" + strings.Join(fields, ", ") + "}"
}

// dice decides, by random numbers, which faults of a plan a rank has. Any goroutine may call its
// methods at any time.
type dice struct {
	plan Plan
	on   bool // the rank has faults: Plan.Ranks contains it or is empty

	mu  sync.Mutex // guards the fields below
	rng *rand.Rand
	ops int // number of operations that [dice.dies] has counted; 0 if KillAt is not set
}

func newDice(plan Plan, self transport.Addr, stream uint64) *dice {
	if plan.DelayMax <= 0 {
		plan.DelayMax = 8
	}
	return &dice{
		plan: plan,
		on:   len(plan.Ranks) == 0 || slices.Contains(plan.Ranks, int(self)),
		rng:  rand.New(rand.NewPCG(plan.Seed, uint64(self)<<8|stream)),
	}
}

// hit reports whether a fault of probability p happens now. If the rank has no faults, or p is 0,
// it returns false and draws no random number.
func (d *dice) hit(p float64) bool {
	if p <= 0 || !d.on {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.Float64() < p
}

// hitPeer does what hit does for an operation or message with a peer. If the peer is not among
// Plan.Peers, it returns false.
func (d *dice) hitPeer(p float64, peer transport.Addr) bool {
	if len(d.plan.Peers) > 0 && !slices.Contains(d.plan.Peers, int(peer)) {
		return false
	}
	return d.hit(p)
}

// number returns a random number from 1 to n.
func (d *dice) number(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return 1 + d.rng.IntN(n)
}

// dies counts an operation, and reports whether the operation is the KillAt-th one.
func (d *dice) dies() bool {
	if d.plan.KillAt <= 0 || !d.on {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ops++
	return d.ops == d.plan.KillAt
}
