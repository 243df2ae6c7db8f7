//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"runtime"
	"strings"
	"unsafe"
)

// Endpoint sends and receives data (fi_endpoint(3)). A program opens it, binds it to queues,
// counters and an address vector, enables it, and then transfers data:
//
//	OpenEndpoint ─► BindCQ BindAV BindEQ BindCounter ─► Enable ─► Send Recv Read Write …
//
// An endpoint of type EPRDM or EPDgram needs an AV, one of type EPMsg an EQ and
// a connection.
type Endpoint struct {
	object
	root        *Endpoint // the endpoint itself, or the endpoint that it is an alias of
	multi       bool      // Recv and RecvV post multi-receives, because the default flags have FlagMultiRecv
	multiTagged bool      // TRecv and TRecvV post multi-receives; only with 2.x
	queue       []*CQ     // the completion queues that the endpoint is bound to
	rx          *Endpoint // the shared receive context that takes the endpoint's messages; nil: none
	other       []*CQ     // only in a shared receive context: the queues of closed endpoints that shared it
	ready       bool      // the endpoint is enabled; changed under the lock objects
	isMsg       bool      // the endpoint's type is EPMsg
	hasEQ       bool      // an event queue is bound

	domain  *Domain
	limits  iovLimits
	request *request // the connection request that the endpoint was opened with; nil: none

	needsAV bool // no address vector is bound, and Close must bind one first
	// lateMinMultiRecv: the endpoint is not enabled yet, and its provider can set OptMinMultiRecv
	// only when it is enabled.
	lateMinMultiRecv bool
	// minMultiRecv is the value of OptMinMultiRecv that Enable will set, if lateMinMultiRecv is
	// true. If it is negative, Enable will set none.
	minMultiRecv int
	atomics      atomicLimits // cached results of AtomicValid and its variants
}

// OpenEndpoint opens the endpoint that info describes (fi_endpoint). If info belongs to a
// connection request that is taken already, OpenEndpoint returns ErrBusy; if the request has ended,
// ErrInvalid.
func (d *Domain) OpenEndpoint(info *Info) (*Endpoint, error) { return d.OpenEndpoint2(info, 0) }

// OpenEndpoint2 is OpenEndpoint with flags (fi_endpoint2): FlagPeerTransfer and flags of the
// provider.
func (d *Domain) OpenEndpoint2(info *Info, flags Flags) (*Endpoint, error) {
	const function = "fi_endpoint"
	if !d.isOpen() {
		return nil, closedError(function)
	}
	if !d.fabric.matches(info) {
		return nil, &Error{function, ErrInvalid}
	}
	request := info.request
	if request != nil {
		if err := request.take(); err != nil {
			return nil, &Error{function, err}
		}
	}
	var (
		c  *C.struct_fid_ep
		rc C.int
	)
	free, err := info.heldC(func(i *C.struct_fi_info) {
		rc = C.fi_endpoint2(d.c(), i, &c, C.uint64_t(flags), nil)
	})
	if err == nil {
		if err = check(function, rc); err != nil {
			free()
		}
	}
	if err != nil {
		if request != nil {
			request.untake()
		}
		return nil, err
	}
	e := newEndpoint(c, d, info, &d.object)
	e.closed = append(e.closed, free)
	if request != nil {
		e.request = request
		e.closed = append(e.closed, request.end)
	}
	e.needsAV = info.EP.Type != EPMsg && (d.fabric.provider == "net" || strings.HasSuffix(d.fabric.provider, "ofi_rxm"))
	e.lateMinMultiRecv = info.Fabric.ProvName == "shm" && LibraryVersion() < MakeVersion(1, 19)
	return e, nil
}

// newEndpoint returns an Endpoint for c, an endpoint that libfabric has opened with info in domain
// d. The endpoint needs the objects in needs.
func newEndpoint(c *C.struct_fid_ep, d *Domain, info *Info, needs ...*object) *Endpoint {
	multi := info.Rx.OpFlags&FlagMultiRecv != 0
	e := &Endpoint{
		multi:        multi,
		multiTagged:  multi && (info.Caps|info.Rx.Caps)&CapTaggedMultiRecv != 0,
		minMultiRecv: -1,
		isMsg:        info.EP.Type == EPMsg,
		domain:       d,
		limits:       newIovLimits(info),
	}
	e.root = e
	e.open(&c.fid, needs...)
	e.closed = append(e.closed, e.abandon)
	return e
}

