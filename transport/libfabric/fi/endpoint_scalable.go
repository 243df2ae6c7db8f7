//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"cmp"
	"unsafe"
)

// ScalableEP is an endpoint with one address and several transmit and receive contexts
// (fi_endpoint(3)). Each context is an [Endpoint] with completion queues of its own. [RxAddr]
// returns the address of one of its receive contexts.
type ScalableEP struct {
	object
	domain *Domain
	info   *Info // a copy of the Info that the scalable endpoint was opened with
}

// OpenScalableEP opens the scalable endpoint that info describes (fi_scalable_ep). TxCtxCnt and
// RxCtxCnt in info.EP are the numbers of contexts.
func (d *Domain) OpenScalableEP(info *Info) (*ScalableEP, error) {
	const function = "fi_scalable_ep"
	if !d.isOpen() {
		return nil, closedError(function)
	}
	if !d.fabric.matches(info) {
		return nil, &Error{function, ErrInvalid}
	}
	var (
		c  *C.struct_fid_ep
		rc C.int
	)
	free, err := info.heldC(func(i *C.struct_fi_info) { rc = C.fi_scalable_ep(d.c(), i, &c, nil) })
	if err != nil {
		return nil, err
	}
	if err := check(function, rc); err != nil {
		free()
		return nil, err
	}
	s := &ScalableEP{domain: d, info: info.Dup()}
	s.open(&c.fid, &d.object)
	s.closed = append(s.closed, free)
	return s, nil
}

func (s *ScalableEP) c() *C.struct_fid_ep { return (*C.struct_fid_ep)(s.pointer()) }

// BindAV sets the address vector that translates destination addresses (fi_scalable_ep_bind).
func (s *ScalableEP) BindAV(v *AV) error {
	const function = "fi_scalable_ep_bind"
	if !s.isOpen() || !v.isOpen() {
		return closedError(function)
	}
	if err := check(function, C.fi_scalable_ep_bind(s.c(), v.fid, 0)); err != nil {
		return err
	}
	s.bind(&v.object)
	return nil
}

// Enable makes the endpoint ready for use (fi_enable). The program must also enable each of its
// contexts.
func (s *ScalableEP) Enable() error {
	if !s.isOpen() {
		return closedError("fi_enable")
	}
	return check("fi_enable", C.fi_enable(s.c()))
}

// Name returns the endpoint's address (fi_getname).
func (s *ScalableEP) Name() ([]byte, error) {
	const function = "fi_getname"
	if !s.isOpen() {
		return nil, closedError(function)
	}
	return getAddr(function, func(addr unsafe.Pointer, n *C.size_t) C.int { return C.fi_getname(s.fid, addr, n) })
}

// TxContext opens the transmit context with this index, an endpoint for transmit operations only
// (fi_tx_context). If attr is nil, the context has the attributes of the scalable endpoint.
func (s *ScalableEP) TxContext(index int, attr *TxAttr) (*Endpoint, error) {
	const function = "fi_tx_context"
	if !s.isOpen() {
		return nil, closedError(function)
	}
	var (
		a *C.struct_fi_tx_attr
		c *C.struct_fid_ep
	)
	info := *s.info
	if attr != nil {
		a = new(C.struct_fi_tx_attr)
		attr.write(a)
		info.Tx = *attr
		info.Tx.IovLimit = cmp.Or(attr.IovLimit, s.info.Tx.IovLimit)
		info.Tx.InjectSize = cmp.Or(attr.InjectSize, s.info.Tx.InjectSize)
		info.Tx.RMAIovLimit = cmp.Or(attr.RMAIovLimit, s.info.Tx.RMAIovLimit)
	}
	if err := check(function, C.fi_tx_context(s.c(), C.int(index), a, &c, nil)); err != nil {
		return nil, err
	}
	return newEndpoint(c, s.domain, &info, &s.object), nil
}

// RxContext opens the receive context with this index, an endpoint that only receives
// (fi_rx_context). If attr is nil, the context has the attributes of the scalable endpoint.
func (s *ScalableEP) RxContext(index int, attr *RxAttr) (*Endpoint, error) {
	const function = "fi_rx_context"
	if !s.isOpen() {
		return nil, closedError(function)
	}
	var (
		a *C.struct_fi_rx_attr
		c *C.struct_fid_ep
	)
	if attr != nil {
		a = new(C.struct_fi_rx_attr)
		attr.write(a)
	}
	info := *s.info
	if attr != nil {
		info.Rx = *attr
		info.Rx.IovLimit = cmp.Or(attr.IovLimit, s.info.Rx.IovLimit)
	}
	if err := check(function, C.fi_rx_context(s.c(), C.int(index), a, &c, nil)); err != nil {
		return nil, err
	}
	return newEndpoint(c, s.domain, &info, &s.object), nil
}

// SharedTx is a transmit context that several endpoints share (fi_stx_context). Those endpoints
// have SharedContext as TxCtxCnt of their EPAttr.
type SharedTx struct{ object }

// OpenSharedTx opens a shared transmit context (fi_stx_context). If attr is nil, the provider
// chooses the attributes.
func (d *Domain) OpenSharedTx(attr *TxAttr) (*SharedTx, error) {
	const function = "fi_stx_context"
	if !d.isOpen() {
		return nil, closedError(function)
	}
	var (
		a *C.struct_fi_tx_attr
		c *C.struct_fid_stx
	)
	if attr != nil {
		a = new(C.struct_fi_tx_attr)
		attr.write(a)
	}
	if err := check(function, C.fi_stx_context(d.c(), a, &c, nil)); err != nil {
		return nil, err
	}
	s := new(SharedTx)
	s.open(&c.fid, &d.object)
	return s, nil
}

// OpenSharedRx opens a shared receive context (fi_srx_context): an endpoint that only receives, for
// all endpoints that are bound to it. Those endpoints have SharedContext as RxCtxCnt of their
// EPAttr. If attr is nil, the provider chooses the attributes.
func (d *Domain) OpenSharedRx(attr *RxAttr) (*Endpoint, error) {
	const function = "fi_srx_context"
	if !d.isOpen() {
		return nil, closedError(function)
	}
	var (
		a *C.struct_fi_rx_attr
		c *C.struct_fid_ep
	)
	if attr != nil {
		a = new(C.struct_fi_rx_attr)
		attr.write(a)
	}
	info := *d.info
	if attr != nil {
		info.Rx = *attr
		info.Rx.IovLimit = cmp.Or(attr.IovLimit, d.info.Rx.IovLimit)
	}
	if err := check(function, C.fi_srx_context(d.c(), a, &c, nil)); err != nil {
		return nil, err
	}
	e := newEndpoint(c, d, &info, &d.object)
	e.ready = true // a shared receive context is ready for use without fi_enable
	return e, nil
}

// BindSharedTx makes the endpoint send through a shared transmit context (fi_ep_bind).
func (e *Endpoint) BindSharedTx(s *SharedTx) error { return e.bindTo(&s.object, 0) }

// BindSharedRx makes a shared receive context take the endpoint's messages (fi_ep_bind). The
// completions of these messages go to the endpoint's queue.
func (e *Endpoint) BindSharedRx(s *Endpoint) error {
	if err := e.bindTo(&s.object, 0); err != nil {
		return err
	}
	objects.Lock()
	defer objects.Unlock()
	e.root.rx = s
	return nil
}
