package fault

import (
	"errors"
	"sync/atomic"

	"github.com/weft-hpc/weft/transport"
)

// domain wraps a domain of the wrapped provider and injects faults.
type domain struct {
	transport.Domain
	dice *dice // decides on all faults except EarlyWait
	// waitDice decides on EarlyWait. It is separate from dice, because Wait runs concurrently
	// with other calls and must not change their random numbers.
	waitDice *dice
	closed   atomic.Bool // Close was called, or KillAt has closed the domain
}

// sharedDomain is a domain whose wrapped domain is a SharedMemoryDomain.
type sharedDomain struct {
	*domain
	transport.SharedMemoryDomain
}

// OpenCQ opens the wrapped domain's completion queue and wraps it.
func (d *domain) OpenCQ() (transport.CompletionQueue, error) {
	cq, err := d.Domain.OpenCQ()
	if err != nil {
		return nil, err
	}
	return &queue{CompletionQueue: cq, dom: d, heldOf: make(map[transport.Addr]int), dueOf: make(map[transport.Addr]uint64)}, nil
}

// OpenEndpoint opens the wrapped domain's endpoint and wraps it. The result implements RMAEndpoint
// and AtomicEndpoint only if the wrapped endpoint does. It always implements ConnectEndpoint,
// DisconnectEndpoint, BatchEndpoint and FlushEndpoint, so the caller must check the domain's Caps.
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

// KeptMemory calls the provider, without faults. The caller must check CapPin before.
func (d *domain) KeptMemory(buf []byte, dev transport.DeviceMemory, access transport.Access) transport.MemoryRegion {
	return d.Domain.(transport.PinningDomain).KeptMemory(buf, dev, access)
}

// Close closes the wrapped domain. After Close, KillAt and Again have no effect, so that the
// provider's errors are returned.
func (d *domain) Close() error {
	d.closed.Store(true)
	return d.Domain.Close()
}

// before injects the faults that any operation may have before it is posted: KillAt and Again. If
// before returns an error, the caller returns that error and does not post op.
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
