package engine

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc/pintest"
	"github.com/weft-hpc/weft/transport/shm"
)

// spanFabric is a provider with hooks in the calls by which an engine registers, closes and frees
// memory. It records them in the list events.
type spanFabric struct {
	transport.Provider
	h *spanHooks
}

// spanHooks has functions that run at the beginning of the calls; nil: none.
type spanHooks struct {
	register    func() // RegisterMemory
	deregister  func() // Close of a region of RegisterMemory
	closeDomain func() // Close of a domain
	mu          sync.Mutex
	events      []string // "free" for a Close of a region of AllocLasting, and "close" for the end of a Close of a domain
}

// spanDomain has nil in place of those optional interfaces that the provider does not have.
type spanDomain struct {
	transport.Domain
	transport.SharedMemoryDomain
	transport.LastingMemoryDomain
	transport.PinningDomain
	h *spanHooks
}

// spanRegion is a memory region whose Close calls the function first.
type spanRegion struct {
	transport.MemoryRegion
	first func()
}

func (f spanFabric) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := f.Provider.Open(cfg)
	s := spanDomain{Domain: d, h: f.h}
	s.SharedMemoryDomain, _ = d.(transport.SharedMemoryDomain)
	s.LastingMemoryDomain, _ = d.(transport.LastingMemoryDomain)
	s.PinningDomain, _ = d.(transport.PinningDomain)
	return s, err
}

func (h *spanHooks) note(event string) {
	h.mu.Lock()
	h.events = append(h.events, event)
	h.mu.Unlock()
}

func (h *spanHooks) seen() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.events
}

func (d spanDomain) AllocLasting(n int) ([]byte, transport.MemoryRegion, error) {
	mem, mr, err := d.LastingMemoryDomain.AllocLasting(n)
	return mem, &spanRegion{mr, func() { d.h.note("free") }}, err
}

func (d spanDomain) RegisterMemory(buf []byte, access transport.Access) (transport.MemoryRegion, error) {
	run(d.h.register)
	mr, err := d.Domain.RegisterMemory(buf, access)
	return &spanRegion{mr, func() { run(d.h.deregister) }}, err
}

func (d spanDomain) Close() error {
	run(d.h.closeDomain)
	err := d.Domain.Close()
	d.h.note("close")
	return err
}

func (r *spanRegion) Close() error {
	r.first()
	return r.MemoryRegion.Close()
}

func run(f func()) {
	if f != nil {
		f()
	}
}

// TestNoSpanIsFreedWhileADomainCloses: the program frees memory of a shared heap while Close of the
// engine is in the Close of the transport's domain. The memory is freed after that, because nothing
// else may use the domain meanwhile.
func TestNoSpanIsFreedWhileADomainCloses(t *testing.T) {
	h := &spanHooks{}
	e := openJob(t, 1, spanFabric{shm.New(), h}, nil)[0]
	span, err := e.Alloc(4096)
	require.NoError(t, err)
	require.NotNil(t, span.home)
	h.closeDomain = func() {
		span.Free()
		require.NoError(t, e.Reap())
	}
	require.NoError(t, e.Close(background))
	require.Equal(t, []string{"close", "free"}, h.events)
	require.ErrorIs(t, unix.Msync(span.Bytes(), unix.MS_ASYNC), unix.ENOMEM, "Close has not unmapped the memory")
}

// TestCloseAwaitsAllocAndReap: another goroutine is in Alloc or Reap, which have taken memory of a
// shared heap or are about to free it, and wait for a transport that pins memory. Close of the engine
// waits for the end of the call before it closes the domains.
func TestCloseAwaitsAllocAndReap(t *testing.T) {
	for _, name := range []string{"Alloc", "Reap"} {
		t.Run(name, func(t *testing.T) {
			h := &spanHooks{}
			e := openRails(t, 1, nil, spanFabric{shm.New(), h}, spanFabric{pintest.New(func() error { return nil }), h})[0]
			entered, gate := make(chan struct{}), make(chan struct{})
			wait := func() {
				entered <- struct{}{}
				<-gate
			}
			ended := make(chan error, 1)
			if name == "Alloc" {
				h.register = wait
				go func() { // ends after the gate has opened
					_, err := e.Alloc(4096)
					ended <- err
				}()
			} else {
				span, err := e.Alloc(4096)
				require.NoError(t, err)
				span.Free()
				h.deregister = wait
				go func() { ended <- e.Reap() }() // ends after the gate has opened
			}
			receiveOrFail(t, entered)
			closed := make(chan error, 1)
			go func() { closed <- e.Close(background) }() // ends after the gate has opened
			require.Eventually(t, func() bool {
				e.mu.Lock()
				defer e.mu.Unlock()
				return e.closed
			}, testTimeout, time.Millisecond)
			require.Never(t, func() bool { return len(h.seen()) > 0 }, 20*time.Millisecond, time.Millisecond)
			h.register, h.deregister = nil, nil
			close(gate)
			if err := <-ended; name == "Alloc" {
				require.ErrorIs(t, err, ErrClosed)
			} else {
				require.NoError(t, err)
			}
			require.NoError(t, <-closed)
			require.Equal(t, []string{"free", "close", "close"}, h.seen())
		})
	}
}
