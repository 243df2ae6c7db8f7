//go:build libfabric

package fi

// #include <netinet/in.h>
// #include "shim_av.h"
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"syscall"
	"unsafe"
)

// ErrAlready is the error of inserting an address that is in the vector.
const ErrAlready Errno = C.FI_EALREADY

// InsertError says which of several addresses were not inserted. errors.Is
// finds the errnos of all of them in it.
type InsertError struct {
	Func string  // the C function
	Errs []error // by position: nil, or an Errno; ErrOther where the provider gives no reason
}

// Error counts the failures and gives the first.
func (e *InsertError) Error() string {
	failed := e.Unwrap()
	for i, err := range e.Errs {
		if err != nil {
			return fmt.Sprintf("%s: %d of %d addresses failed, the first is number %d: %v",
				e.Func, len(failed), len(e.Errs), i, err)
		}
	}
	return e.Func
}

// Unwrap gives the errors of the addresses that failed.
func (e *InsertError) Unwrap() []error {
	var failed []error
	for _, err := range e.Errs {
		if err != nil {
			failed = append(failed, err)
		}
	}
	return failed
}

// Insert inserts addresses, in the domain's AddrFormat, and puts what they are
// called from now on into out, which is nil or as long as addrs; AddrNotAvail
// is for those that failed. It returns how many were inserted, and an
// InsertError if that is not all. With FlagSyncErr the provider is asked for the
// reasons, which sockets refuses: ErrBadFlags. With FlagAVUserID or FlagAuthKey
// out is read first.
//
// An address should be in a vector once. Where a provider finds out, it is
// ErrAlready, and out is what it was called before. So it is with shm of 1.17
// for peers whose endpoints are not enabled yet, if there are two: both get one
// place, which the last has. Insert addresses of shm when all peers are there.
//
// It is one fi_av_insert for each address, all but the last with FlagMore,
// because vectors with an invalid address are handled by each provider in its
// own way, and badly by some of 1.17: of those after one that fails, rxm leaves
// as many half set up, and crashes when they are removed, and rxd gives up. A
// socket address of the wrong family or length is not given to the provider at
// all, as it may spoil the whole vector: ErrInvalid.
//
// In a vector opened with FlagEvent it is one call, which returns 0 as soon as
// the insertion is under way. The addresses must be of one length then, or
// strings; out is written until the event comes, which carries context.
func (v *AV) Insert(addrs [][]byte, out []Addr, flags Flags, context uintptr) (int, error) {
	const function = "fi_av_insert"
	if !v.isOpen() {
		return 0, closedError(function)
	}
	if out != nil && len(out) != len(addrs) {
		return 0, &Error{function, ErrInvalid}
	}
	if v.attr.Flags&FlagEvent != 0 {
		var all []byte
		for _, addr := range addrs {
			if !fits(addr, v.format) || v.format != AddrStr && len(addr) != len(addrs[0]) {
				return 0, &Error{function, ErrInvalid}
			}
			all = append(all, v.terminated(addr)...)
		}
		return v.start(function, out, len(addrs), func(a *C.fi_addr_t) C.int {
			in := newAddrBuf(all)
			defer in.free()
			return C.weft_av_insert(v.c(), in.p, C.size_t(len(addrs)), a,
				C.uint64_t(flags), C.uintptr_t(context))
		})
	}
	results := make([]error, len(addrs))
	inserted := 0
	for i, addr := range addrs {
		a := AddrNotAvail
		if out != nil && flags&(FlagAVUserID|FlagAuthKey) != 0 {
			a = out[i]
		}
		f := flags
		if i < len(addrs)-1 {
			f |= FlagMore
		}
		a, results[i] = v.insertOne(addr, a, f)
		if results[i] == nil && v.known != nil && v.known.has(a) {
			results[i] = ErrAlready
		}
		if results[i] == nil {
			inserted++
			v.note([]Addr{a})
		}
		if out != nil {
			out[i] = a
		}
	}
	if inserted < len(addrs) {
		return inserted, &InsertError{function, results}
	}
	return inserted, nil
}

