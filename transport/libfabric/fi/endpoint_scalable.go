//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"cmp"
	"unsafe"
)

// ScalableEP is an endpoint with several transmit and receive contexts, each
// with queues of its own, that peers know by one address (fi_endpoint(3)).
// RxAddr names one of its receive contexts.
type ScalableEP struct {
	object
	domain *Domain
	info   *Info // what it was opened with
}

// OpenScalableEP opens a scalable endpoint of an Info, with as many contexts as
// its EPAttr says (fi_scalable_ep).
func (d *Domain) OpenScalableEP(info *Info) (*ScalableEP, error) {
	const function = "fi_scalable_ep"
	if !d.isOpen() {
		return nil, closedError(function)
	}
	if !d.fabric.offers(info) {
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

// BindAV says where addresses are looked up (fi_scalable_ep_bind).
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

// Enable makes the endpoint ready (fi_enable); its contexts are enabled one by
// one.
func (s *ScalableEP) Enable() error {
	if !s.isOpen() {
		return closedError("fi_enable")
	}
	return check("fi_enable", C.fi_enable(s.c()))
}

// Name is the endpoint's address (fi_getname).
func (s *ScalableEP) Name() ([]byte, error) {
	const function = "fi_getname"
	if !s.isOpen() {
		return nil, closedError(function)
	}
	return getAddr(function, func(addr unsafe.Pointer, n *C.size_t) C.int { return C.fi_getname(s.fid, addr, n) })
}

// TxContext opens the transmit context with this index, an endpoint that only
// sends (fi_tx_context). Without an attr it has the endpoint's.
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

// RxContext opens the receive context with this index, an endpoint that only
// receives (fi_rx_context). Without an attr it has the endpoint's.
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

// SharedTx is a transmit context that endpoints share (fi_stx_context): those
// whose EPAttr has SharedContext as TxCtxCnt.
type SharedTx struct{ object }

// OpenSharedTx opens a shared transmit context (fi_stx_context). A nil attr is
// the provider's choice.
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

// OpenSharedRx opens a receive context that endpoints share (fi_srx_context):
// those whose EPAttr has SharedContext as RxCtxCnt. It is an endpoint that only
// receives, for all of them. A nil attr is the provider's choice.
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
	e.ready = true // there is nothing to enable
	return e, nil
}

// BindSharedTx has the endpoint send through a shared transmit context
// (fi_ep_bind).
func (e *Endpoint) BindSharedTx(s *SharedTx) error { return e.bindTo(&s.object, 0) }

// BindSharedRx has the endpoint's messages taken by a shared receive context
// (fi_ep_bind). Their completions go to the queue of the endpoint.
func (e *Endpoint) BindSharedRx(s *Endpoint) error {
	if err := e.bindTo(&s.object, 0); err != nil {
		return err
	}
	objects.Lock()
	defer objects.Unlock()
	e.root.rx = s
	return nil
}
