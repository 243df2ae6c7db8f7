package engine

import (
	"errors"
	"slices"

	"github.com/weft-hpc/weft/transport"
)

// Registrations that take long
//
// An adapter pins the pages of memory that is registered, which takes microseconds to seconds. So
// the engine registers memory with such a transport (rail.pin) without its lock:
//
//	send, receive, put, get ── KeptMemory? ── yes ──► continues at once
//	                               │ no
//	                               ▼
//	                    queue of the registrar ──► RegisterMemory ──► continues
//
//	window, attached region, Alloc ──► RegisterMemory by the caller, which releases the lock
//
// A send waits for the registration at the head of its peer's queue, so that messages keep their order. A
// receive waits in phaseRegistering. The registrar also closes the regions that it has registered.
//
// Invariants:
//   - A goroutine runs Engine.register if and only if registrar.running is set.
//   - An operation may end while its buffer is being registered. Then registrant.waiting returns false,
//     and the registrar closes the region. The domain keeps the buffer pinned until then.
//   - The registrar does nothing after the engine was closed. Engine.close waits for the call in progress,
//     and the Close of the domain closes the regions.

// registrar registers memory, and closes regions, in a goroutine of its own, in the order of calls.
// The engine's lock guards it.
type registrar struct {
	queue   []registration
	running bool
}

// registration is a task of the registrar.
type registration struct {
	owner  registrant
	rail   *rail
	buf    []byte
	dev    transport.DeviceMemory // the device that buf is memory of; zero: the host
	access transport.Access
	close  transport.MemoryRegion // nil: the task is to register buf; otherwise to close this region
}

// registrant is an operation that waits for the registration of its buffer. The engine's lock guards it.
type registrant interface {
	waiting() bool // the operation has not ended
	// registered gives the operation its region, which closeLater closes, or the error of the registration.
	registered(mr transport.MemoryRegion, err error)
}

// errRegistering means that the registrar registers the memory of a request.
var errRegistering = errors.New("engine: the memory is being registered")

// registerLater makes the registrar do a task.
func (e *Engine) registerLater(t registration) {
	if e.closed {
		return
	}
	g := &e.registrar
	g.queue = append(g.queue, t)
	if !g.running {
		g.running = true
		e.goroutines.Add(1)
		go e.register()
	}
}

// closeLater makes the registrar close a region. An error means that the memory stays pinned, and
// nothing else, so it is ignored.
func (e *Engine) closeLater(mr transport.MemoryRegion) { e.registerLater(registration{close: mr}) }

// register is the goroutine of the registrar. It ends when there is no task left.
func (e *Engine) register() {
	defer e.goroutines.Done()
	g := &e.registrar
	e.mu.Lock()
	defer e.mu.Unlock()
	for len(g.queue) > 0 && !e.closed {
		t := g.queue[0]
		g.queue[0] = registration{}
		g.queue = g.queue[1:]
		switch {
		case t.close != nil:
			e.mu.Unlock()
			_ = t.close.Close()
			e.mu.Lock()
		case t.owner.waiting():
			e.registerTask(&t)
		}
	}
	g.queue, g.running = nil, false
}

// registerTask registers the memory of a task, and continues its owner.
func (e *Engine) registerTask(t *registration) {
	mr, err := e.registerNow(t.rail, t.buf, t.dev, t.access)
	switch {
	case e.closed:
	case t.owner.waiting():
		t.owner.registered(mr, err)
		e.retry()
		e.wakeSleeper()
	case mr != nil:
		e.closeLater(mr)
	}
}

// registerNow registers buf with a rail. dev is the device that buf is memory of; zero: the host. If the
// registration takes long, registerNow releases the lock
// meanwhile, so a Service and the code that handles completions must not call it.
func (e *Engine) registerNow(to *rail, buf []byte, dev transport.DeviceMemory, access transport.Access) (transport.MemoryRegion, error) {
	if to.pin == nil {
		return to.register(buf, dev, access)
	}
	e.mu.Unlock()
	mr, err := to.register(buf, dev, access)
	e.mu.Lock()
	if err != nil && !e.closed && e.closeQueued() { // there may be room now
		e.mu.Unlock()
		mr, err = to.register(buf, dev, access)
		e.mu.Lock()
	}
	if e.closed { // the domain closes the region
		return nil, errFinalize
	}
	return mr, err
}

// closeQueued closes the regions that the registrar would close later. It releases the lock meanwhile.
// It returns false if there are none.
func (e *Engine) closeQueued() bool {
	var regions []transport.MemoryRegion
	e.registrar.queue = slices.DeleteFunc(e.registrar.queue, func(t registration) bool {
		if t.close != nil {
			regions = append(regions, t.close)
		}
		return t.close != nil
	})
	if len(regions) == 0 {
		return false
	}
	e.mu.Unlock()
	defer e.mu.Lock()
	for _, mr := range regions {
		_ = mr.Close() // as in closeLater
	}
	return true
}

// registerFor makes buf, the buffer of r, a region of the rail to. If a span contains buf and has a region of
// the rail, that is the region, and r.span is the span. If the registration takes long, registerFor
// returns errRegistering, and Request.registered follows, unless r ends before. If the transport has
// no room for a region, r has none, and there is no error.
//
// Hot path: no allocation if a registration was kept.
func (e *Engine) registerFor(r *request, to *rail, buf []byte, access transport.Access) (err error) {
	_, dev := r.whole(to)
	onDevice := dev != transport.DeviceMemory{}
	var s *Span
	switch {
	case r.region != nil || r.registered:
		return nil
	case r.registering:
		return errRegistering
	case onDevice:
		dev.Allocation = r.form.(device).Allocation(buf)
	default:
		s = e.span(buf)
	}
	switch {
	case to.pin == nil && onDevice:
		r.region, err = to.register(buf, dev, access)
	case to.pin == nil || s != nil && s.regions[to.index] != nil:
		r.region, r.span, err = e.regionIn(s, to, buf, access)
	default:
		if r.region = to.pin.KeptMemory(buf, dev, access); r.region == nil {
			r.registering = true
			e.registerLater(registration{owner: Request{r: r, gen: r.gen}, rail: to, buf: buf, dev: dev, access: access})
			return errRegistering
		}
	}
	if errors.Is(err, transport.ErrAgain) {
		r.registered, err = true, nil
	}
	return err
}

func (q Request) waiting() bool { return !q.doneLocked() }

// registered continues a send or receive. Engine.retry continues a send.
func (q Request) registered(mr transport.MemoryRegion, err error) {
	r := q.r
	r.registering, r.registered, r.region = false, true, mr
	switch failed := err != nil && !errors.Is(err, transport.ErrAgain); {
	case r.kind == kindRecv && failed:
		r.e.fetched(r, err)
	case r.kind == kindRecv:
		r.e.fetchBy(r, mr != nil)
	case failed:
		r.e.withdraw(r)
		r.e.opDone(r, err)
	}
}

// transferRegistration is the registration of the local buffer of a transfer.
type transferRegistration struct {
	t      *Transfer
	number uint64 // Transfer.registration
	buf    []byte
	done   func(Memory, error)
}

func (x *transferRegistration) waiting() bool {
	return x.t.registering && x.t.registration == x.number
}

func (x *transferRegistration) registered(mr transport.MemoryRegion, err error) {
	t := x.t
	t.registering, t.r.done = false, true
	var m Memory
	if err == nil {
		m = t.port.e.memory(mr, nil, x.buf, false, closesRegistrar)
	}
	x.done(m, err)
	if t.port.closed && t.r.done {
		t.forget()
	}
}
