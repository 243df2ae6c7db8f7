package engine

import (
	"errors"

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
//   - A goroutine runs registrar.loop if and only if registrar.running is set.
//   - A request may end while its buffer is being registered. The registrar then closes the region,
//     which it finds by the request's generation. The domain keeps the buffer pinned until then.

// registrar registers memory, and closes regions, in a goroutine of its own, in the order of calls.
// The engine's lock guards it.
type registrar struct {
	queue   []registration
	running bool
}

// registration is a task of the registrar.
type registration struct {
	rail   *rail
	buf    []byte
	access transport.Access
	// done gets the result. It is called with the lock. The owner of the region closes it by Engine.closeLater.
	done  func(transport.MemoryRegion, error)
	close transport.MemoryRegion // nil: the task is to register buf; otherwise to close this region
}

// errRegistering means that the registrar registers the memory of a request.
var errRegistering = errors.New("engine: the memory is being registered")

// registerLater makes the registrar do a task. If the engine is closed meanwhile, done is not called.
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
		e.mu.Unlock()
		var mr transport.MemoryRegion
		var err error
		if t.close != nil {
			_ = t.close.Close()
		} else {
			mr, err = t.rail.register(t.buf, t.access)
		}
		e.mu.Lock()
		if t.done != nil && !e.closed {
			t.done(mr, err)
			e.retry()
			e.wakeSleeper()
		}
	}
	g.queue, g.running = nil, false
}

// registerNow registers buf with a rail. If that takes long, registerNow releases the lock meanwhile. So
// it is not for code that the engine calls.
func (e *Engine) registerNow(to *rail, buf []byte, access transport.Access) (transport.MemoryRegion, error) {
	if to.pin != nil {
		e.mu.Unlock()
		defer e.mu.Lock()
	}
	return to.register(buf, access)
}

// registerFor makes buf, the buffer of r, a region of the rail to, as Engine.region does. If that takes
// long, it returns errRegistering, and registeredFor follows, unless r ends before. If the transport
// has no room for a region, r has none, and there is no error.
//
// Hot path: no allocation if a registration was kept.
func (e *Engine) registerFor(r *request, to *rail, buf []byte, access transport.Access) (err error) {
	switch s := e.span(buf); {
	case r.region != nil || r.registered:
		return nil
	case r.registering:
		return errRegistering
	case to.pin == nil || s != nil && s.regions[to.index] != nil:
		r.region, r.span, err = e.regionIn(s, to, buf, access)
	default:
		if r.region = to.pin.KeptMemory(buf, access); r.region == nil {
			r.registering = true
			id := Request{r: r, gen: r.gen}
			e.registerLater(registration{rail: to, buf: buf, access: access, done: func(mr transport.MemoryRegion, err error) {
				e.registeredFor(id, mr, err)
			}})
			return errRegistering
		}
	}
	if errors.Is(err, transport.ErrAgain) {
		r.registered, err = true, nil
	}
	return err
}

// registeredFor continues the request id with the region mr, or with err, the error of the
// registration. Engine.retry continues a send.
func (e *Engine) registeredFor(id Request, mr transport.MemoryRegion, err error) {
	if id.doneLocked() || !id.r.registering {
		if mr != nil {
			e.closeLater(mr)
		}
		return
	}
	r := id.r
	r.registering, r.registered, r.region = false, true, mr
	switch failed := err != nil && !errors.Is(err, transport.ErrAgain); {
	case r.kind == kindRecv && failed:
		e.fetched(r, err)
	case r.kind == kindRecv:
		e.fetchBy(r, mr != nil)
	case failed:
		e.withdraw(r)
		e.opDone(r, err)
	}
}
