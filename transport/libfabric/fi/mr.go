//go:build libfabric

package fi

// #include "shim_mr.h"
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// KeyNotAvail is returned by Key if the region is closed or has no key yet, or if its key is one
// that only RawAttr can return (FI_KEY_NOTAVAIL).
const KeyNotAvail = ^uint64(0)

// MR is a memory region: memory that is registered so that peers may access it, or that the device
// must know for local operations (fi_mr(3)). The domain's MRMode says how it is used:
//
//	MRLocal        buffers of the domain's own operations need the region's Desc
//	MRVirtAddr     peers use virtual addresses, else offsets from the region's start
//	MRProvKey      the provider chooses the key, else the caller
//	MRRaw          peers need RawAttr and MapRaw instead of Key
//	MREndpoint     BindEndpoint and Enable come before use
//	MRRMAEvent     with FlagRMAEvent: BindCounter and Enable come before use
//
// The memory stays alive and pinned from registration until Close, also if nothing refers to the
// region any more. It may be in Go's heap, in C's heap, or mapped.
type MR struct {
	object
	bufs [][]byte // the registered buffers; nil: closed, or registered from MRAttr.Ranges or MRAttr.DMABuf
}

// RegisterMemory registers buf for the kinds of access in access (fi_mr_reg). offset must be 0. The
// region's key is requestedKey unless the domain has MRProvKey. If the key is in use,
// RegisterMemory returns ErrNoKey; if buf is empty, ErrInvalid. The domain cannot be closed before
// the region.
//
// If the domain is bound to an EQ with FlagRegMR, the region is usable only after its
// EventMRComplete.
func (d *Domain) RegisterMemory(buf []byte, access Access, offset, requestedKey uint64, flags Flags) (*MR, error) {
	return d.register("fi_mr_reg", [][]byte{buf}, func(iov []iovec, mr **C.struct_fid_mr) C.int {
		return C.weft_mr_reg(d.c(), C.uintptr_t(iov[0].base), C.size_t(iov[0].length), C.uint64_t(access),
			C.uint64_t(offset), C.uint64_t(requestedKey), C.uint64_t(flags), mr)
	})
}

// RegisterV is RegisterMemory for several buffers, which form one region in their order
// (fi_mr_regv). There are at most DomainAttr.MRIovLimit buffers.
func (d *Domain) RegisterV(bufs [][]byte, access Access, offset, requestedKey uint64, flags Flags) (*MR, error) {
	return d.register("fi_mr_regv", bufs, func(iov []iovec, mr **C.struct_fid_mr) C.int {
		return C.weft_mr_regv(d.c(), address(iov), C.size_t(len(iov)), C.uint64_t(access),
			C.uint64_t(offset), C.uint64_t(requestedKey), C.uint64_t(flags), mr)
	})
}

// register pins bufs and registers them with call, which calls the C function with this name.
func (d *Domain) register(function string, bufs [][]byte, call func([]iovec, **C.struct_fid_mr) C.int) (*MR, error) {
	if !d.isOpen() {
		return nil, closedError(function)
	}
	iov, pins, err := pinned(bufs)
	if err != nil {
		return nil, &Error{function, err}
	}
	var fid *C.struct_fid_mr
	if err := check(function, call(iov, &fid)); err != nil {
		unpin(pins)
		return nil, err
	}
	runtime.KeepAlive(iov)
	m := &MR{bufs: bufs}
	m.open(&fid.fid, &d.object)
	m.atClose(func() { unpin(pins); m.bufs = nil })
	return m, nil
}

// pinned pins bufs and returns their addresses and lengths. It returns ErrInvalid if there are no
// bufs or if one is empty.
func pinned(bufs [][]byte) ([]iovec, *runtime.Pinner, error) {
	if len(bufs) == 0 {
		return nil, nil, fmt.Errorf("no buffers: %w", ErrInvalid)
	}
	starts := make([]unsafe.Pointer, len(bufs))
	iov := make([]iovec, len(bufs))
	for i, b := range bufs {
		if len(b) == 0 {
			return nil, nil, fmt.Errorf("buffer %d is empty: %w", i, ErrInvalid)
		}
		starts[i] = unsafe.Pointer(&b[0])
	}
	pins := pin(starts...)
	for i, b := range bufs {
		iov[i] = iovec{uintptr(starts[i]), uintptr(len(b))}
	}
	return iov, pins, nil
}

// address returns the address of the array iov, 0 if it is empty. The caller must keep iov alive.
func address(iov []iovec) C.uintptr_t {
	if len(iov) == 0 {
		return 0
	}
	return escape(unsafe.Pointer(&iov[0]))
}

// Key returns the key that peers use for the region (fi_mr_key), or KeyNotAvail.
func (m *MR) Key() uint64 {
	if !m.isOpen() {
		return KeyNotAvail
	}
	return uint64(C.fi_mr_key(m.c()))
}

