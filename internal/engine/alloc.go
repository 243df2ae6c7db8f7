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
//	a send from buf ──► span of it? ──┴─ yes ─► the span's key, and where buf lies
//	                          └── no ──► RegisterMemory(buf), closed with the request
//
// The pages lie outside of Go's heap, so the collector neither scans nor moves
// them, and pinning them costs no garbage collection anything. They are given
// back when nothing refers to them any more: Free only says that the user does
// not. Where a rail has a shared heap they are of it: peers can map them, and
// what they read and write there is loads and stores.

// Span is memory that Alloc has allocated.
type Span struct {
	e       *Engine
	start   uintptr
	mem     []byte
	home    transport.MemoryRegion   // whose memory it is; nil: mapped here
	regions []transport.MemoryRegion // guarded by Engine.mu; by rail; nil: the rail has no RMA, or the region is closed
	holds   int                      // guarded by Engine.mu; windows over it
	freed   bool                     // guarded by Engine.mu
}

// everything is what peers may do with a span, and this rank itself.
const everything = transport.RemoteRead | transport.RemoteWrite | transport.Local

// Alloc allocates n bytes, zeroed and aligned to a page, and registers them with
// every transport of the job. The engine does not register them again for a send, a
// receive by rendezvous or a window.
//
// Every rank that has ever got a key of the memory can reach it.
func (e *Engine) Alloc(n int) (*Span, error) {
	if n <= 0 {
		return &Span{e: e, freed: true}, nil
	}
	s := &Span{e: e, regions: make([]transport.MemoryRegion, len(e.rails))}
	err := s.share(n)
	if err == nil && s.home == nil {
		s.mem, err = e.mapPages(n)
	}
	if err != nil {
		return nil, err
	}
	s.start = address(s.mem)
	if err := s.register(); err != nil {
		return nil, errors.Join(err, s.giveBack())
	}
	return s, nil
}

// share takes the memory from the shared heap. If there is no heap, or it has no room,
// s.home stays nil.
func (s *Span) share(n int) error {
	e := s.e
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.sharedRail()
	if r == nil || e.over() != nil {
		return nil
	}
	heap, ok := r.Domain.(transport.LastingMemoryDomain)
	if !ok {
		return nil
	}
	mem, mr, err := heap.AllocLasting(n)
	switch {
	case errors.Is(err, transport.ErrAgain):
		return nil // the heap has no room, but the host may have memory
	case err != nil:
		return fmt.Errorf("allocate %d bytes of shared memory: %w", n, err)
	}
	s.mem, s.home, s.regions[r.index] = mem, mr, mr
	return nil
}

// mapPages maps memory of this process alone.
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

// register makes the regions and puts the span into the table.
func (s *Span) register() error {
	e := s.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errFinalize
	}
	for i := range e.rails {
		if e.rails[i].rma == nil || s.regions[i] != nil {
			continue
		}
		mr, err := e.rails[i].register(s.mem, everything)
		if err != nil {
			return errors.Join(err, s.withdrawLocked())
		}
		s.regions[i] = mr
	}
	e.spans = slices.Insert(e.spans, e.spansUpTo(s.start), s)
	return nil
}

// Bytes is the memory; nil for a span of nothing.
func (s *Span) Bytes() []byte { return s.mem }

// Free marks the memory as no longer used by the user. Reap gives it back when the
// engine does not use it either. Free is idempotent.
func (s *Span) Free() {
	s.e.mu.Lock()
	s.freed = true
	s.e.mu.Unlock()
}

// Reap gives back the spans that were freed and that no operation and no window
// refers to. The caller makes sure that no collective is under way, because the
// engine does not know all buffers of a collective.
func (e *Engine) Reap() error {
	e.mu.Lock()
	var gone []*Span
	var err error
	e.spans = slices.DeleteFunc(e.spans, func(s *Span) bool {
		if !s.freed || s.busyLocked() {
			return false
		}
		err = errors.Join(err, s.withdrawLocked())
		gone = append(gone, s)
		return true
	})
	e.mu.Unlock()
	for _, s := range gone {
		err = errors.Join(err, s.giveBack())
	}
	return err
}

// giveBack frees the memory. All of its regions except home are closed.
func (s *Span) giveBack() error {
	if s.home == nil {
		return unix.Munmap(s.mem)
	}
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	return s.home.Close()
}

// busyLocked says whether anything refers to the memory.
func (s *Span) busyLocked() bool {
	registered := slices.ContainsFunc(s.regions, func(mr transport.MemoryRegion) bool { return mr != nil })
	if s.holds > 0 || s.e.closed && registered { // close withdraws it: Shutdown has the transports to itself
		return true
	}
	end := s.start + uintptr(len(s.mem))
	for _, r := range s.e.slots {
		if r == nil || r.kind == kindFree || r.done {
			continue
		}
		for _, b := range [...][]byte{r.buf, r.op.Data, r.op.Fetch, r.op.Compare} {
			if at := address(b); len(b) > 0 && at < end && s.start < at+uintptr(len(b)) {
				return true
			}
		}
	}
	return false
}

// withdrawLocked closes all regions except home.
func (s *Span) withdrawLocked() error {
	var err error
	for i, mr := range s.regions {
		if mr != nil && mr != s.home {
			err = errors.Join(err, mr.Close())
		}
		s.regions[i] = nil
	}
	return err
}

// spansUpTo is how many spans begin at or below an address.
func (e *Engine) spansUpTo(at uintptr) int {
	return sort.Search(len(e.spans), func(i int) bool { return e.spans[i].start > at })
}

// span returns the span that buf lies in; nil: none. The caller holds the lock.
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

// region returns a region of a rail that covers buf: the one of buf's span s or, if s
// is nil, a new one that the caller closes.
//
// Hot path: no allocation.
func (e *Engine) region(to *rail, buf []byte, access transport.Access) (mr transport.MemoryRegion, s *Span, err error) {
	if s = e.span(buf); s != nil && s.regions[to.index] != nil {
		return s.regions[to.index], s, nil
	}
	mr, err = to.register(buf, access)
	return mr, nil, err
}

// register makes a region of buf.
func (r *rail) register(buf []byte, access transport.Access) (transport.MemoryRegion, error) {
	mr, err := r.Domain.RegisterMemory(buf, access)
	if err != nil {
		return nil, fmt.Errorf("register %d bytes: %w", len(buf), err)
	}
	return mr, nil
}

// remoteAddr is the address by which peers name the first byte of buf; region gave mr and s.
func remoteAddr(mr transport.MemoryRegion, s *Span, buf []byte) uint64 {
	if s != nil {
		return mr.Base() + uint64(address(buf)-s.start)
	}
	return mr.Base()
}

// dropRegion closes r.region at the end of a request, unless it is a span's.
func (r *request) dropRegion() error {
	mr, own := r.region, r.span == nil
	r.region, r.span = nil, nil
	if mr == nil || !own {
		return nil
	}
	return mr.Close()
}
