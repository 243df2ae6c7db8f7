//go:build libfabric

package fi

// #include "shim_cm.h"
import "C"

import "unsafe"

// Multicast is an endpoint's membership of a multicast group (struct fid_mc,
// fi_cm(3)). Close leaves the group.
type Multicast struct {
	object
}

// Join makes the endpoint a member of the group at addr, which is in the
// domain's address format (fi_join). FlagSend or FlagRecv restrict it to one
// direction. EventJoinComplete on the endpoint's event queue says when messages
// may be sent, to the group's Addr and with FlagMulticast.
func (e *Endpoint) Join(addr []byte, flags Flags) (*Multicast, error) {
	const function = "fi_join"
	if !e.isOpen() {
		return nil, closedError(function)
	}
	if !fits(addr, e.domain.info.AddrFormat) {
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

// Addr is where to send messages for the group, known after EventJoinComplete
// (fi_mc_addr). It is AddrUnspec when the membership is closed.
func (m *Multicast) Addr() Addr {
	if !m.isOpen() {
		return AddrUnspec
	}
	return Addr(C.fi_mc_addr((*C.struct_fid_mc)(m.pointer())))
}
