//go:build libfabric

package fi

// #include "shim_mr.h"
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// MRAttr has all attributes of a memory region (struct fi_mr_attr). Set one of
// Buffers, Ranges and DMABuf. Offset must be 0.
type MRAttr struct {
	Buffers      [][]byte   // buffers in memory of this process
	Ranges       []MemRange // memory that is given by its address: of a device, or not mapped yet
	DMABuf       *DMABuf    // a dma-buf; RegisterAttr adds FlagMRDMABuf; only 2.x
	Access       Access
	Offset       uint64
	RequestedKey uint64
	Context      uintptr // context of the event of an asynchronous registration
	AuthKey      []byte  // nil: the domain's key
	// AuthAV is the vector whose authorisation keys are used instead of AuthKey, if the domain has
	// AuthKeyByAV. Only 2.x has it.
	AuthAV *AV
	// AuthAddr is the Addr in AuthAV of the key whose peers may access the region. With AddrUnspec,
	// the peers of every key may access it.
	AuthAddr Addr
	Iface    HMEMIface // the kind of device that owns the memory, with CapHMEM
	Device   int       // the number of that device; see ZEDevice
	// PageSize is the size in bytes of the pages that will back the memory; 0: unknown. libfabric
	// before 2.x ignores it.
	PageSize int
	Base     *MR // the region that this one is a part of; nil: none; only 2.x
	SubCount int // how many regions will have this one as their Base; ignored before 2.x
}

// MemRange is memory that is given by its address and its length in bytes. The caller must keep it
// alive and pinned until the region is closed.
type MemRange struct{ Addr, Len uintptr }

// DMABuf is memory of a Linux dma-buf, Len bytes from Offset on (struct fi_mr_dmabuf).
type DMABuf struct {
	FD     int
	Offset uint64
	Len    uintptr
	Base   uintptr // the address at which the dma-buf is mapped; 0: not mapped
}

// ZEDevice returns the Device number of Level Zero memory (fi_hmem_ze_device).
func ZEDevice(driver, device int) int { return driver<<16 | device }

// RegisterAttr is RegisterMemory with all attributes (fi_mr_regattr). It returns ErrNotSupported
// for memory of a device that this libfabric was built without.
func (d *Domain) RegisterAttr(attr *MRAttr, flags Flags) (*MR, error) {
	const function = "fi_mr_regattr"
	if !d.isOpen() || attr.AuthAV != nil && !attr.AuthAV.isOpen() || attr.Base != nil && !attr.Base.isOpen() {
		return nil, closedError(function)
	}
	iov, pins, err := attr.memory(flags)
	if err != nil {
		return nil, &Error{function, err}
	}
	c := C.struct_weft_mr_attr{
		iov:           address(iov),
		iov_count:     C.size_t(len(iov)),
		access:        C.uint64_t(attr.Access),
		offset:        C.uint64_t(attr.Offset),
		requested_key: C.uint64_t(attr.RequestedKey),
		context:       C.uintptr_t(attr.Context),
		iface:         C.int(attr.Iface),
		device:        C.int64_t(attr.Device),
		page_size:     C.size_t(attr.PageSize),
		sub_count:     C.size_t(attr.SubCount),
	}
	if b := attr.DMABuf; b != nil {
		c.dmabuf_fd, c.dmabuf_offset = C.int(b.FD), C.uint64_t(b.Offset)
		c.dmabuf_len, c.dmabuf_base = C.size_t(b.Len), C.uintptr_t(b.Base)
		flags |= FlagMRDMABuf
	}
	needs := []*object{&d.object}
	if attr.Base != nil {
		c.base = attr.Base.c()
		needs = append(needs, &attr.Base.object)
	}
	if attr.AuthAV != nil {
		if C.WEFT_MR_AUTH_KEY == 0 {
			unpin(pins)
			return nil, unsupported(function)
		}
		c.auth_key = C.weft_mr_auth_key(attr.AuthAV.c(), C.fi_addr_t(attr.AuthAddr), &c.auth_key_size)
		needs = append(needs, &attr.AuthAV.object)
	} else if len(attr.AuthKey) > 0 {
		c.auth_key, c.auth_key_size = (*C.uint8_t)(C.CBytes(attr.AuthKey)), C.size_t(len(attr.AuthKey))
	}
	release := func() {
		unpin(pins)
		// The key is not freed before the region is closed, because providers keep the pointer.
		C.free(unsafe.Pointer(c.auth_key))
	}
	var fid *C.struct_fid_mr
	if err := check(function, C.weft_mr_regattr(d.c(), &c, C.uint64_t(flags), &fid)); err != nil {
		release()
		return nil, err
	}
	runtime.KeepAlive(iov)
	m := &MR{bufs: attr.Buffers}
	m.open(&fid.fid, needs...)
	m.atClose(func() { release(); m.bufs = nil })
	return m, nil
}

// memory checks attr, pins its Buffers and returns the addresses and lengths of Buffers or Ranges.
func (attr *MRAttr) memory(flags Flags) ([]iovec, *runtime.Pinner, error) {
	given := 0
	for _, is := range []bool{len(attr.Buffers) > 0, len(attr.Ranges) > 0, attr.DMABuf != nil} {
		if is {
			given++
		}
	}
	if given > 1 || attr.DMABuf == nil && flags&FlagMRDMABuf != 0 {
		return nil, nil, fmt.Errorf("give one of Buffers, Ranges and DMABuf, and FlagMRDMABuf only with a DMABuf: %w", ErrInvalid)
	}
	if attr.Iface < HMEMSystem || attr.Iface > HMEMSynapseAI {
		// libfabric does not check Iface.
		return nil, nil, fmt.Errorf("unknown kind of memory %d: %w", attr.Iface, ErrInvalid)
	}
	switch {
	case attr.DMABuf != nil:
		return nil, pin(), nil
	case len(attr.Ranges) > 0:
		iov := make([]iovec, len(attr.Ranges))
		for i, r := range attr.Ranges {
			if r.Len == 0 {
				return nil, nil, fmt.Errorf("range %d is empty: %w", i, ErrInvalid)
			}
			iov[i] = iovec{r.Addr, r.Len}
		}
		return iov, pin(), nil
	}
	return pinned(attr.Buffers)
}
