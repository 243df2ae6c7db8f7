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

// ErrAlready is the error of inserting an address that the vector already contains.
const ErrAlready Errno = C.FI_EALREADY

// InsertError reports which of several addresses were not inserted. errors.Is finds the Errno of
// each of these addresses.
type InsertError struct {
	Func string // name of the C function, for example "fi_av_insert"
	// Errs has one element per address: nil, or the Errno of its failure, which is ErrOther if the
	// provider gives no reason.
	Errs []error
}

// Error returns the number of failures and the first of them.
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

// Unwrap returns the errors of the addresses that failed.
func (e *InsertError) Unwrap() []error {
	var failed []error
	for _, err := range e.Errs {
		if err != nil {
			failed = append(failed, err)
		}
	}
	return failed
}

// Insert inserts addresses in the domain's AddrFormat (fi_av_insert). out is nil or as long as
// addrs; Insert stores each peer's Addr there, AddrNotAvail for most addresses that failed. It
// returns the number of inserted addresses, and an InsertError if some failed. With FlagSyncErr it
// asks the provider why an address failed; sockets refuses that with ErrBadFlags. With FlagAVUserID
// the provider first reads the caller's ids of the peers from out, and with FlagAuthKey the Addrs
// of the peers' authorisation keys.
//
// An address should be in a vector once. If a provider returns an Addr that the vector already
// contains, the error is ErrAlready, and out has that Addr. shm of libfabric 1.17 confuses peers
// whose endpoints are not enabled yet: if two of them are inserted, both get the same Addr, which
// then means the second one. So insert addresses of shm after all peers have enabled their
// endpoints.
//
// Insert calls fi_av_insert once per address, with FlagMore for all but the last, because providers
// of libfabric 1.17 handle an invalid address among several differently, and some badly: rxm leaves
// the addresses after the invalid one half initialised and crashes when they are removed, and rxd
// does not insert them. Insert refuses a socket address of the wrong family or length with
// ErrInvalid, because the provider could damage the whole vector.
//
// In a vector opened with FlagEvent, Insert calls fi_av_insert once for all addresses, and returns
// 0 when the insertion has started. Then the addresses must have equal lengths, unless they are
// strings, and the provider may write to out until the EQ has an event with this context. Without
// FlagEvent context has no effect.
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
			if !validAddr(addr, v.format) || v.format != AddrStr && len(addr) != len(addrs[0]) {
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
			v.addKnown([]Addr{a})
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

// insertOne inserts one address and returns its Addr, or AddrNotAvail and the reason of the
// failure. a is the value that the provider reads first with FlagAVUserID or FlagAuthKey.
func (v *AV) insertOne(addr []byte, a Addr, flags Flags) (Addr, error) {
	if !validAddr(addr, v.format) {
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

// validAddr reports whether addr can be an address of the format. In the formats Sockaddr,
// SockaddrIn, SockaddrIn6 and SockaddrIB, addr must have the right family and, for IP, the right
// length. In other formats it must not be empty.
func validAddr(addr []byte, format AddrFormat) bool {
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

// terminated returns addr in the form that it needs in an array of addresses: a string ends with a
// zero byte.
func (v *AV) terminated(addr []byte) []byte {
	if v.format == AddrStr && (len(addr) == 0 || addr[len(addr)-1] != 0) {
		return append(append([]byte(nil), addr...), 0)
	}
	return addr
}

// start starts an asynchronous insertion of n addresses by calling insert with the address of out,
// or of a new slice if out is nil. The provider may write to out until the event of the insertion.
// The event goes to any reader of the event queue, and the vector does not see it, so out stays
// pinned until the vector is closed.
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

// InsertSvc inserts the address that node and service name, as in GetInfo (fi_av_insertsvc). In
// AddrStr format node is the whole address and service is empty. shm and rxd of libfabric 1.17
// return ErrNotSupported. InsertSvc may query a name server, and blocks until the server answers.
// In a vector opened with FlagEvent InsertSvc returns AddrNotAvail, because the provider assigns
// the Addr later.
func (v *AV) InsertSvc(node, service string, flags Flags) (Addr, error) {
	const function = "fi_av_insertsvc"
	if !v.isOpen() {
		return AddrNotAvail, closedError(function)
	}
	if node == "" || service == "" && v.format != AddrStr {
		return AddrNotAvail, &Error{function, ErrInvalid} // providers read node and service without a check
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
	// If sockets does not find the name, it returns a positive number: the negated error of
	// getaddrinfo.
	if rc != 1 || Addr(a) == AddrNotAvail {
		return AddrNotAvail, &Error{function, ErrAddrNotAvail}
	}
	v.addKnown([]Addr{Addr(a)})
	return Addr(a), nil
}

// InsertSym inserts the addresses of a cluster whose nodes all have the same services
// (fi_av_insertsym). node is the first of nodes consecutive nodes, and service is the first of
// services consecutive services on each node. With IP providers a service is a port number. out is
// nil or nodes*services long; InsertSym stores the Addr of service s of node n in
// out[n*services+s]. It returns the number of inserted addresses, and an InsertError if some
// failed. In a vector opened with FlagEvent, it returns 0 when the insertion has started.
//
// If there are several nodes, give node as a numeric address: for a name such as "host10", all IP
// providers of libfabric 1.17 and newer except sockets insert the address of host10 repeatedly,
// instead of those of host10, host11 and so on. shm, rxd and most native providers return
// ErrNotSupported; use Insert with them.
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
		v.fillIndices(out)
	}
	v.addKnown(out)
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

// symmetric reports whether InsertSym may pass these arguments to the library. For IP formats, node
// must not be an unspecified address such as 0.0.0.0, and service must be a number such that all
// ports are from 1 to 65535. With other arguments rxm of libfabric 1.17 would leave half
// initialised peers. For other formats symmetric returns true.
func symmetric(node, service string, services int, format AddrFormat) bool {
	if format != Sockaddr && format != SockaddrIn && format != SockaddrIn6 {
		return true
	}
	port, err := strconv.Atoi(service)
	ip, notIP := netip.ParseAddr(node)
	return err == nil && port > 0 && port+services-1 <= math.MaxUint16 && (notIP != nil || !ip.IsUnspecified())
}

// fillIndices completes out, the result of sockets, which writes the Addr of every address to the
// first element, so that the last Addr remains there. If the table has no free entries, the
// addresses were appended to it one after the other, so the other Addrs follow from the last one.
// If it may have free entries, fillIndices changes nothing.
func (v *AV) fillIndices(out []Addr) {
	last := out[0]
	if v.removed || last < Addr(len(out)-1) {
		return
	}
	for i := range out {
		out[i] = last - Addr(len(out)-1-i)
	}
}

// Remove removes addresses from the vector (fi_av_remove). No operation with these peers may be in
// flight. If an address is not in the vector, Remove returns ErrInvalid and removes nothing, unless
// the vector was opened with FlagEvent or a Name.
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
				v.addKnown(addrs[:i])
				return &Error{function, ErrInvalid}
			}
		}
	}
	v.removed = true
	rc := C.fi_av_remove(v.c(), (*C.fi_addr_t)(unsafe.Pointer(&addrs[0])), C.size_t(len(addrs)), 0)
	err := check(function, rc)
	if errors.Is(err, ErrBusy) {
		v.addKnown(addrs)
	}
	return err
}
