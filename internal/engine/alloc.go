package engine

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/transport"
)

// Memory that is registered once
//
//	Alloc ──► pages of the shared heap, or mapped ──► RegisterMemory with every rail
//	                                  │ region        that has RMA and no such heap
//	a send from buf ──► span of it? ──┴─ yes ─► the span's key, and the offset of buf
//	                          └── no ──► RegisterMemory(buf), closed at the end of the request
//
// A span is memory that Engine.Alloc has allocated ([Span]). Its pages are outside of Go's heap, so
// the garbage collector neither scans them nor frees them, and to pin them does not slow the
// collector down. Span.Free records that the program no longer uses the span. Engine.Reap, which
// the program calls later, frees the pages if the engine does not use them either.
//
// If a rail has a shared heap with room for them (transport.SharedMemoryDomain and
// LastingMemoryDomain), the pages belong to this heap: the ranks that share memory with this one
// can map them, and access them by loads and stores.

// Span is memory that Engine.Alloc has allocated and registered.
type Span struct {
	e     *Engine
	start uintptr // address of the first byte
	mem   []byte  // the memory; nil for a span of 0 bytes
	// Region of the shared heap that holds the memory; nil: mapPages has mapped the memory, or the
	// span has 0 bytes.
	home transport.MemoryRegion
	// By index of the rail: the region of the memory; nil: the rail has no RMA or had no room for a
	// region, or the region is closed; guarded by Engine.mu while the span is in Engine.spans.
	regions []transport.MemoryRegion
	// Number of calls of Port.Register and Port.Hold for the memory that were not undone yet;
	// guarded by Engine.mu.
	holds int
	freed bool // Free was called, so Reap may free the memory; guarded by Engine.mu
}

// allAccess permits peers to read and write a region, and this rank to use it in its own
// operations.
const allAccess = transport.RemoteRead | transport.RemoteWrite | transport.Local

// Alloc allocates n bytes, zeroed and aligned to a page, and registers them with every transport
// that has RMA and room for a region. With such a transport the engine does not register the memory
// again for a send, a receive by rendezvous or a window. If n is 0 or negative, the span has no
// memory.
//
// Every rank that has received a key of the memory can access all of it. The engine sends such a
// key with each send by rendezvous from the memory.
func (e *Engine) Alloc(n int) (*Span, error) {
	if n <= 0 {
		return &Span{e: e, freed: true}, nil
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, errFinalize
	}
	e.goroutines.Add(1) // Engine.close waits for the end of this call, which may free the span
	e.mu.Unlock()
	defer e.goroutines.Done()
	s := &Span{e: e, regions: make([]transport.MemoryRegion, len(e.rails))}
	err := s.allocShared(n)
	if err == nil && s.home == nil {
		s.mem, err = e.mapPages(n)
	}
	if err != nil {
		return nil, err
	}
	s.start = address(s.mem)
	if err := s.register(); err != nil {
		return nil, errors.Join(err, s.free())
	}
	return s, nil
}

// allocShared takes the memory of the span from a shared heap. If no rail has one, the heap has no
// room, or the engine is closed or has failed, s.home stays nil without an error, and the caller
// allocates the memory in another way.
func (s *Span) allocShared(n int) error {
	e := s.e
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.sharedRail()
	if r == nil || e.closedErr() != nil {
		return nil
	}
	heap, ok := r.Domain.(transport.LastingMemoryDomain)
	if !ok {
		return nil
	}
	mem, mr, err := heap.AllocLasting(n)
	switch {
	case errors.Is(err, transport.ErrAgain):
		return nil // the heap has no room, but mapPages may still get memory of the host
	case err != nil:
		return fmt.Errorf("allocate %d bytes of shared memory: %w", n, err)
	}
	s.mem, s.home, s.regions[r.index] = mem, mr, mr
	return nil
}

// mapPages maps n bytes of memory that this process does not share with another one.
func (e *Engine) mapPages(n int) ([]byte, error) {
	flags := unix.MAP_PRIVATE | unix.MAP_ANON
	for i := range e.rails {
		if e.rails[i].attr.MRMode&transport.MRAllocated != 0 {
			flags |= sys.MapPopulated
		}
	}
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return mem, nil
}

// register registers the span with each rail that has RMA and room for a region, and puts the span
// into Engine.spans.
func (s *Span) register() error {
	e := s.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errFinalize
	}
	e.mu.Unlock()
	err := s.registerWith(true)
	e.mu.Lock()
	switch {
	case e.closed:
		err = errFinalize
	case err == nil:
		err = s.registerWith(false)
	}
	if err != nil {
		return errors.Join(err, s.closeRegions(false))
	}
	e.spans = slices.Insert(e.spans, e.spansUpTo(s.start), s)
	return nil
}

// registerWith registers the span. If pinned is set, it uses the rails with rail.pin, and the caller does
// not hold the lock. Otherwise it uses the other rails, and the caller holds the lock.
func (s *Span) registerWith(pinned bool) error {
	for i := range s.e.rails {
		r := &s.e.rails[i]
		if r.rma == nil || s.regions[i] != nil || (r.pin != nil) != pinned {
			continue
		}
		mr, err := r.register(s.mem, transport.DeviceMemory{}, allAccess)
		if errors.Is(err, transport.ErrAgain) {
			continue // the transport has no room for a region, so operations register the buffers that they use
		}
		if err != nil {
			return err
		}
		s.regions[i] = mr
	}
	return nil
}

