// Package fault wraps a provider and injects faults, for tests of the engine. A [Plan] with a seed
// determines the faults.
//
// The contract in package transport permits some of the faults: ErrAgain, delayed completions,
// Reads that return few completions, Waits that return early. With these the engine must work as
// without them. The other faults break the contract: lost, repeated and corrupt messages, and the
// death of a rank. After these the engine must return an error. It must not hang, crash, or give
// the user wrong data.
//
//	engine ── Send ──► kill? ErrAgain? drop? ──► provider
//	engine ◄─ Read ─── short? delay? duplicate? corrupt? ◄── provider
package fault

import (
	"github.com/weft-hpc/weft/transport"
)

// Wrap returns a provider that wraps p and injects the faults of the plan. It has the name of p,
// and its domains have the attributes and capabilities of p's domains.
func Wrap(p transport.Provider, plan Plan) transport.Provider {
	return &provider{Provider: p, plan: plan}
}

type provider struct {
	transport.Provider
	plan Plan
}

// Open opens a domain of the wrapped provider and wraps it.
func (p *provider) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := p.Provider.Open(cfg)
	if err != nil {
		return nil, err
	}
	w := &domain{
		Domain:   d,
		dice:     newDice(p.plan, cfg.Self, 0),
		waitDice: newDice(p.plan, cfg.Self, 1),
	}
	if s, ok := d.(transport.SharedMemoryDomain); ok {
		return &sharedDomain{domain: w, SharedMemoryDomain: s}, nil
	}
	return w, nil
}
