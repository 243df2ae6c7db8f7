package rma

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// pinFabric is a fabric like that of an adapter that pins memory (CapPin). Each gate that a test
// sends blocks one registration until the gate is closed.
type pinFabric struct {
	*inproc.Fabric
	gates   chan chan struct{}
	entered chan struct{} // has a value when a gate blocks a registration
}

func newPinFabric() *pinFabric {
	f := inproc.NewFabric(inproc.WithMRMode(transport.MRVirtAddr|transport.MRLocal|transport.MRAllocated),
		inproc.WithInjectSize(0), inproc.WithRMADelay(3), inproc.WithMaxRMASize(10000), inproc.WithoutSharedMemory(), inproc.WithEagerLimit(4096))
	return &pinFabric{f, make(chan chan struct{}, 1), make(chan struct{}, 1)}
}

type pinDomain struct {
	transport.Domain
	f  *pinFabric
	mu sync.Mutex // one call of RegisterMemory of the domain below at a time
}

func (f *pinFabric) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := f.Fabric.Open(cfg)
	return &pinDomain{Domain: d, f: f}, err
}

func (d *pinDomain) Attr() transport.Attr {
	a := d.Domain.Attr()
	a.Caps |= transport.CapPin
	return a
}

func (d *pinDomain) KeptMemory([]byte, transport.Access) transport.MemoryRegion { return nil }

func (d *pinDomain) RegisterMemory(buf []byte, access transport.Access) (transport.MemoryRegion, error) {
	select {
	case gate := <-d.f.gates:
		d.f.entered <- struct{}{}
		<-gate
	default:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Domain.RegisterMemory(buf, access)
}

// block makes the next registration wait for a gate, which it returns.
func (f *pinFabric) block() chan struct{} {
	gate := make(chan struct{})
	f.gates <- gate
	return gate
}

// TestWindowClosedWhileRegistering: a window is closed while the buffer of a Put is being registered.
// The end of the registration does not touch what uses the slot of the Put's transfer by then.
func TestWindowClosedWhileRegistering(t *testing.T) {
	f := newPinFabric()
	ms := openWindows(t, openEngines(t, 2, f, nil), 1<<12, ofInt64())
	each(t, ms, func(m *member) error { return m.fence() })
	m := ms[0]
	gate := f.block()
	require.NoError(t, m.Put(background, 1, 0, pattern(100, 1)))
	<-f.entered
	m.ctx.Revoke(errors.New("revoked"))
	require.NoError(t, m.Close())

	send := ms[1].world.Isend(pattern(50_000, 3), engine.Env{Peer: 0, Tag: 1})
	var posted []engine.Request
	for i := range 40 {
		posted = append(posted, m.world.Irecv(make([]byte, 1), engine.Env{Peer: 1, Tag: 9 + i}))
	}
	buf := make([]byte, 50_000)
	recv := m.world.Irecv(buf, engine.Env{Peer: 1, Tag: 1})
	_, done, err := recv.Test()
	require.NoError(t, err)
	require.False(t, done)
	close(gate)
	for _, q := range []engine.Request{recv, send} {
		_, err := q.Wait(background)
		require.NoError(t, err)
	}
	require.NoError(t, same(buf, pattern(50_000, 3)))
	for _, q := range posted {
		require.NoError(t, q.Cancel())
	}
}

// TestEngineClosedWhileRegistering: an operation whose buffer is being registered ends when the engine
// is closed.
func TestEngineClosedWhileRegistering(t *testing.T) {
	f := newPinFabric()
	ms := openWindows(t, openEngines(t, 2, f, nil), 1<<12, ofInt64())
	each(t, ms, func(m *member) error { return m.fence() })
	m := ms[0]
	gate := f.block()
	q, err := m.Rput(background, 1, 0, pattern(100, 1))
	require.NoError(t, err)
	<-f.entered
	closed := make(chan error)
	go func() { closed <- m.e.Close(background) }() // ends with Close; received below
	_, err = q.Wait(background)
	require.Error(t, err)
	close(gate)
	require.NoError(t, <-closed)
	require.True(t, q.Done())
	require.False(t, m.Pending())
	require.NoError(t, m.Close())
}

// TestPeerFailsWhileRegistering: if the target fails while the buffer of a Put is being registered, the Put
// ends with that error, and later operations work.
func TestPeerFailsWhileRegistering(t *testing.T) {
	f := newPinFabric()
	ms := openWindows(t, openEngines(t, 3, f, nil), 1<<12, ofInt64())
	each(t, ms, func(m *member) error { return m.fence() })
	m := ms[0]
	gate := f.block()
	q, err := m.Rput(background, 1, 0, pattern(100, 1))
	require.NoError(t, err)
	<-f.entered
	m.e.MarkFailed("killed", 1)
	_, err = q.Wait(background)
	require.ErrorIs(t, err, engine.ErrProcFailed)
	close(gate)
	q, err = m.Rput(background, 2, 0, pattern(100, 1))
	require.NoError(t, err)
	_, err = q.Wait(background)
	require.NoError(t, err)
}
