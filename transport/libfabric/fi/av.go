//go:build libfabric

package fi

// #include "shim_av.h"
import "C"

import (
	"bytes"
	"errors"
	"math"
	"unsafe"
)

// Addr is the address of a peer in data transfer calls (fi_addr_t): the value that inserting the
// peer's address into an address vector returned. In a vector of type AVTable it is the index of
// the peer in the table.
type Addr uint64

// Special values of Addr. libfabric uses the same number for both.
const (
	AddrUnspec   = ^Addr(0) // as the source of a receive: any peer
	AddrNotAvail = ^Addr(0) // the result of an insertion that has failed
)

// AVAttr has the attributes for opening an address vector (struct fi_av_attr).
type AVAttr struct {
	Type      AVType // AVTable or AVMap; AVUnspec: the type of the domain
	RxCtxBits int    // how many bits of an Addr name a receive context, see [RxAddr]
	Count     int    // how many addresses the program expects to insert; 0: unknown
	EPPerNode int    // how many endpoints the program expects per node; 0: unknown
	// The processes of a node that open a vector with the same Name share the vector. A vector
	// without a Name is not shared.
	Name    string
	MapAddr uintptr // base of the Addr values of a shared vector of type AVMap; 0: the provider chooses
	Flags   Flags   // FlagEvent, FlagRead (only read the shared vector Name), FlagSymmetric, FlagAVUserID
}

// AV is an address vector, the table of peers' addresses (fi_av(3)). A connectionless endpoint
// needs one. Endpoints of a domain may share one.
//
// Insertions complete before the call returns, unless the vector was opened with FlagEvent. Then an
// event of the bound EQ reports the completion. In a vector opened with FlagEvent or a Name, Remove
// and Lookup pass an Addr to the library without a check that the vector contains it.
//
// Calls on one vector must not run concurrently.
type AV struct {
	object
	attr AVAttr
	// known holds the addresses in the vector. It is nil if this package cannot track them, because
	// other processes insert addresses, too, or because insertions are asynchronous.
	known   *known
	format  AddrFormat
	removed bool // an address was removed, so the table may have free entries, which later insertions take
}

// OpenAV opens an address vector (fi_av_open). The domain cannot be closed before the vector. In
// libfabric 1.17 only sockets supports a Name; other providers return ErrNotSupported.
func (d *Domain) OpenAV(attr AVAttr) (*AV, error) {
	if !d.isOpen() {
		return nil, closedError("fi_av_open")
	}
	if attr.Count < 0 || attr.Count > math.MaxInt32 || attr.EPPerNode < 0 || attr.RxCtxBits < 0 || attr.RxCtxBits > 63 {
		return nil, &Error{"fi_av_open", ErrInvalid}
	}
	var name *C.char
	if attr.Name != "" {
		name = C.CString(attr.Name)
	}
	c := C.struct_fi_av_attr{
		_type:       C.enum_fi_av_type(attr.Type),
		rx_ctx_bits: C.int(attr.RxCtxBits),
		count:       C.size_t(attr.Count),
		ep_per_node: C.size_t(attr.EPPerNode),
		name:        name,
		flags:       C.uint64_t(attr.Flags),
	}
	mapAddr := C.uintptr_t(attr.MapAddr)
	var fid *C.struct_fid_av
	rc := C.weft_av_open(d.c(), &c, &mapAddr, &fid)
	if err := check("fi_av_open", rc); err != nil {
		C.free(unsafe.Pointer(name))
		return nil, err
	}
	attr.Type, attr.Count, attr.MapAddr = AVType(c._type), int(c.count), uintptr(mapAddr)
	v := &AV{attr: attr, format: d.info.AddrFormat}
	if attr.Name == "" && attr.Flags&FlagEvent == 0 {
		v.known = new(known)
	}
	v.open(&fid.fid, &d.object)
	// name must not be freed earlier, because sockets keeps the pointer.
	v.atClose(func() { C.free(unsafe.Pointer(name)) })
	return v, nil
}

// Attr returns the attributes that the vector was opened with. Type, Count and MapAddr are what the
// provider has chosen.
func (v *AV) Attr() AVAttr { return v.attr }

// BindEQ makes insertions complete by events of eq (fi_av_bind), as FlagEvent requires. For each
// address that failed, eq gets an error whose Data is the position of the address, and then an
// EventAVComplete whose Data is the number of inserted addresses. From then on the queue cannot be
// closed before the vector. libfabric 2.x deprecates this. With shm of libfabric 1.17 an insertion
// completes before its call returns, and there is no event.
func (v *AV) BindEQ(eq *EQ, flags Flags) error {
	if !v.isOpen() || !eq.isOpen() {
		return closedError("fi_av_bind")
	}
	if err := check("fi_av_bind", C.weft_av_bind(v.c(), eq.fid, C.uint64_t(flags))); err != nil {
		return err
	}
	v.bind(&eq.object)
	return nil
}

