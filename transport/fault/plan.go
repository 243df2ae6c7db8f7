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

// Plan gives the probability of each fault, from 0 (never) to 1 (always). With the same plan, the
// same calls of a rank have the same faults. To give ranks or peers different faults, wrap a
// provider several times.
type Plan struct {
	Seed uint64

	Ranks []int // ranks whose domains have faults; empty: all
	Peers []int // peers with which operations and messages have faults; empty: all

	// Legal faults. They must not affect the user of the engine.

	Again     float64 // a Send, Read, Write or Atomic returns ErrAgain
	Delay     float64 // a completion arrives some Reads later; a peer's messages keep their order
	DelayMax  int     // the largest delay, in Reads of the queue; 0: 8
	ShortRead float64 // a Read of the queue returns at most one entry
	EarlyWait float64 // a Wait returns at once

	// Faults that break the contract. The engine must return an error.

	Drop      float64 // a Send reports success, but sends nothing
	Duplicate float64 // a message arrives twice
	Corrupt   float64 // one to three bits of a message are inverted
	KillAt    int     // the domain closes, as if its process died, in the KillAt-th operation; 0: never
}

// Legal returns a plan with all legal faults.
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

// dice decides which faults of a plan happen to a rank.
type dice struct {
	plan Plan
	on   bool // the plan applies to this rank

	mu  sync.Mutex
	rng *rand.Rand
	ops int // number of operations so far
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

// hit reports whether a fault of probability p happens now.
func (d *dice) hit(p float64) bool {
	if p <= 0 || !d.on {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.Float64() < p
}

// hitPeer is hit for an operation or message with a peer.
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

// dies counts an operation and reports whether it is the one named by KillAt.
func (d *dice) dies() bool {
	if d.plan.KillAt <= 0 || !d.on {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ops++
	return d.ops == d.plan.KillAt
}
