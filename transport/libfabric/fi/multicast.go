//go:build libfabric

package fi

// #include "shim_cm.h"
import "C"

import "unsafe"

// Multicast is an endpoint's membership in a multicast group (struct fid_mc,
// fi_cm(3)). Close leaves the group.
type Multicast struct {
	object
}

// Join makes the endpoint a member of the group at addr, an address in the domain's format
// (fi_join). With FlagSend or FlagRecv the endpoint only sends to the group, or only receives from
// it. After an EventJoinComplete on the endpoint's event queue, messages can be sent to the group's
// Addr with FlagMulticast.
func (e *Endpoint) Join(addr []byte, flags Flags) (*Multicast, error) {
	const function = "fi_join"
	if !e.isOpen() {
		return nil, closedError(function)
	}
	if !validAddr(addr, e.domain.info.AddrFormat) {
		return nil, &Error{function, ErrInvalid}
	}
	var c *C.struct_fid_mc
	if err := check(function, C.weft_join(e.c(), unsafe.Pointer(&addr[0]), C.uint64_t(flags), &c)); err != nil {
		return nil, err
	}
	m := new(Multicast)
	m.open(&c.fid, &e.object)
	return m, nil
}

// Addr returns the group's address for sending (fi_mc_addr). The address is known after
// EventJoinComplete. If the Multicast is closed, Addr returns AddrUnspec.
func (m *Multicast) Addr() Addr {
	if !m.isOpen() {
		return AddrUnspec
	}
	return Addr(C.fi_mc_addr((*C.struct_fid_mc)(m.pointer())))
}
