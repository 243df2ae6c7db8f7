//go:build libfabric

package fi

// #include "shim_cm.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Connections of endpoints of type EPMsg (fi_cm(3)):
//
//	client                                  server
//	                                        OpenPassiveEP, BindEQ, Listen
//	OpenEndpoint, BindEQ, Enable
//	Connect(addr, data) ───────────────────► EventConnReq with Info and data
//	                                         OpenEndpoint(Info), BindEQ, Enable
//	EventConnected with data ◄────────────── Accept(data), EventConnected
//	                  … Send, Recv, Write, Read …
//	EventShutdown ◄───────────────────────── Shutdown
//
//	error event with data ◄───────────────── or Reject(Info, data)
//
// All of these calls return at once. Events of the EQ that the endpoint is bound to report their
// results. A request and its answer carry up to CMDataSize bytes of private data each.

// PassiveEP listens for connections (struct fid_pep, fi_endpoint(3)).
type PassiveEP struct {
	object
	eq *EQ
}

// OpenPassiveEP opens a passive endpoint, which listens at info.SrcAddr after Listen
// (fi_passive_ep).
func (f *Fabric) OpenPassiveEP(info *Info) (*PassiveEP, error) {
	const function = "fi_passive_ep"
	if !f.isOpen() {
		return nil, closedError(function)
	}
	if !f.matches(info) {
		return nil, &Error{function, ErrInvalid}
	}
	var (
		c  *C.struct_fid_pep
		rc C.int
	)
	free, err := info.heldC(func(i *C.struct_fi_info) { rc = C.fi_passive_ep(f.c(), i, &c, nil) })
	if err != nil {
		return nil, err
	}
	if err := check(function, rc); err != nil {
		free()
		return nil, err
	}
	p := new(PassiveEP)
	p.open(&c.fid, &f.object)
	p.closed = append(p.closed, free)
	return p, nil
}

func (p *PassiveEP) c() *C.struct_fid_pep { return (*C.struct_fid_pep)(p.pointer()) }

// BindEQ makes q report the connection requests of peers (fi_pep_bind). Call it once, before
// Listen.
func (p *PassiveEP) BindEQ(q *EQ) error {
	const function = "fi_pep_bind"
	if !p.isOpen() || !q.isOpen() {
		return closedError(function)
	}
	if p.eq != nil { // sockets would replace the first queue
		return &Error{function, ErrInvalid}
	}
	if err := check(function, C.fi_pep_bind(p.c(), q.fid, 0)); err != nil {
		return err
	}
	p.bind(&q.object)
	p.eq = q
	return nil
}

// SetBacklog sets how many connection requests may be queued (fi_control with FI_BACKLOG). Call it
// before Listen.
func (p *PassiveEP) SetBacklog(n int) error {
	const function = "fi_control"
	if !p.isOpen() {
		return closedError(function)
	}
	return check(function, C.weft_backlog(p.c(), C.int(n)))
}

// Listen starts to take connection requests (fi_listen). Each request causes an EventConnReq with
// an Info. The caller must open an endpoint with the Info and accept the request, or reject it;
// until then the peer waits and the underlying connection stays open.
func (p *PassiveEP) Listen() error {
	const function = "fi_listen"
	if !p.isOpen() {
		return closedError(function)
	}
	if p.eq == nil { // some providers dereference the event queue without a check
		return &Error{function, ErrNoEQ}
	}
	return check(function, C.fi_listen(p.c()))
}

// Name returns the address that peers connect to (fi_getname). It is known after Listen.
func (p *PassiveEP) Name() ([]byte, error) {
	const function = "fi_getname"
	if !p.isOpen() {
		return nil, closedError(function)
	}
	return getAddr(function, func(addr unsafe.Pointer, n *C.size_t) C.int {
		return C.fi_getname(p.fid, addr, n)
	})
}

// SetName changes the address that the endpoint listens at (fi_setname). Call it before Listen.
func (p *PassiveEP) SetName(addr []byte) error {
	const function = "fi_setname"
	if !p.isOpen() {
		return closedError(function)
	}
	if len(addr) == 0 {
		return &Error{function, ErrInvalid}
	}
	return check(function, C.fi_setname(p.fid, unsafe.Pointer(&addr[0]), C.size_t(len(addr))))
}

// CMDataSize returns how many bytes of private data the answer to a connection request may carry
// (fi_getopt with FI_OPT_CM_DATA_SIZE).
func (p *PassiveEP) CMDataSize() (int, error) {
	if !p.isOpen() {
		return 0, closedError("fi_getopt")
	}
	return cmDataSize(p.fid)
}

