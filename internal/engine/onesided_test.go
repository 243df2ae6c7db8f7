package engine

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// shutdownFabric is inproc with two additions. The first Shutdown of an endpoint calls the function
// during. The field closed counts the memory regions that are closed while that function runs.
type shutdownFabric struct {
	*inproc.Fabric
	during  func()
	leaving atomic.Bool // the function during runs now
	closed  int
}

type shutdownDomain struct {
	transport.Domain
	f *shutdownFabric
}

type shutdownEndpoint struct {
	transport.Endpoint
	transport.RMAEndpoint
	f *shutdownFabric
}

type shutdownRegion struct {
	transport.MemoryRegion
	f *shutdownFabric
}

func (f *shutdownFabric) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := f.Fabric.Open(cfg)
	return shutdownDomain{d, f}, err
}

func (d shutdownDomain) OpenEndpoint(av transport.AddressVector, cq transport.CompletionQueue) (transport.Endpoint, error) {
	ep, err := d.Domain.OpenEndpoint(av, cq)
	if err != nil {
		return nil, err
	}
	return shutdownEndpoint{ep, ep.(transport.RMAEndpoint), d.f}, nil
}

func (d shutdownDomain) RegisterMemory(buf []byte, access transport.Access) (transport.MemoryRegion, error) {
	mr, err := d.Domain.RegisterMemory(buf, access)
	return shutdownRegion{mr, d.f}, err
}

func (e shutdownEndpoint) Shutdown(ctx context.Context) error {
	if during := e.f.during; during != nil {
		e.f.during = nil
		e.f.leaving.Store(true)
		during()
		e.f.leaving.Store(false)
	}
	return e.Endpoint.Shutdown(ctx)
}

func (r shutdownRegion) Close() error {
	if r.f.leaving.Load() {
		r.f.closed++
	}
	return r.MemoryRegion.Close()
}

// idle is a Service that does nothing.
type idle struct{}

func (idle) Deliver(int, wire.Window, []byte) error { return nil }
func (idle) Done(*Transfer, error)                  {}
func (idle) Down(int, error)                        {}
func (idle) End(error)                              {}

// TestNothingIsDeregisteredDuringShutdown: the program frees registered memory while Close is in
// the Shutdown of a transport. No region is closed during Shutdown, because nothing else may use a
// transport then. After Close the memory is unmapped.
func TestNothingIsDeregisteredDuringShutdown(t *testing.T) {
	f := &shutdownFabric{Fabric: inproc.NewFabric()}
	e := openJob(t, 2, f, nil)[0]
	span, err := e.Alloc(4096)
	require.NoError(t, err)
	p, err := e.OpenContext(2, []int{0, 1}).OpenPort(only(idle{}))
	require.NoError(t, err)
	p.Lock()
	m, err := p.Register(0, make([]byte, 8), transport.RemoteRead)
	p.Unlock()
	require.NoError(t, err)
	var errs [2]error
	f.during = func() {
		span.Free()
		errs[0] = e.Reap()
		p.Lock()
		errs[1] = p.Deregister(m)
		p.Close()
		p.Unlock()
	}
	require.NoError(t, e.Close(background))
	require.Equal(t, [2]error{}, errs)
	require.Nil(t, f.during, "Shutdown has not called during")
	require.Zero(t, f.closed)
	require.ErrorIs(t, unix.Madvise(span.Bytes(), unix.MADV_NORMAL), unix.ENOMEM, "Close has not unmapped the memory")
}

// TestAbandonedRequestsAreFreed: a request of Port.Begin that is completed and abandoned is freed,
// whether Complete or Abandon is called first.
func TestAbandonedRequestsAreFreed(t *testing.T) {
	e := openJob(t, 2, inproc.NewFabric(), nil)[0]
	p, err := e.OpenContext(2, []int{0, 1}).OpenPort(only(idle{}))
	require.NoError(t, err)
	begin := func() Request {
		p.Lock()
		defer p.Unlock()
		return p.Begin()
	}
	complete := func(q Request) {
		p.Lock()
		defer p.Unlock()
		p.Complete(q, nil)
	}
	for range 100 {
		q := begin()
		q.Abandon()
		complete(q)
		q.Abandon() // has no effect, because the request was freed
		q = begin()
		complete(q)
		q.Abandon()
		require.True(t, q.Done())
	}
	require.Zero(t, e.slotsInUse())
	require.Zero(t, e.uncollected)
	Request{}.Abandon()
}

// only returns an argument for OpenPort: a function that returns s.
func only(s Service) func(*Port) Service { return func(*Port) Service { return s } }