// insertOne inserts an address at once.
func (v *AV) insertOne(addr []byte, a Addr, flags Flags) (Addr, error) {
	if !fits(addr, v.format) {
		return AddrNotAvail, ErrInvalid
	}
	in := newAddrBuf(addr)
	defer in.free()
	out := C.fi_addr_t(a)
	var rc, reason C.int
	if flags&FlagSyncErr != 0 {
		rc = C.fi_av_insert(v.c(), in.p, 1, &out, C.uint64_t(flags), unsafe.Pointer(&reason))
	} else {
		rc = C.weft_av_insert(v.c(), in.p, 1, &out, C.uint64_t(flags), 0)
	}
	switch {
	case rc == 1:
		return Addr(out), nil
	case rc < 0:
		return AddrNotAvail, Errno(-rc)
	case reason != 0:
		return AddrNotAvail, Errno(max(reason, -reason))
	}
	return AddrNotAvail, ErrOther
}

// fits says whether addr can be an address of a format.
func fits(addr []byte, format AddrFormat) bool {
	if format < Sockaddr || format > SockaddrIB {
		return len(addr) > 0
	}
	if len(addr) < 2 {
		return false
	}
	switch family := binary.NativeEndian.Uint16(addr); {
	case family == syscall.AF_INET && (format == Sockaddr || format == SockaddrIn):
		return len(addr) == C.sizeof_struct_sockaddr_in
	case family == syscall.AF_INET6 && (format == Sockaddr || format == SockaddrIn6):
		return len(addr) == C.sizeof_struct_sockaddr_in6
	default:
		return family == C.AF_IB && (format == Sockaddr || format == SockaddrIB)
	}
}

// terminated is addr as it stands in a vector of addresses: strings end with a
// zero byte.
func (v *AV) terminated(addr []byte) []byte {
	if v.format == AddrStr && (len(addr) == 0 || addr[len(addr)-1] != 0) {
		return append(append([]byte(nil), addr...), 0)
	}
	return addr
}

// start is an insertion of n addresses whose end is an event. What it writes to
// stays pinned until the vector is closed, as the event goes to whoever reads
// the queue.
func (v *AV) start(function string, out []Addr, n int, insert func(*C.fi_addr_t) C.int) (int, error) {
	if out == nil {
		out = make([]Addr, max(n, 1))
	}
	var p *C.fi_addr_t
	if len(out) > 0 {
		for i := range out {
			out[i] = AddrNotAvail
		}
		pins := pin(unsafe.Pointer(&out[0]))
		v.atClose(func() { unpin(pins) })
		p = (*C.fi_addr_t)(unsafe.Pointer(&out[0]))
	}
	rc := insert(p)
	if err := check(function, rc); err != nil {
		return 0, err
	}
	return 0, nil
}

// InsertSvc inserts the address that node and service name, as GetInfo takes
// them (fi_av_insertsvc). In FormatStr node is the whole address and service
// empty. shm and rxd of 1.17 answer ErrNotSupported. It may ask a name server,
// and blocks until that has answered. In a vector opened with FlagEvent the
// address is not known before the event: it is AddrNotAvail.
func (v *AV) InsertSvc(node, service string, flags Flags) (Addr, error) {
	const function = "fi_av_insertsvc"
	if !v.isOpen() {
		return AddrNotAvail, closedError(function)
	}
	if node == "" || service == "" && v.format != AddrStr {
		return AddrNotAvail, &Error{function, ErrInvalid} // they are read without a look
	}
	cnode := C.CString(node)
	defer C.free(unsafe.Pointer(cnode))
	var cservice *C.char
	if service != "" {
		cservice = C.CString(service)
		defer C.free(unsafe.Pointer(cservice))
	}
	insert := func(a *C.fi_addr_t) C.int {
		return C.weft_av_insertsvc(v.c(), cnode, cservice, a, C.uint64_t(flags&^FlagSyncErr), 0)
	}
	if v.attr.Flags&FlagEvent != 0 {
		_, err := v.start(function, nil, 1, insert)
		return AddrNotAvail, err
	}
	a := C.fi_addr_t(AddrNotAvail)
	rc := insert(&a)
	if err := check(function, rc); err != nil {
		return AddrNotAvail, err
	}
	// A name that is not found is a positive number in sockets: minus that of
	// getaddrinfo.
	if rc != 1 || Addr(a) == AddrNotAvail {
		return AddrNotAvail, &Error{function, ErrAddrNotAvail}
	}
	v.note([]Addr{Addr(a)})
	return Addr(a), nil
}