// Reject refuses the connection request that the Info carries (fi_reject). The peer's event queue
// gets an error with ErrConnRefused and data. Reject returns ErrBusy if an endpoint was opened with
// the request, and ErrInvalid if the Info carries none or the request was already answered.
func (p *PassiveEP) Reject(request *Info, data []byte) error {
	const function = "fi_reject"
	if !p.isOpen() {
		return closedError(function)
	}
	if err := p.checkCMData(function, data); err != nil {
		return err
	}
	r := request.request
	if err := r.take(); err != nil {
		return &Error{function, err}
	}
	rc := C.fi_reject(p.c(), C.fid_t(r.handle), dataPointer(data), C.size_t(len(data)))
	r.end()
	return check(function, rc)
}

// Connect requests a connection to the passive endpoint at addr and sends data with the request
// (fi_connect). It can be called once per endpoint. If the peer accepts, the endpoint's event queue
// gets an EventConnected, else an error. If no endpoint listens at addr, with some providers
// Connect itself returns an error instead.
func (e *Endpoint) Connect(addr, data []byte) error {
	const function = "fi_connect"
	if !e.isOpen() {
		return closedError(function)
	}
	// Providers read as many bytes of addr as an address of its family has.
	if !validAddr(addr, e.domain.info.AddrFormat) {
		return &Error{function, ErrInvalid}
	}
	if e.root.isMsg && !e.root.hasEQ { // some providers dereference the queue without a check
		return &Error{function, ErrNoEQ}
	}
	if err := e.checkCMData(function, data); err != nil {
		return err
	}
	rc := C.weft_connect(e.c(), unsafe.Pointer(&addr[0]), dataPointer(data), C.size_t(len(data)))
	runtime.KeepAlive(data)
	if err := check(function, rc); err != nil {
		return err
	}
	e.enabled()
	return nil
}

// Accept accepts the connection request that the endpoint was opened with, and sends data with the
// answer (fi_accept). It returns ErrInvalid if there is no request, or if it was already answered.
func (e *Endpoint) Accept(data []byte) error {
	const function = "fi_accept"
	if !e.isOpen() {
		return closedError(function)
	}
	if e.root.isMsg && !e.root.hasEQ {
		return &Error{function, ErrNoEQ}
	}
	if !e.root.request.pending() { // sockets does not check, and would use freed memory
		return &Error{function, ErrInvalid}
	}
	if err := e.checkCMData(function, data); err != nil {
		return err
	}
	if err := check(function, C.weft_accept(e.c(), dataPointer(data), C.size_t(len(data)))); err != nil {
		return err
	}
	e.root.request.end()
	e.enabled()
	return nil
}

// Shutdown ends the connection (fi_shutdown). Operations in flight are cancelled or dropped, and
// the peer gets an EventShutdown.
func (e *Endpoint) Shutdown() error {
	const function = "fi_shutdown"
	if !e.isOpen() {
		return closedError(function)
	}
	return check(function, C.weft_shutdown(e.c()))
}

// Peer returns the address of the other end of the connection (fi_getpeer).
func (e *Endpoint) Peer() ([]byte, error) {
	const function = "fi_getpeer"
	if !e.isOpen() {
		return nil, closedError(function)
	}
	return getAddr(function, func(addr unsafe.Pointer, n *C.size_t) C.int {
		return C.weft_getpeer(e.c(), addr, n)
	})
}

// CMDataSize returns how many bytes of private data a connection request or its answer may carry
// (fi_getopt with FI_OPT_CM_DATA_SIZE).
func (e *Endpoint) CMDataSize() (int, error) {
	if !e.isOpen() {
		return 0, closedError("fi_getopt")
	}
	return cmDataSize(e.fid)
}

// checkCMData returns an error if data is longer than the provider can carry. According to the man
// page providers truncate such data, but they return EINVAL or write beyond their buffers.
func (o *object) checkCMData(function string, data []byte) error {
	if len(data) == 0 {
		return nil
	}
	limit, err := cmDataSize(o.fid)
	if err != nil {
		return err
	}
	if len(data) > limit {
		return &Error{function, ErrInvalid}
	}
	return nil
}

func cmDataSize(fid *C.struct_fid) (int, error) {
	var size C.size_t
	if err := check("fi_getopt", C.weft_cm_data_size(fid, &size)); err != nil {
		return 0, err
	}
	return int(size), nil
}

// dataPointer returns the address of private data, NULL if there is none.
func dataPointer(data []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(data)) }

// getAddr returns the address that get writes to addr. get calls the C function with this name, and
// sets *n to the length of the address; if that is too long for addr, getAddr calls get again with
// a larger buffer.
func getAddr(function string, get func(addr unsafe.Pointer, n *C.size_t) C.int) ([]byte, error) {
	addr := make([]byte, 64) // an IP socket address has up to 28 bytes, a name of shm may have more
	for {
		n := C.size_t(len(addr))
		rc := get(unsafe.Pointer(&addr[0]), &n)
		if rc == -C.FI_ETOOSMALL && int(n) > len(addr) {
			addr = make([]byte, n)
			continue
		}
		if err := check(function, rc); err != nil {
			return nil, err
		}
		if int(n) > len(addr) { // the provider has truncated the address and returned no error
			addr = make([]byte, n)
			continue
		}
		return addr[:n], nil
	}
}
