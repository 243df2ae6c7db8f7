package engine

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

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
	regions []transport.MemoryRegion // guarded by Engine.mu; by rail, nil: it has no RMA, or all is over
	holds   int                      // guarded by Engine.mu; windows over it
	freed   bool                     // guarded by Engine.mu
}

// everything is what peers may do with a span, and this rank itself.
const everything = transport.RemoteRead | transport.RemoteWrite | transport.Local

// Alloc allocates n bytes, zeroed and aligned to a page, and registers them with
// every transport of the job. What is sent from them, received into them by
// rendezvous, or made a window of, is not registered again.
//
// They are within reach of every rank that was ever told a key of them.
func (e *Engine) Alloc(n int) (*Span, error) {
	if n <= 0 {
		return &Span{e: e, freed: true}, nil
	}
	s := &Span{e: e, regions: make([]transport.MemoryRegion, len(e.rails))}
	e.mu.lock()
	err := s.shareLocked(n)
	e.mu.unlock()
	if err == nil && s.home == nil {
		s.mem, err = e.mapPages(n)
	}
	if err != nil {
		return nil, err
	}
	s.start = address(s.mem)
	e.mu.lock()
	if err = s.registerLocked(); err != nil {
		err = errors.Join(err, s.leaveLocked())
	}
	e.mu.unlock()
	if err != nil {
		return nil, errors.Join(err, s.unmap())
	}
	return s, nil
}

// shareLocked takes the memory from the shared heap, if there is one that has a
// place for it.
func (s *Span) shareLocked(n int) error {
	e := s.e
	r := e.sharedRail()
	if r == nil || e.closed || e.fatal != nil {
		return nil
	}
	heap, ok := r.Domain.(transport.LastingMemoryDomain)
	if !ok {
		return nil
	}
	mem, mr, err := heap.AllocLasting(n)
	switch {
	case errors.Is(err, transport.ErrAgain):
		return nil // it has no place, but the host may have memory
	case err != nil:
		return fmt.Errorf("allocate %d bytes of shared memory: %w", n, err)
	}
	s.mem, s.home, s.regions[r.index] = mem, mr, mr
	return nil
}

// mapPages gives memory that is this process's own.
func (e *Engine) mapPages(n int) ([]byte, error) {
	flags := unix.MAP_PRIVATE | unix.MAP_ANON
	for i := range e.rails {
		if e.rails[i].attr.MRMode&transport.MRAllocated != 0 {
			flags |= unix.MAP_POPULATE
		}
	}
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return mem, nil
}

// registerLocked makes the regions and puts the span into the table.
func (s *Span) registerLocked() error {
	e := s.e
	if e.closed {
		return ErrClosed
	}
	for i := range e.rails {
		if e.rails[i].rma == nil || s.regions[i] != nil {
			continue
		}
		mr, err := e.rails[i].Domain.RegisterMemory(s.mem, everything)
		if err != nil {
			return errors.Join(fmt.Errorf("register %d bytes: %w", len(s.mem), err), s.withdrawLocked())
		}
		s.regions[i] = mr
	}
	e.spans = slices.Insert(e.spans, e.spansUpTo(s.start), s)
	return nil
}

// Bytes is the memory; nil for a span of nothing.
func (s *Span) Bytes() []byte { return s.mem }

// Free says that the user has done with the memory. Reap gives it back when
// the engine has, too. It is idempotent.
func (s *Span) Free() {
	s.e.mu.lock()
	s.freed = true
	s.e.mu.unlock()
}

// Reap gives back the spans that were freed and that no operation and no window
// refers to. The caller sees to it that no collective is under way, of whose
// buffers the engine does not always know.
func (e *Engine) Reap() error {
	e.mu.lock()
	var gone []*Span
	var err error
	e.spans = slices.DeleteFunc(e.spans, func(s *Span) bool {
		if !s.freed || s.busyLocked() {
			return false
		}
		err = errors.Join(err, s.withdrawLocked(), s.leaveLocked())
		gone = append(gone, s)
		return true
	})
	e.mu.unlock()
	for _, s := range gone {
		err = errors.Join(err, s.unmap())
	}
	return err
}

// leaveLocked gives memory of the shared heap back.
func (s *Span) leaveLocked() error {
	if s.home == nil {
		return nil
	}
	return s.home.Close()
}

// unmap gives other memory back.
func (s *Span) unmap() error {
	if s.home != nil {
		return nil
	}
	return unix.Munmap(s.mem)
}

// busyLocked says whether anything refers to the memory.
func (s *Span) busyLocked() bool {
	if s.holds > 0 || s.e.closed && s.registeredLocked() {
		return true // the latter until close has withdrawn it: Shutdown has the transports to itself
	}
	for _, r := range s.e.slots {
		if r.kind == kindFree || r.done {
			continue
		}
		for _, b := range [...][]byte{r.buf, r.op.Data, r.op.Fetch, r.op.Compare} {
			if s.overlaps(b) {
				return true
			}
		}
	}
	return false
}

func (s *Span) overlaps(b []byte) bool {
	at := address(b)
	return len(b) > 0 && at < s.start+uintptr(len(s.mem)) && s.start < at+uintptr(len(b))
}

// registeredLocked says whether there are regions.
func (s *Span) registeredLocked() bool {
	return slices.ContainsFunc(s.regions, func(mr transport.MemoryRegion) bool { return mr != nil })
}

// withdrawLocked closes the regions, but the one whose memory it is.
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
	low, high := 0, len(e.spans)
	for low < high {
		if mid := (low + high) / 2; e.spans[mid].start <= at {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
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

// region makes r.region one that buf lies in: its span's, or one of its own
// that complete closes.
//
// Hot path: no allocation.
func (e *Engine) region(r *request, to *rail, buf []byte, access transport.Access) error {
	if s := e.span(buf); s != nil {
		if mr := s.regions[to.index]; mr != nil {
			r.region, r.span = mr, s
			return nil
		}
	}
	mr, err := to.Domain.RegisterMemory(buf, access)
	if err != nil {
		return fmt.Errorf("register %d bytes: %w", len(buf), err)
	}
	r.region = mr
	return nil
}

// remoteAddr is what peers name the first byte of r.buf by, within r.region.
func (r *request) remoteAddr() uint64 {
	if r.span != nil {
		return r.region.Base() + uint64(address(r.buf)-r.span.start)
	}
	return r.region.Base()
}

// dropRegion gives r.region up at the end of a request.
func (r *request) dropRegion() error {
	mr, own := r.region, r.span == nil
	r.region, r.span = nil, nil
	if mr == nil || !own {
		return nil
	}
	return mr.Close()
}
