//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"runtime"
	"strings"
	"unsafe"
)

// Endpoint is where data goes out and comes in (fi_endpoint(3)). It is opened,
// bound to queues, counters and an address vector, enabled, and then used:
//
//	OpenEndpoint ─► BindCQ BindAV BindEQ BindCounter ─► Enable ─► Send Recv Read Write …
//
// An endpoint of type EPRDM or EPDgram needs an AV, one of type EPMsg an EQ and
// a connection.
type Endpoint struct {
	object
	root        *Endpoint // the endpoint itself, or that of which it is an alias
	multi       bool      // receives take several messages unless their flags say something else
	multiTagged bool      // and so do tagged ones (2.x)
	queue       []*CQ     // where its operations complete
	rx          *Endpoint // takes its messages instead, where that is shared
	other       []*CQ     // of a shared one: queues of endpoints that were closed
	ready       bool      // it is enabled; changes with objects locked
	connects    bool      // it is of type EPMsg
	told        bool      // there is an event queue for its connections

	domain  *Domain
	limits  iovLimits
	request *request // the connection request that it was opened with

	needsAV      bool         // it cannot be closed without a vector
	late         bool         // OptMinMultiRecv cannot be set before the endpoint is enabled
	minMultiRecv int          // and will be this then; negative: it was not set
	atomics      atomicLimits // what it can do of them
}

// OpenEndpoint opens an endpoint of an Info (fi_endpoint).
func (d *Domain) OpenEndpoint(info *Info) (*Endpoint, error) { return d.OpenEndpoint2(info, 0) }

// OpenEndpoint2 is OpenEndpoint with flags (fi_endpoint2), FlagPeerTransfer and
// those of providers.
func (d *Domain) OpenEndpoint2(info *Info, flags Flags) (*Endpoint, error) {
	const function = "fi_endpoint"
	if !d.isOpen() {
		return nil, closedError(function)
	}
	if !d.fabric.offers(info) {
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
			request.giveBack()
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
	e.late = info.Fabric.ProvName == "shm" && LibraryVersion() < MakeVersion(1, 19)
	return e, nil
}

// newEndpoint owns an endpoint of a domain that has been opened by an info, from
// what it needs.
func newEndpoint(c *C.struct_fid_ep, d *Domain, info *Info, needs ...*object) *Endpoint {
	multi := info.Rx.OpFlags&FlagMultiRecv != 0
	e := &Endpoint{
		multi:        multi,
		multiTagged:  multi && (info.Caps|info.Rx.Caps)&CapTaggedMultiRecv != 0,
		minMultiRecv: -1,
		connects:     info.EP.Type == EPMsg,
		domain:       d,
		limits:       newIovLimits(info),
	}
	e.root = e
	e.open(&c.fid, needs...)
	e.closed = append(e.closed, e.abandon)
	return e
}

// Close closes the endpoint (fi_close), which ends what is in flight on it. While
// something needs it, as a memory region may, it answers ErrBusy and nothing is
// changed. Closing a closed endpoint does nothing.
func (e *Endpoint) Close() error {
	if e == nil {
		return nil
	}
	if e.isOpen() && e.needsAV { // they would follow the null pointer to it
		v, err := e.domain.OpenAV(AVAttr{Type: AVTable})
		if err != nil {
			return err
		}
		defer func() { _ = v.Close() }() // busy if the endpoint is
		if err := e.BindAV(v); err != nil {
			return err
		}
	}
	return e.object.Close()
}

// abandon ends what was in flight. It runs when the endpoint has been closed,
// with objects locked. The slots wait for the queues that may still name them.
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

// ep is the endpoint for the shim.
func (e *Endpoint) ep() C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(e.fid))) }

func (e *Endpoint) c() *C.struct_fid_ep { return (*C.struct_fid_ep)(e.pointer()) }

// bindTo binds the endpoint to another object (fi_ep_bind).
func (e *Endpoint) bindTo(o *object, flags Flags) error {
	const function = "fi_ep_bind"
	if !e.isOpen() || !o.isOpen() {
		return closedError(function)
	}
	if err := check(function, C.fi_ep_bind(e.c(), o.fid, C.uint64_t(flags))); err != nil {
		return err
	}
	e.root.bind(o) // which outlives its aliases
	return nil
}

// BindAV says where addresses are looked up (fi_ep_bind).
func (e *Endpoint) BindAV(v *AV) error {
	if err := e.bindTo(&v.object, 0); err != nil {
		return err
	}
	e.root.needsAV = false
	return nil
}

// BindEQ says where connections and their ends are told (fi_ep_bind).
func (e *Endpoint) BindEQ(q *EQ) error {
	if err := e.bindTo(&q.object, 0); err != nil {
		return err
	}
	e.root.told = true
	return nil
}

// BindCQ says where operations complete (fi_ep_bind): those of FlagTransmit, of
// FlagRecv, or both. With FlagSelectiveCompletion only operations that ask for it by
// FlagCompletion tell their success; failures are always told.
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

// BindCounter says what counts completions (fi_ep_bind): those of the operations
// that flags name, among FlagSend, FlagRecv, FlagRead, FlagWrite, FlagRemoteRead and
// FlagRemoteWrite.
func (e *Endpoint) BindCounter(n *Counter, flags Flags) error { return e.bindTo(&n.object, flags) }

// Enable makes the endpoint ready for data transfer (fi_enable). Connect and
// Accept do it as well. Enabling it once more does nothing.
func (e *Endpoint) Enable() error {
	const function = "fi_enable"
	if !e.isOpen() {
		return closedError(function)
	}
	if e.root.ready { // net and rxm would start all over
		return nil
	}
	if err := check(function, C.fi_enable(e.c())); err != nil {
		return err
	}
	e.enabled()
	if !e.late {
		return nil
	}
	if e.late = false; e.minMultiRecv < 0 {
		return nil
	}
	return e.SetOpt(OptMinMultiRecv, e.minMultiRecv)
}

// usable is the error of data transfer on an endpoint that is closed, or not
// enabled: providers would follow pointers to what they have not got yet.
func (e *Endpoint) usable() error {
	if !e.isOpen() {
		return ErrClosed
	}
	if !e.root.ready {
		return ErrOpBadState
	}
	return nil
}

// reaches is the error of data transfer to a peer. That nobody has this address
// most providers find out by a segmentation fault.
func (e *Endpoint) reaches(dest Addr) error {
	if err := e.usable(); err != nil {
		return err
	}
	if dest == AddrNotAvail && !e.root.connects {
		return ErrInvalid
	}
	return nil
}

// enabled notes that the endpoint is enabled.
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

// Alias opens the same endpoint under other flags for its operations
// (fi_ep_alias): flags are those of the TxAttr with FlagTransmit, or of the
// RxAttr with FlagRecv. What is posted to an alias is in flight on the endpoint.
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

// Cancel asks for the end of an operation in flight (fi_cancel), as a rule a
// receive. If it comes in time the operation fails with ErrCanceled, told by
// ReadErr as any failure; otherwise it completes. ErrNoEntry says that it is not
// in flight here.
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

// TxSizeLeft is how many operations can still be posted (fi_tx_size_left,
// deprecated).
func (e *Endpoint) TxSizeLeft() (int, error) {
	return e.sizeLeft("fi_tx_size_left", func(c *C.struct_fid_ep) C.ssize_t { return C.weft_tx_size_left(c) })
}

// RxSizeLeft is how many receives can still be posted (fi_rx_size_left,
// deprecated).
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
