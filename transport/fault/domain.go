package fault

import (
	"errors"
	"sync/atomic"

	"github.com/weft-hpc/weft/transport"
)

// domain is a domain of the wrapped provider, with faults.
type domain struct {
	transport.Domain
	dice     *dice
	waitDice *dice // of Wait, which runs concurrently with other calls
	closed   atomic.Bool
}

// sharedDomain is a domain with memory that ranks share.
type sharedDomain struct {
	*domain
	transport.SharedMemoryDomain
}

// OpenCQ opens the domain's completion queue.
func (d *domain) OpenCQ() (transport.CompletionQueue, error) {
	cq, err := d.Domain.OpenCQ()
	if err != nil {
		return nil, err
	}
	return &queue{CompletionQueue: cq, dom: d, heldOf: make(map[transport.Addr]int), dueOf: make(map[transport.Addr]uint64)}, nil
}

// OpenEndpoint opens the domain's endpoint.
func (d *domain) OpenEndpoint(av transport.AddressVector, cq transport.CompletionQueue) (transport.Endpoint, error) {
	q, ok := cq.(*queue)
	if !ok || q.dom != d {
		return nil, errors.New("fault: open endpoint: the completion queue is not of this domain")
	}
	ep, err := d.Domain.OpenEndpoint(av, q.CompletionQueue)
	if err != nil {
		return nil, err
	}
	e := &endpoint{Endpoint: ep, dom: d, cq: q}
	rma, isRMA := ep.(transport.RMAEndpoint)
	at, isAtomic := ep.(transport.AtomicEndpoint)
	switch {
	case isRMA && isAtomic:
		return &struct {
			*endpoint
			*rmaPart
			*atomicPart
		}{e, &rmaPart{rma, d}, &atomicPart{at, d}}, nil
	case isRMA:
		return &struct {
			*endpoint
			*rmaPart
		}{e, &rmaPart{rma, d}}, nil
	case isAtomic:
		return &struct {
			*endpoint
			*atomicPart
		}{e, &atomicPart{at, d}}, nil
	}
	return e, nil
}

// Close closes the domain. After Close there are no faults: calls return the provider's errors.
func (d *domain) Close() error {
	d.closed.Store(true)
	return d.Domain.Close()
}

// before injects the faults that any operation may have before it is posted: death and ErrAgain.
func (d *domain) before(op *transport.Op) error {
	if d.closed.Load() {
		return nil // the provider returns ErrClosed
	}
	if d.dice.dies() {
		if err := d.Close(); err != nil {
			return err
		}
		return transport.ErrClosed
	}
	if d.dice.hitPeer(d.dice.plan.Again, op.Peer) {
		return transport.ErrAgain
	}
	return nil
}
