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

// Plan says which faults happen and how often, from 0 (never) to 1 (always).
// With the same plan, the same calls of a rank meet the same faults. Other
// mixtures come from wrapping what is wrapped already.
type Plan struct {
	Seed uint64

	Ranks []int // ranks whose domains have faults; none named: all
	Peers []int // peers whose traffic has faults; none named: all

	// What a provider may do: nobody above may notice.

	Again     float64 // a Send, Read or Write answers ErrAgain
	Delay     float64 // what a peer sent, or a completion, is held back for some Reads, in order per peer
	DelayMax  int     // Reads at most that it is held back for; 0: 8
	ShortRead float64 // a Read of the queue gives one entry at most
	EarlyWait float64 // a Wait returns at once

	// What breaks the contract: those above must answer with an error.

	Drop      float64 // a Send is done, and nothing goes
	Duplicate float64 // a message comes twice
	Corrupt   float64 // one to three bits of a message come inverted
	KillAt    int     // the domain dies, as its process would, in this Send, Read or Write, counted from 1; 0: never
}

// Legal returns a plan of everything that a provider may do.
func Legal(seed uint64) Plan {
	return Plan{Seed: seed, Again: 0.1, Delay: 0.05, ShortRead: 0.2, EarlyWait: 0.2}
}

// IsLegal says whether those above must not notice the plan.
func (p Plan) IsLegal() bool {
	return p.Drop == 0 && p.Duplicate == 0 && p.Corrupt == 0 && p.KillAt == 0
}

// String is the plan as Go source, for a test to be run again with it.
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

// dice are a rank's plan and its random numbers.
type dice struct {
	plan Plan
	on   bool // the plan is about this rank

	mu  sync.Mutex
	rng *rand.Rand
	ops int // posted so far
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

// hit says whether a fault of probability p happens.
func (d *dice) hit(p float64) bool {
	if p <= 0 || !d.on {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.Float64() < p
}

// hitPeer is hit for traffic with a peer.
func (d *dice) hitPeer(p float64, peer transport.Addr) bool {
	if len(d.plan.Peers) > 0 && !slices.Contains(d.plan.Peers, int(peer)) {
		return false
	}
	return d.hit(p)
}

// number is from 1 to n.
func (d *dice) number(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return 1 + d.rng.IntN(n)
}

// dies counts an operation and says whether it is the last.
func (d *dice) dies() bool {
	if d.plan.KillAt <= 0 || !d.on {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ops++
	return d.ops == d.plan.KillAt
}
