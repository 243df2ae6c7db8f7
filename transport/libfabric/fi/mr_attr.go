//go:build libfabric

package fi

// #include "shim_mr.h"
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"
)

// MRAttr is all that can be said about a region (struct fi_mr_attr). The memory
// is Buffers, or Ranges, or DMABuf. Offset must be 0.
type MRAttr struct {
	Buffers      [][]byte   // memory of this process
	Ranges       []MemRange // memory by address: a device's, or one that is not mapped yet
	DMABuf       *DMABuf    // a dma-buf, for which FlagMRDMABuf is set; 2.x
	Access       Access
	Offset       uint64
	RequestedKey uint64
	Context      uintptr   // returned by the event of an asynchronous registration
	AuthKey      []byte    // nil: the domain's
	AuthAV       *AV       // instead: all keys of this vector, where the domain takes keys from vectors; 2.x
	AuthAddr     Addr      // those that may reach the region, of AuthAV; AddrUnspec: all
	Iface        HMEMIface // what the memory belongs to, with CapHMEM
	Device       int       // the device's number there; see ZEDevice
	PageSize     int       // of pages that will be behind the memory; 0: unknown; ignored before 2.x
	Base         *MR       // makes this a part of that region; 2.x
	SubCount     int       // parts expected; ignored before 2.x
}

// MemRange is memory by its address, which nobody keeps alive or pinned here.
type MemRange struct{ Addr, Len uintptr }

// DMABuf is memory that a file descriptor stands for (struct fi_mr_dmabuf).
type DMABuf struct {
	FD     int
	Offset uint64
	Len    uintptr
	Base   uintptr // where it is mapped; 0: nowhere
}

// ZEDevice is the Device of memory of Level Zero (fi_hmem_ze_device).
func ZEDevice(driver, device int) int { return driver<<16 | device }

// RegisterAttr registers memory with all attributes (fi_mr_regattr). Otherwise it
// is RegisterMemory. Memory of a device that this libfabric was built without is
// ErrNotSupported.
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
			return nil, lacks(function)
		}
		c.auth_key = C.weft_mr_auth_key(attr.AuthAV.c(), C.fi_addr_t(attr.AuthAddr), &c.auth_key_size)
		needs = append(needs, &attr.AuthAV.object)
	} else if len(attr.AuthKey) > 0 {
		c.auth_key, c.auth_key_size = (*C.uint8_t)(C.CBytes(attr.AuthKey)), C.size_t(len(attr.AuthKey))
	}
	release := func() {
		unpin(pins)
		C.free(unsafe.Pointer(c.auth_key)) // providers keep the pointer
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

// memory pins what attr names and says where it is.
func (attr *MRAttr) memory(flags Flags) ([]iovec, *runtime.Pinner, error) {
	given := 0
	for _, is := range []bool{len(attr.Buffers) > 0, len(attr.Ranges) > 0, attr.DMABuf != nil} {
		if is {
			given++
		}
	}
	if given > 1 || attr.DMABuf == nil && flags&FlagMRDMABuf != 0 {
		return nil, nil, fmt.Errorf("one kind of memory, and what the flags say: %w", ErrInvalid)
	}
	if attr.Iface < HMEMSystem || attr.Iface > HMEMSynapseAI {
		return nil, nil, fmt.Errorf("no kind of memory %d: %w", attr.Iface, ErrInvalid) // libfabric does not look
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