// Bytes returns the memory of the span. It returns nil for a span of 0 bytes.
func (s *Span) Bytes() []byte { return s.mem }

// Free records that the program no longer uses the memory. The memory exists until Reap frees it.
// Free is idempotent.
func (s *Span) Free() {
	s.e.mu.Lock()
	s.freed = true
	s.e.mu.Unlock()
}

// Reap frees the spans for which Free was called and that no operation and no window uses. The
// caller makes sure that no collective is under way on this rank, because the engine does not know
// all buffers that a collective uses.
func (e *Engine) Reap() error {
	e.mu.Lock()
	var gone []*Span
	var err error
	e.spans = slices.DeleteFunc(e.spans, func(s *Span) bool {
		if !s.freed || s.busyLocked() {
			return false
		}
		err = errors.Join(err, s.closeRegions(false))
		gone = append(gone, s)
		return true
	})
	if len(gone) > 0 && !e.closed {
		e.goroutines.Add(1) // Engine.close waits until the spans are freed
		defer e.goroutines.Done()
	}
	e.mu.Unlock()
	for _, s := range gone {
		err = errors.Join(err, s.free())
	}
	return err
}

// free closes the regions of rails with rail.pin, and frees the memory. The caller does not hold the
// lock, and has called closeRegions(false).
func (s *Span) free() error {
	err := s.closeRegions(true)
	if s.home == nil {
		return errors.Join(err, unix.Munmap(s.mem))
	}
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	return errors.Join(err, s.home.Close())
}

// busyLocked reports whether Reap must not free the span yet: an operation or a window uses its
// memory, or the engine is closed and has not closed the domains yet.
func (s *Span) busyLocked() bool {
	// Once the engine is closed, only Engine.close closes regions, after Shutdown, because nothing
	// else may use the transports during Shutdown and during Close of their domains.
	if s.holds > 0 || s.e.closed && !s.e.domainsClosed {
		return true
	}
	end := s.start + uintptr(len(s.mem))
	for _, r := range s.e.slots {
		if r == nil || r.kind == kindFree || r.done {
			continue
		}
		for _, b := range [...][]byte{r.buf, r.view, r.op.Data, r.op.Fetch, r.op.Compare} {
			if at := address(b); len(b) > 0 && at < end && s.start < at+uintptr(len(b)) {
				return true
			}
		}
	}
	return false
}

// closeRegions closes the span's regions, except home. If pinned is set, it closes those of rails with
// rail.pin; otherwise those of the other rails, and the caller holds the lock.
func (s *Span) closeRegions(pinned bool) error {
	var err error
	for i, mr := range s.regions {
		if (s.e.rails[i].pin != nil) != pinned {
			continue
		}
		if mr != nil && mr != s.home {
			err = errors.Join(err, mr.Close())
		}
		s.regions[i] = nil
	}
	return err
}

// spansUpTo returns the number of spans that begin at or below the address at.
func (e *Engine) spansUpTo(at uintptr) int {
	return sort.Search(len(e.spans), func(i int) bool { return e.spans[i].start > at })
}

// span returns the span that contains all of buf; nil: there is none. The caller holds the lock.
func (e *Engine) span(buf []byte) *Span {
	if len(e.spans) == 0 || len(buf) == 0 {
		return nil
	}
	at := address(buf)
	i := e.spansUpTo(at)
	if i == 0 {
		return nil
	}
	s := e.spans[i-1]
	if off := at - s.start; off > uintptr(len(s.mem)) || uintptr(len(buf)) > uintptr(len(s.mem))-off {
		return nil
	}
	return s
}

// regionIn returns a memory region that covers buf and is registered with the rail to. in is the span that
// contains buf; nil: there is none, or the caller wants a region of its own. If in has such a region,
// that is the result, with in as s. Otherwise regionIn registers buf, s is nil, and the caller closes the
// region. If the registration takes long, regionIn releases the lock meanwhile.
//
// Hot path: no allocation.
func (e *Engine) regionIn(in *Span, to *rail, buf []byte, access transport.Access) (mr transport.MemoryRegion, s *Span, err error) {
	if in != nil && in.regions[to.index] != nil {
		return in.regions[to.index], in, nil
	}
	mr, err = e.registerNow(to, buf, transport.DeviceMemory{}, access)
	return mr, nil, err
}

// register registers buf with the rail's transport. dev is the device that buf is memory of;
// zero: the host.
func (r *rail) register(buf []byte, dev transport.DeviceMemory, access transport.Access) (mr transport.MemoryRegion, err error) {
	if dev != (transport.DeviceMemory{}) {
		mr, err = r.device.RegisterDevice(buf, dev, access)
	} else {
		mr, err = r.Domain.RegisterMemory(buf, access)
	}
	if err != nil {
		return nil, fmt.Errorf("register %d bytes: %w", len(buf), err)
	}
	return mr, nil
}

// remoteAddr returns the address by which peers access the first byte of buf through mr. mr and s
// are results of Engine.regionIn for buf.
func remoteAddr(mr transport.MemoryRegion, s *Span, buf []byte) uint64 {
	if s != nil {
		return mr.Base() + uint64(address(buf)-s.start)
	}
	return mr.Base()
}

// dropRegion forgets the memory region of a request that ends. It closes the region, unless the
// region belongs to a span.
func (r *request) dropRegion() error {
	mr, own := r.region, r.span == nil
	r.region, r.span = nil, nil
	if mr == nil || !own {
		return nil
	}
	if r.registered {
		r.e.closeLater(mr)
		return nil
	}
	return mr.Close()
}
