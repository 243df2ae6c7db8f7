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
//	who connects                            who listens
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
// All of these calls return at once; how they end is told by the event queue
// that the endpoint is bound to. Private data of at most CMDataSize bytes goes
// along with a request and with its answer.

// PassiveEP listens for connections (struct fid_pep, fi_endpoint(3)).
type PassiveEP struct {
	object
	eq *EQ
}

// OpenPassiveEP opens an endpoint that listens at info.SrcAddr (fi_passive_ep).
func (f *Fabric) OpenPassiveEP(info *Info) (*PassiveEP, error) {
	const function = "fi_passive_ep"
	if !f.isOpen() {
		return nil, closedError(function)
	}
	if !f.offers(info) {
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

// BindEQ makes connection requests appear on q (fi_pep_bind), once and before
// Listen.
func (p *PassiveEP) BindEQ(q *EQ) error {
	const function = "fi_pep_bind"
	if !p.isOpen() || !q.isOpen() {
		return closedError(function)
	}
	if p.eq != nil { // sockets would forget the first
		return &Error{function, ErrInvalid}
	}
	if err := check(function, C.fi_pep_bind(p.c(), q.fid, 0)); err != nil {
		return err
	}
	p.bind(&q.object)
	p.eq = q
	return nil
}

// SetBacklog sets how many requests may wait to be looked at (fi_control with
// FI_BACKLOG), before Listen.
func (p *PassiveEP) SetBacklog(n int) error {
	const function = "fi_control"
	if !p.isOpen() {
		return closedError(function)
	}
	return check(function, C.weft_backlog(p.c(), C.int(n)))
}

// Listen begins to take connection requests (fi_listen). Each is an EventConnReq,
// and its Info is to be accepted by an endpoint or rejected: until then it keeps
// the peer waiting, and its connection open.
func (p *PassiveEP) Listen() error {
	const function = "fi_listen"
	if !p.isOpen() {
		return closedError(function)
	}
	if p.eq == nil { // some providers follow the null pointer
		return &Error{function, ErrNoEQ}
	}
	return check(function, C.fi_listen(p.c()))
}

// Name is the address that peers connect to, known after Listen (fi_getname).
func (p *PassiveEP) Name() ([]byte, error) {
	const function = "fi_getname"
	if !p.isOpen() {
		return nil, closedError(function)
	}
	return getAddr(function, func(addr unsafe.Pointer, n *C.size_t) C.int {
		return C.fi_getname(p.fid, addr, n)
	})
}

// SetName changes the address, before Listen (fi_setname).
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

// CMDataSize is how many bytes of private data an answer may carry (fi_getopt
// with FI_OPT_CM_DATA_SIZE).
func (p *PassiveEP) CMDataSize() (int, error) {
	if !p.isOpen() {
		return 0, closedError("fi_getopt")
	}
	return cmDataSize(p.fid)
}

// Reject refuses the connection request that request came with (fi_reject). The
// peer's Connect ends in an error event with ErrConnRefused and data. A request
// that an endpoint was opened with is ErrBusy, and one that is over ErrInvalid.
func (p *PassiveEP) Reject(request *Info, data []byte) error {
	const function = "fi_reject"
	if !p.isOpen() {
		return closedError(function)
	}
	if err := p.fits(function, data); err != nil {
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

// Connect asks the passive endpoint at addr for a connection, and sends data
// along (fi_connect). It can be called once in the life of an endpoint.
// EventConnected says that it was accepted; an error event that it was not.
// Some providers say here already that nobody listens.
func (e *Endpoint) Connect(addr, data []byte) error {
	const function = "fi_connect"
	if !e.isOpen() {
		return closedError(function)
	}
	if !fits(addr, e.domain.info.AddrFormat) { // as much is read as its family says
		return &Error{function, ErrInvalid}
	}
	if e.root.connects && !e.root.told { // some providers follow the null pointer
		return &Error{function, ErrNoEQ}
	}
	if err := e.fits(function, data); err != nil {
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

// Accept accepts the connection request that the endpoint was opened with, and
// sends data along (fi_accept). An endpoint without a request, or whose request
// was accepted before, is ErrInvalid.
func (e *Endpoint) Accept(data []byte) error {
	const function = "fi_accept"
	if !e.isOpen() {
		return closedError(function)
	}
	if e.root.connects && !e.root.told {
		return &Error{function, ErrNoEQ}
	}
	if !e.root.request.pending() { // sockets does not look, and would follow what was freed
		return &Error{function, ErrInvalid}
	}
	if err := e.fits(function, data); err != nil {
		return err
	}
	if err := check(function, C.weft_accept(e.c(), dataPointer(data), C.size_t(len(data)))); err != nil {
		return err
	}
	e.root.request.end()
	e.enabled()
	return nil
}

// Shutdown ends the connection (fi_shutdown): operations in flight are cancelled
// or dropped, and the peer gets EventShutdown.
func (e *Endpoint) Shutdown() error {
	const function = "fi_shutdown"
	if !e.isOpen() {
		return closedError(function)
	}
	return check(function, C.weft_shutdown(e.c()))
}

// Peer is the address at the other end of the connection (fi_getpeer).
func (e *Endpoint) Peer() ([]byte, error) {
	const function = "fi_getpeer"
	if !e.isOpen() {
		return nil, closedError(function)
	}
	return getAddr(function, func(addr unsafe.Pointer, n *C.size_t) C.int {
		return C.weft_getpeer(e.c(), addr, n)
	})
}

// CMDataSize is how many bytes of private data a request or an answer may carry
// (fi_getopt with FI_OPT_CM_DATA_SIZE).
func (e *Endpoint) CMDataSize() (int, error) {
	if !e.isOpen() {
		return 0, closedError("fi_getopt")
	}
	return cmDataSize(e.fid)
}

// fits refuses data that is larger than what the protocol carries. The manual
// says that it is cut; providers answer EINVAL, or copy it beyond their buffers.
func (o *object) fits(function string, data []byte) error {
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

// dataPointer is where private data begins, NULL for none.
func dataPointer(data []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(data)) }

// getAddr is an address that get writes, of whatever length.
func getAddr(function string, get func(addr unsafe.Pointer, n *C.size_t) C.int) ([]byte, error) {
	addr := make([]byte, 64) // sockets' addresses have up to 28, names of shared memory more
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
		if int(n) > len(addr) { // truncated without a word
			addr = make([]byte, n)
			continue
		}
		return addr[:n], nil
	}
}
