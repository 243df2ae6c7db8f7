// Package pintest has a fabric for tests: in-process, with registrations like those of an adapter that
// pins memory (transport.CapPin, transport.MRLocal).
package pintest

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// Fabric is the fabric.
type Fabric struct {
	*inproc.Fabric
	// Register runs at the beginning of each RegisterMemory; an error is its result.
	Register func() error
	Keeps    bool         // KeptMemory returns a region in one of two calls; otherwise never
	Regions  atomic.Int32 // number of open regions
}

// New returns a Fabric with short messages and reads, which does not keep registrations.
func New(register func() error) *Fabric {
	f := inproc.NewFabric(inproc.WithMRMode(transport.MRVirtAddr|transport.MRLocal|transport.MRAllocated), inproc.WithInjectSize(0),
		inproc.WithEagerLimit(1024), inproc.WithMaxRMASize(10_000), inproc.WithRMADelay(2), inproc.WithoutSharedMemory())
	return &Fabric{Fabric: f, Register: register}
}

// Gates block registrations: each gate of Next blocks one registration, until it is closed. Pass is
// Fabric.Register.
type Gates struct {
	next    chan chan struct{}
	Entered chan struct{} // has a value when a gate blocks a registration
}

// NewGates returns Gates, of which up to two have no registration yet.
func NewGates() Gates { return Gates{make(chan chan struct{}, 2), make(chan struct{}, 2)} }

// Pass waits for the next gate, if there is one.
func (g Gates) Pass() error {
	select {
	case gate := <-g.next:
		g.Entered <- struct{}{}
		<-gate
	default:
	}
	return nil
}

// Next returns the gate of the next registration that has none.
func (g Gates) Next() chan struct{} {
	gate := make(chan struct{})
	g.next <- gate
	return gate
}

type domain struct {
	transport.Domain
	f  *Fabric
	mu sync.Mutex // one call of RegisterMemory of the domain below at a time
}

// endpoint gives the fabric below its own regions.
type endpoint struct {
	transport.Endpoint
	rma transport.RMAEndpoint
}

type region struct {
	transport.MemoryRegion
	f *Fabric
}

// Open opens a domain.
func (f *Fabric) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := f.Fabric.Open(cfg)
	return &domain{Domain: d, f: f}, err
}

func (d *domain) Attr() transport.Attr {
	a := d.Domain.Attr()
	a.Caps |= transport.CapPin
	return a
}

func (d *domain) RegisterMemory(buf []byte, access transport.Access) (transport.MemoryRegion, error) {
	if err := d.f.Register(); err != nil {
		return nil, err
	}
	return d.register(buf, access)
}

func (d *domain) register(buf []byte, access transport.Access) (transport.MemoryRegion, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	mr, err := d.Domain.RegisterMemory(buf, access)
	if err != nil {
		return nil, err
	}
	d.f.Regions.Add(1)
	return &region{mr, d.f}, nil
}

func (d *domain) KeptMemory(buf []byte, _ transport.DeviceMemory, access transport.Access) transport.MemoryRegion {
	if !d.f.Keeps || rand.N(2) == 0 {
		return nil
	}
	mr, err := d.register(buf, access)
	if err != nil {
		return nil
	}
	return mr
}

func (r *region) Close() error {
	r.f.Regions.Add(-1)
	return r.MemoryRegion.Close()
}

func (d *domain) OpenEndpoint(av transport.AddressVector, cq transport.CompletionQueue) (transport.Endpoint, error) {
	ep, err := d.Domain.OpenEndpoint(av, cq)
	if err != nil {
		return nil, err
	}
	return &endpoint{ep, ep.(transport.RMAEndpoint)}, nil
}

func (e *endpoint) Read(op *transport.Op) error  { return post(op, e.rma.Read) }
func (e *endpoint) Write(op *transport.Op) error { return post(op, e.rma.Write) }

func post(op *transport.Op, post func(*transport.Op) error) error {
	if r, ok := op.Region.(*region); ok {
		op.Region = r.MemoryRegion
	}
	return post(op)
}