// InsertSym inserts the addresses of a symmetric cluster (fi_av_insertsym): from
// node on, so many nodes in a row, each with so many services from service on.
// The service is a port number with the IP providers. out is nil or
// nodes*services long; out[n*services+s] becomes service s of node n. It returns how many were inserted, and an InsertError if that is not all.
//
// Give node as a numeric address if there is more than one: in the IP providers
// from libfabric 1.17 on, a name such as "host10" is inserted again and again
// instead of host10, host11 and so on, but for sockets. shm, rxd and most native
// providers have no such call: ErrNotSupported; use Insert there.
func (v *AV) InsertSym(node string, nodes int, service string, services int, out []Addr, flags Flags) (int, error) {
	const function = "fi_av_insertsym"
	if !v.isOpen() {
		return 0, closedError(function)
	}
	if node == "" || service == "" || nodes < 1 || services < 1 || services > math.MaxUint16 ||
		nodes > math.MaxInt32/services || out != nil && len(out) != nodes*services ||
		!symmetric(node, service, services, v.format) {
		return 0, &Error{function, ErrInvalid}
	}
	n := nodes * services
	cnode, cservice := C.CString(node), C.CString(service)
	defer C.free(unsafe.Pointer(cnode))
	defer C.free(unsafe.Pointer(cservice))
	insert := func(a *C.fi_addr_t) C.int {
		return C.weft_av_insertsym(v.c(), cnode, C.size_t(nodes), cservice, C.size_t(services), a,
			C.uint64_t(flags&^FlagSyncErr), 0)
	}
	if v.attr.Flags&FlagEvent != 0 {
		return v.start(function, out, n, insert)
	}
	if out == nil {
		out = make([]Addr, n)
	}
	for i := range out {
		out[i] = AddrNotAvail
	}
	rc := insert((*C.fi_addr_t)(unsafe.Pointer(&out[0])))
	if err := check(function, rc); err != nil {
		return 0, err
	}
	if int(rc) == n && out[0] != AddrNotAvail && n > 1 && out[1] == AddrNotAvail {
		v.countDown(out)
	}
	v.note(out)
	results, inserted := make([]error, n), 0
	for i, a := range out {
		if a == AddrNotAvail {
			results[i] = ErrAddrNotAvail
		} else {
			inserted++
		}
	}
	if inserted < n {
		return inserted, &InsertError{function, results}
	}
	return n, nil
}

// symmetric says whether node and so many services in a row can be peers, in a
// format of IP. Some that cannot would leave rxm of 1.17 with peers that are
// half set up, and all its providers take the service for a number.
func symmetric(node, service string, services int, format AddrFormat) bool {
	if format != Sockaddr && format != SockaddrIn && format != SockaddrIn6 {
		return true
	}
	port, err := strconv.Atoi(service)
	ip, notIP := netip.ParseAddr(node)
	return err == nil && port > 0 && port+services-1 <= math.MaxUint16 && (notIP != nil || !ip.IsUnspecified())
}

// countDown completes what sockets makes of out: it writes all addresses to the
// first place, so that the last remains. They were inserted one after the other
// at the end of the table, unless it has holes.
func (v *AV) countDown(out []Addr) {
	last := out[0]
	if v.removed || last < Addr(len(out)-1) {
		return
	}
	for i := range out {
		out[i] = last - Addr(len(out)-1-i)
	}
}

// Remove takes addresses out of the vector (fi_av_remove). Nothing may be on its
// way to them. If one is not in the vector, it is ErrInvalid and nothing is
// removed.
func (v *AV) Remove(addrs []Addr) error {
	const function = "fi_av_remove"
	if !v.isOpen() {
		return closedError(function)
	}
	if len(addrs) == 0 {
		return nil
	}
	if v.known != nil {
		for i, a := range addrs {
			if !v.known.remove(a) {
				v.note(addrs[:i])
				return &Error{function, ErrInvalid}
			}
		}
	}
	v.removed = true
	rc := C.fi_av_remove(v.c(), (*C.fi_addr_t)(unsafe.Pointer(&addrs[0])), C.size_t(len(addrs)), 0)
	err := check(function, rc)
	if errors.Is(err, ErrBusy) {
		v.note(addrs)
	}
	return err
}