// Close closes the endpoint (fi_close), which ends its operations in flight. If another object
// needs the endpoint, for example a memory region, Close returns ErrBusy and changes nothing.
// Closing a closed endpoint does nothing.
func (e *Endpoint) Close() error {
	if e == nil {
		return nil
	}
	if e.isOpen() && e.needsAV { // net and rxm dereference the address vector without a check
		v, err := e.domain.OpenAV(AVAttr{Type: AVTable})
		if err != nil {
			return err
		}
		defer func() { _ = v.Close() }() // fails with ErrBusy if the endpoint, which needs v now, stays open
		if err := e.BindAV(v); err != nil {
			return err
		}
	}
	return e.object.Close()
}

// abandon ends the operations that were in flight when the endpoint was closed. The caller holds
// the lock objects. Completions in the endpoint's queues may still have the addresses of the
// operations' slots ([slot]), so the slots are freed when the last of these queues is closed.
func (e *Endpoint) abandon() {
	if e.ready {
		for _, q := range e.queue {
			q.ready--
		}
	}
	if e.rx != nil {
		e.rx.other = append(e.rx.other, e.queue...)
	}
	queues := map[*CQ]bool{}
	for _, q := range append(e.queue, e.other...) {
		if q.isOpen() {
			queues[q] = true
		}
	}
	left, count := abandon(e), len(queues)
	if len(left) == 0 {
		return
	}
	if count == 0 {
		freeSlots(left)
		return
	}
	for q := range queues {
		q.closed = append(q.closed, func() {
			if count--; count == 0 {
				freeSlots(left)
			}
		})
	}
}

// ep returns the address of the C endpoint as an integer, as the functions in shim_ep.h take it.
func (e *Endpoint) ep() C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(e.fid))) }

func (e *Endpoint) c() *C.struct_fid_ep { return (*C.struct_fid_ep)(e.pointer()) }

// bindTo binds the endpoint to o (fi_ep_bind) and records that the endpoint needs o.
func (e *Endpoint) bindTo(o *object, flags Flags) error {
	const function = "fi_ep_bind"
	if !e.isOpen() || !o.isOpen() {
		return closedError(function)
	}
	if err := check(function, C.fi_ep_bind(e.c(), o.fid, C.uint64_t(flags))); err != nil {
		return err
	}
	e.root.bind(o) // not e, which may be an alias: the root is closed last
	return nil
}

// BindAV sets the address vector that translates destination addresses (fi_ep_bind).
func (e *Endpoint) BindAV(v *AV) error {
	if err := e.bindTo(&v.object, 0); err != nil {
		return err
	}
	e.root.needsAV = false
	return nil
}

// BindEQ sets the event queue that reports when the endpoint's connection is established, refused
// or ended (fi_ep_bind).
func (e *Endpoint) BindEQ(q *EQ) error {
	if err := e.bindTo(&q.object, 0); err != nil {
		return err
	}
	e.root.hasEQ = true
	return nil
}

// BindCQ sets the queue that reports completions (fi_ep_bind): of transmit operations if flags have
// FlagTransmit, of receives if flags have FlagRecv. With FlagSelectiveCompletion the success of an
// operation is reported only if the operation has FlagCompletion; failures are always reported.
func (e *Endpoint) BindCQ(q *CQ, flags Flags) error {
	if err := e.bindTo(&q.object, flags); err != nil {
		return err
	}
	objects.Lock()
	defer objects.Unlock()
	e.root.queue = append(e.root.queue, q)
	if e.root.ready {
		q.ready++
	}
	return nil
}

// BindCounter makes a counter count completions of the operations that flags name (fi_ep_bind):
// FlagSend, FlagRecv, FlagRead, FlagWrite, FlagRemoteRead and FlagRemoteWrite.
func (e *Endpoint) BindCounter(n *Counter, flags Flags) error { return e.bindTo(&n.object, flags) }

