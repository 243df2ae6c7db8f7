// Package fault puts itself before any provider and does what fabrics do on bad
// days, by the dice of one seed.
//
// Some faults a provider may do (ErrAgain, late messages, short Reads, Waits
// that end early): the engine must not notice. The others break the contract
// (lost, repeated and damaged messages, death): the engine must answer with an
// error, neither hang nor crash nor give the user wrong data.
//
//	engine ── Send ──► die? ErrAgain? drop? ──► provider
//	engine ◄─ Read ─── short? hold back? repeat? damage? ◄── provider
package fault

import (
	"github.com/weft-hpc/weft/transport"
)

// Wrap returns a provider whose domains are p's with the faults of the plan. It
// has p's name, and its domains have the attributes and capabilities of p's.
func Wrap(p transport.Provider, plan Plan) transport.Provider {
	return &provider{Provider: p, plan: plan}
}

type provider struct {
	transport.Provider
	plan Plan
}

// Open opens a domain of the provider.
func (p *provider) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := p.Provider.Open(cfg)
	if err != nil {
		return nil, err
	}
	w := &domain{
		Domain: d,
		dice:   newDice(p.plan, cfg.Self, 0),
		asleep: newDice(p.plan, cfg.Self, 1),
	}
	if s, ok := d.(transport.SharedMemoryDomain); ok {
		return &sharedDomain{domain: w, SharedMemoryDomain: s}, nil
	}
	return w, nil
}