// Lookup returns the address for which an insertion returned a (fi_av_lookup). The result may be
// longer than the address that was inserted: names of shm end with a zero byte. If a is not in the
// vector, Lookup returns ErrInvalid, unless the vector was opened with FlagEvent or a Name.
func (v *AV) Lookup(a Addr) ([]byte, error) {
	if !v.isOpen() {
		return nil, closedError("fi_av_lookup")
	}
	if !v.isKnown(a) {
		return nil, &Error{"fi_av_lookup", ErrInvalid}
	}
	return growBuffer("fi_av_lookup", func(buf unsafe.Pointer, size *C.size_t) C.int {
		return C.fi_av_lookup(v.c(), C.fi_addr_t(a), buf, size)
	})
}

// StrAddr returns the text of an address in the vector's format (fi_av_straddr). The address need
// not be in the vector. StrAddr returns "" if the provider cannot parse the address or the vector
// is closed.
func (v *AV) StrAddr(addr []byte) string {
	if !v.isOpen() || len(addr) == 0 {
		return ""
	}
	in := newAddrBuf(addr)
	defer in.free()
	text, err := growBuffer("fi_av_straddr", func(buf unsafe.Pointer, size *C.size_t) C.int {
		if C.fi_av_straddr(v.c(), in.p, (*C.char)(buf), size) == nil {
			return -C.FI_EINVAL
		}
		return 0
	})
	if err != nil {
		return ""
	}
	if end := bytes.IndexByte(text, 0); end >= 0 {
		text = text[:end]
	}
	return string(text)
}

// SetUserID makes completions report the peer a as id (fi_av_set_user_id). The vector must have
// been opened with FlagAVUserID. With FlagAuthKey, a is the Addr of an authorisation key. SetUserID
// needs libfabric 2.x.
func (v *AV) SetUserID(a, id Addr, flags Flags) error {
	if !v.isOpen() {
		return closedError("fi_av_set_user_id")
	}
	return check("fi_av_set_user_id",
		C.weft_av_set_user_id(v.c(), C.fi_addr_t(a), C.fi_addr_t(id), C.uint64_t(flags)))
}

// RxAddr returns the address of the receive context with this index of the scalable endpoint a
// (fi_rx_addr). rxCtxBits must be the RxCtxBits of the vector.
func RxAddr(a Addr, index, rxCtxBits int) Addr {
	return Addr(uint64(index)<<(64-uint(rxCtxBits))) | a
}

// GroupAddr returns the address of peer a as a member of a peer group (fi_group_addr). group must
// not exceed the domain's MaxGroupID. If the headers of the build are older than libfabric 2.0,
// GroupAddr returns ErrNotSupported, because older providers would use the group's bits as part of
// the index.
func GroupAddr(a Addr, group uint32) (Addr, error) {
	if C.WEFT_GROUP_ADDR == 0 {
		return AddrNotAvail, unsupported("fi_group_addr")
	}
	return Addr(uint64(group)<<32) | a, nil
}

func (v *AV) c() *C.struct_fid_av { return (*C.struct_fid_av)(v.pointer()) }

// isKnown reports whether a may be passed to the library: whether it is in the vector, or the
// vector does not track its addresses.
func (v *AV) isKnown(a Addr) bool {
	mask := ^Addr(0) >> uint(v.attr.RxCtxBits)
	return v.known == nil || v.known.has(a&mask)
}

// addKnown records that addrs are in the vector, except those that are AddrNotAvail.
func (v *AV) addKnown(addrs []Addr) {
	for _, a := range addrs {
		if v.known != nil && a != AddrNotAvail {
			v.known.add(a)
		}
	}
}

// addrBuf is C memory that holds an address followed by zeros, because some providers expect a
// terminated string and others read a fixed length.
type addrBuf struct{ p unsafe.Pointer }

const addrPad = 64

func newAddrBuf(addr []byte) addrBuf {
	p := C.calloc(1, C.size_t(len(addr)+addrPad))
	copy(unsafe.Slice((*byte)(p), len(addr)), addr)
	return addrBuf{p}
}

func (b addrBuf) free() { C.free(b.p) }

// growBuffer returns the output of f, a call of the C function with this name that writes to buf
// and stores the size of the whole output in *size. As long as the output does not fit, growBuffer
// calls f again with a larger buffer.
func growBuffer(function string, f func(buf unsafe.Pointer, size *C.size_t) C.int) ([]byte, error) {
	size := C.size_t(128)
	for {
		buf := make([]byte, size)
		n := size
		err := check(function, f(unsafe.Pointer(&buf[0]), &n))
		if err != nil && (n <= size || !errors.Is(err, ErrTooSmall)) {
			return nil, err
		}
		if n <= size {
			return buf[:n], nil
		}
		size = n
	}
}
