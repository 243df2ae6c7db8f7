// Package fault wraps a provider and injects faults, for tests of the engine. A seed determines
// the faults.
//
// The contract in package transport permits some of the faults: ErrAgain, late messages, short
// Reads, Waits that return early. These must not affect the engine's user. The others break the
// contract: lost, repeated and corrupt messages, death of a rank. After these the engine must
// return an error. It must not hang, crash, or give the user wrong data.
//
//	engine ── Send ──► kill? ErrAgain? drop? ──► provider
//	engine ◄─ Read ─── short? delay? duplicate? corrupt? ◄── provider
package fault

import (
	"github.com/weft-hpc/weft/transport"
)

// Wrap returns a provider whose domains are those of p with the faults of the plan. It has the
// name of p, and its domains have the attributes and capabilities of p's domains.
func Wrap(p transport.Provider, plan Plan) transport.Provider {
	return &provider{Provider: p, plan: plan}
}

type provider struct {
	transport.Provider
	plan Plan
}

// Open opens a domain of the wrapped provider.
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