// Desc returns the region's descriptor for local operations (fi_mr_desc). The descriptor is valid
// until Close. If the region is closed, Desc returns the zero Desc.
func (m *MR) Desc() Desc {
	if !m.isOpen() {
		return Desc{}
	}
	return Desc{uintptr(C.weft_mr_desc(m.c()))}
}

// Base returns the address of the region's first buffer, which peers need if the domain has
// MRVirtAddr. It returns 0 if the region is closed or was not registered from buffers.
func (m *MR) Base() uintptr {
	if len(m.bufs) == 0 {
		return 0
	}
	return uintptr(unsafe.Pointer(&m.bufs[0][0]))
}

// RawAttr returns the base address and the key that peers pass to MapRaw (fi_mr_raw_attr), if the
// domain has MRRaw. Providers of libfabric 1.17 that run without special hardware return
// ErrNotSupported.
func (m *MR) RawAttr(flags Flags) (base uint64, key []byte, err error) {
	if !m.isOpen() {
		return 0, nil, closedError("fi_mr_raw_attr")
	}
	var b C.uint64_t
	key, err = growBuffer("fi_mr_raw_attr", func(buf unsafe.Pointer, size *C.size_t) C.int {
		return C.fi_mr_raw_attr(m.c(), &b, (*C.uint8_t)(buf), size, C.uint64_t(flags))
	})
	return uint64(b), key, err
}

// MapRaw returns a key for this domain's operations from the result of the peer's RawAttr
// (fi_mr_map_raw). The caller must release the key by UnmapKey.
func (d *Domain) MapRaw(base uint64, rawKey []byte, flags Flags) (uint64, error) {
	if !d.isOpen() {
		return KeyNotAvail, closedError("fi_mr_map_raw")
	}
	if len(rawKey) == 0 {
		return KeyNotAvail, &Error{"fi_mr_map_raw", ErrInvalid}
	}
	raw := C.CBytes(rawKey)
	defer C.free(raw)
	key := C.uint64_t(KeyNotAvail)
	err := check("fi_mr_map_raw", C.fi_mr_map_raw(d.c(), C.uint64_t(base), (*C.uint8_t)(raw),
		C.size_t(len(rawKey)), &key, C.uint64_t(flags)))
	return uint64(key), err
}

// UnmapKey releases a key of MapRaw (fi_mr_unmap_key). Call it before the domain is closed.
func (d *Domain) UnmapKey(key uint64) error {
	if !d.isOpen() {
		return closedError("fi_mr_unmap_key")
	}
	return check("fi_mr_unmap_key", C.fi_mr_unmap_key(d.c(), C.uint64_t(key)))
}

// BindEndpoint binds the region to an endpoint (fi_mr_bind), as a domain with MREndpoint requires.
// Call it before Enable. From then on the endpoint cannot be closed before the region.
func (m *MR) BindEndpoint(e *Endpoint, flags Flags) error { return m.bindTo(&e.object, flags) }

// BindCounter makes a counter count peers' accesses to the region (fi_mr_bind); flags is
// FlagRemoteWrite. From then on the counter cannot be closed before the region. Of the providers of
// 1.17 for IP and shared memory only sockets supports it.
func (m *MR) BindCounter(c *Counter, flags Flags) error { return m.bindTo(&c.object, flags) }

func (m *MR) bindTo(o *object, flags Flags) error {
	if !m.isOpen() || !o.isOpen() {
		return closedError("fi_mr_bind")
	}
	if err := check("fi_mr_bind", C.fi_mr_bind(m.c(), o.fid, C.uint64_t(flags))); err != nil {
		return err
	}
	m.bind(o)
	return nil
}

// Enable makes the region usable (fi_mr_enable). A domain with MREndpoint requires it for every
// region, and one with MRRMAEvent for regions with FlagRMAEvent. Call it after all bindings.
func (m *MR) Enable() error {
	if !m.isOpen() {
		return closedError("fi_mr_enable")
	}
	return check("fi_mr_enable", C.fi_mr_enable(m.c()))
}

// Refresh reports to the provider that the pages of some parts of the region have changed, or of
// the whole region if there are no parts (fi_mr_refresh). It is for domains with MRMMUNotify.
// Memory of Go's heap does not need it.
func (m *MR) Refresh(parts [][]byte, flags Flags) error {
	if !m.isOpen() {
		return closedError("fi_mr_refresh")
	}
	var iov []iovec
	for _, p := range parts {
		if len(p) > 0 {
			iov = append(iov, iovec{uintptr(unsafe.Pointer(&p[0])), uintptr(len(p))})
		}
	}
	err := check("fi_mr_refresh", C.weft_mr_refresh(m.c(), address(iov), C.size_t(len(iov)), C.uint64_t(flags)))
	runtime.KeepAlive(iov)
	return err
}

func (m *MR) c() *C.struct_fid_mr { return (*C.struct_fid_mr)(m.pointer()) }
