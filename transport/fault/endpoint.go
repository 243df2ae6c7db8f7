package fault

import "github.com/weft-hpc/weft/transport"

type endpoint struct {
	transport.Endpoint
	dom *domain
	cq  *queue
}

// Send sends a message. With the fault Drop, Send returns done and sends nothing.
func (e *endpoint) Send(op *transport.Op) (bool, error) {
	if err := e.dom.before(op); err != nil {
		return false, err
	}
	if e.dom.dice.hitPeer(e.dom.dice.plan.Drop, op.Peer) {
		return true, nil
	}
	return e.Endpoint.Send(op)
}

// Connect calls the provider, without faults. The caller must check CapConnect before.
func (e *endpoint) Connect(peer transport.Addr) error {
	return e.Endpoint.(transport.ConnectEndpoint).Connect(peer)
}

// Disconnect calls the provider, without faults, and drops the delayed messages of the peer. The
// caller must check CapDisconnect before.
func (e *endpoint) Disconnect(peer transport.Addr) error {
	err := e.Endpoint.(transport.DisconnectEndpoint).Disconnect(peer)
	if err == nil {
		e.cq.forget(peer)
	}
	return err
}

// EnableBatch calls the provider, without faults. The caller must check CapBatch before.
func (e *endpoint) EnableBatch() { e.Endpoint.(transport.BatchEndpoint).EnableBatch() }

// Unsent calls the provider, without faults. The caller must check CapBatch before.
func (e *endpoint) Unsent() bool { return e.Endpoint.(transport.BatchEndpoint).Unsent() }

// Flushed calls the provider, without faults. The caller must check CapFlush before.
func (e *endpoint) Flushed(failed func(transport.Addr) bool) bool {
	return e.Endpoint.(transport.FlushEndpoint).Flushed(failed)
}

// rmaPart implements transport.RMAEndpoint, with faults, for an endpoint.
type rmaPart struct {
	rma transport.RMAEndpoint
	dom *domain
}

// Read posts a read, unless a fault prevents it.
func (e *rmaPart) Read(op *transport.Op) error {
	if err := e.dom.before(op); err != nil {
		return err
	}
	return e.rma.Read(op)
}

// Write posts a write, unless a fault prevents it.
func (e *rmaPart) Write(op *transport.Op) error {
	if err := e.dom.before(op); err != nil {
		return err
	}
	return e.rma.Write(op)
}

// ReachesRegion returns the provider's answer. If the provider's endpoint is not a RegionReacher,
// it reaches every region, and ReachesRegion returns true.
func (e *rmaPart) ReachesRegion(peer transport.Addr, key uint64) bool {
	r, some := e.rma.(transport.RegionReacher)
	return !some || r.ReachesRegion(peer, key)
}

// atomicPart implements transport.AtomicEndpoint, with faults, for an endpoint.
type atomicPart struct {
	atomic transport.AtomicEndpoint
	dom    *domain
}

// AtomicValid returns the provider's answer, without faults.
func (e *atomicPart) AtomicValid(op *transport.Op) (int, bool) {
	return e.atomic.AtomicValid(op)
}

// Atomic posts an atomic operation, unless a fault prevents it.
func (e *atomicPart) Atomic(op *transport.Op) error {
	if err := e.dom.before(op); err != nil {
		return err
	}
	return e.atomic.Atomic(op)
}
