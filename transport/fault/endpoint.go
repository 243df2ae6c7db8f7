package fault

import "github.com/weft-hpc/weft/transport"

type endpoint struct {
	transport.Endpoint
	dom *domain
	cq  *queue
}

// Send sends a message, unless a fault keeps it from doing so.
func (e *endpoint) Send(op *transport.Op) (bool, error) {
	if err := e.dom.before(op); err != nil {
		return false, err
	}
	if e.dom.dice.hitPeer(e.dom.dice.plan.Drop, op.Peer) {
		return true, nil
	}
	return e.Endpoint.Send(op)
}

// Connect has no faults. The caller checks CapConnect.
func (e *endpoint) Connect(peer transport.Addr) error {
	return e.Endpoint.(transport.ConnectEndpoint).Connect(peer)
}

// Disconnect has no faults. The caller checks CapDisconnect.
func (e *endpoint) Disconnect(peer transport.Addr) error {
	err := e.Endpoint.(transport.DisconnectEndpoint).Disconnect(peer)
	if err == nil {
		e.cq.forget(peer)
	}
	return err
}

// EnableBatch has no faults. The caller checks CapBatch.
func (e *endpoint) EnableBatch() { e.Endpoint.(transport.BatchEndpoint).EnableBatch() }

// Unsent has no faults. The caller checks CapBatch.
func (e *endpoint) Unsent() bool { return e.Endpoint.(transport.BatchEndpoint).Unsent() }

// rmaPart implements an endpoint's one-sided transfers.
type rmaPart struct {
	rma transport.RMAEndpoint
	dom *domain
}

// Read posts a read.
func (e *rmaPart) Read(op *transport.Op) error {
	if err := e.dom.before(op); err != nil {
		return err
	}
	return e.rma.Read(op)
}

// Write posts a write.
func (e *rmaPart) Write(op *transport.Op) error {
	if err := e.dom.before(op); err != nil {
		return err
	}
	return e.rma.Write(op)
}

// atomicPart implements an endpoint's atomics.
type atomicPart struct {
	atomic transport.AtomicEndpoint
	dom    *domain
}

// AtomicValid returns the provider's answer.
func (e *atomicPart) AtomicValid(op *transport.Op) (int, bool) {
	return e.atomic.AtomicValid(op)
}

// Atomic posts an atomic.
func (e *atomicPart) Atomic(op *transport.Op) error {
	if err := e.dom.before(op); err != nil {
		return err
	}
	return e.atomic.Atomic(op)
}