// Enable makes the endpoint ready for data transfer (fi_enable). Connect and Accept enable it, too.
// Enabling an enabled endpoint does nothing.
func (e *Endpoint) Enable() error {
	const function = "fi_enable"
	if !e.isOpen() {
		return closedError(function)
	}
	if e.root.ready { // otherwise net and rxm would initialise the endpoint a second time
		return nil
	}
	if err := check(function, C.fi_enable(e.c())); err != nil {
		return err
	}
	e.enabled()
	if !e.lateMinMultiRecv {
		return nil
	}
	if e.lateMinMultiRecv = false; e.minMultiRecv < 0 {
		return nil
	}
	return e.SetOpt(OptMinMultiRecv, e.minMultiRecv)
}

// checkUsable returns an error if the endpoint is closed or not enabled. Providers do not check
// that: they would dereference pointers that Enable sets.
func (e *Endpoint) checkUsable() error {
	if !e.isOpen() {
		return ErrClosed
	}
	if !e.root.ready {
		return ErrOpBadState
	}
	return nil
}

// checkDest returns an error if the endpoint is not usable or dest is AddrNotAvail. Most providers
// crash when they look up AddrNotAvail in the address vector.
func (e *Endpoint) checkDest(dest Addr) error {
	if err := e.checkUsable(); err != nil {
		return err
	}
	if dest == AddrNotAvail && !e.root.isMsg {
		return ErrInvalid
	}
	return nil
}

// enabled records that libfabric has enabled the endpoint.
func (e *Endpoint) enabled() {
	objects.Lock()
	defer objects.Unlock()
	if e = e.root; !e.ready {
		e.ready = true
		for _, q := range e.queue {
			q.ready++
		}
	}
}

// Alias returns a second Endpoint for the same C endpoint, with other default flags for operations
// (fi_ep_alias). If flags have FlagTransmit, the other bits of flags replace the OpFlags of the
// TxAttr; with FlagRecv, those of the RxAttr. An operation posted to the alias is in flight on the
// endpoint that e itself is or is an alias of.
func (e *Endpoint) Alias(flags Flags) (*Endpoint, error) {
	const function = "fi_ep_alias"
	if !e.isOpen() {
		return nil, closedError(function)
	}
	var c *C.struct_fid_ep
	if err := check(function, C.fi_ep_alias(e.c(), &c, C.uint64_t(flags))); err != nil {
		return nil, err
	}
	a := &Endpoint{root: e.root, multi: e.multi, multiTagged: e.multiTagged, domain: e.domain}
	if flags&FlagRecv != 0 {
		a.multi = flags&FlagMultiRecv != 0
		a.multiTagged = a.multi && e.domain.info.Caps&CapTaggedMultiRecv != 0
	}
	a.open(&c.fid, &e.object)
	return a, nil
}

// Cancel asks the provider to end an operation in flight, usually a receive (fi_cancel). If the
// request comes in time, the operation fails with ErrCanceled, which ReadErr reports like any
// failure; otherwise the operation completes. Cancel returns ErrNoEntry if the operation is not in
// flight on this endpoint.
func (e *Endpoint) Cancel(ctx *Context) error {
	if !e.isOpen() {
		return ErrClosed
	}
	if ctx == nil || ctx.owner.Load() != e.root {
		return ErrNoEntry
	}
	rc := C.weft_cancel(e.ep(), ctx.address())
	runtime.KeepAlive(ctx)
	if rc < 0 {
		return errno(rc)
	}
	return nil
}

// TxSizeLeft returns how many more transmit operations can be posted (fi_tx_size_left, deprecated).
func (e *Endpoint) TxSizeLeft() (int, error) {
	return e.sizeLeft("fi_tx_size_left", func(c *C.struct_fid_ep) C.ssize_t { return C.weft_tx_size_left(c) })
}

// RxSizeLeft returns how many more receives can be posted (fi_rx_size_left, deprecated).
func (e *Endpoint) RxSizeLeft() (int, error) {
	return e.sizeLeft("fi_rx_size_left", func(c *C.struct_fid_ep) C.ssize_t { return C.weft_rx_size_left(c) })
}

func (e *Endpoint) sizeLeft(function string, left func(*C.struct_fid_ep) C.ssize_t) (int, error) {
	if !e.isOpen() {
		return 0, closedError(function)
	}
	n := left(e.c())
	return int(max(n, 0)), check(function, C.int(min(n, 0)))
}
