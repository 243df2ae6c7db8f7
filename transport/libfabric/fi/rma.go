//go:build libfabric

package fi

// #include "shim_rma.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Remote memory access (fi_rma(3)).
//
// The peer's memory is named by the key of its region and an address: the
// virtual address there if the domain's MRMode has MRVirtAddr, else the offset
// from the beginning of the region. It may be reached from the first to the last
// byte of the region, and only as the Access of the region permits: what goes
// beyond is an error completion here, where the provider checks.
//
// The peer is not told, unless the write carries data or the region counts
// (CapRMAEvent). With DataProgress manual it must read its completion queue for
// the operation to go on.
//
// Buffers belong to libfabric until the completion has been read. The calls do
// not block and do not allocate. They return a bare Errno: ErrAgain if the
// endpoint is full or not yet connected, and the caller is to read the
// completion queue and post again; ErrNotSupported without CapRMA; ErrTooBig for
// more buffers or pieces than the limits; ErrClosed.

// RMAIov is a piece of a peer's memory (struct fi_rma_iov).
type RMAIov struct {
	Addr uint64 // virtual address or offset
	Len  uint64 // bytes
	Key  uint64
}

// RMAMsg is an operation on remote memory with all that it may have (struct
// fi_msg_rma).
type RMAMsg struct {
	Bufs    [][]byte // local memory, at most TxAttr.IovLimit buffers
	Descs   []Desc   // for each of Bufs, or none
	Addr    Addr     // the peer
	RMA     []RMAIov // its memory, as many bytes as Bufs, at most TxAttr.RMAIovLimit pieces; left alone until completion with ModeAsyncIov
	Context *Context
	Data    uint64 // for FlagRemoteCQData
}

// Read fills buf from the memory of src (fi_read).
func (e *Endpoint) Read(buf []byte, desc Desc, src Addr, addr, key uint64, ctx *Context) error {
	if err := e.reaches(src); err != nil {
		return err
	}
	if err := ctx.begin(e.root, false); err != nil {
		return err
	}
	rc := C.weft_read(e.ep(), ctx.pin(buf), C.size_t(len(buf)), desc.c(), C.fi_addr_t(src),
		C.uint64_t(addr), C.uint64_t(key), ctx.address())
	runtime.KeepAlive(buf)
	return ctx.posted(rc)
}

// ReadV fills several buffers, one after the other, from one piece of the memory
// of src (fi_readv). There are at most TxAttr.IovLimit buffers.
func (e *Endpoint) ReadV(bufs [][]byte, descs []Desc, src Addr, addr, key uint64, ctx *Context) error {
	if err := e.sends(len(bufs), 0, src); err != nil {
		return err
	}
	if err := ctx.begin(e.root, false); err != nil {
		return err
	}
	v, iov, desc := ctx.vector(bufs, descs)
	rc := C.weft_readv(e.ep(), iov, desc, C.size_t(len(bufs)), C.fi_addr_t(src),
		C.uint64_t(addr), C.uint64_t(key), ctx.address())
	runtime.KeepAlive(v)
	runtime.KeepAlive(bufs)
	return ctx.posted(rc)
}

// ReadMsg fills the message's buffers from its pieces of remote memory
// (fi_readmsg).
func (e *Endpoint) ReadMsg(msg *RMAMsg, flags Flags) error { return e.rmaMsg(0, msg, flags) }

// Write stores buf in the memory of dest (fi_write).
func (e *Endpoint) Write(buf []byte, desc Desc, dest Addr, addr, key uint64, ctx *Context) error {
	if err := e.reaches(dest); err != nil {
		return err
	}
	if err := ctx.begin(e.root, false); err != nil {
		return err
	}
	rc := C.weft_write(e.ep(), ctx.pin(buf), C.size_t(len(buf)), desc.c(), C.fi_addr_t(dest),
		C.uint64_t(addr), C.uint64_t(key), ctx.address())
	runtime.KeepAlive(buf)
	return ctx.posted(rc)
}

// WriteV stores several buffers, one after the other, in one piece of the memory
// of dest (fi_writev). There are at most TxAttr.IovLimit buffers.
func (e *Endpoint) WriteV(bufs [][]byte, descs []Desc, dest Addr, addr, key uint64, ctx *Context) error {
	if err := e.sends(len(bufs), 0, dest); err != nil {
		return err
	}
	if err := ctx.begin(e.root, false); err != nil {
		return err
	}
	v, iov, desc := ctx.vector(bufs, descs)
	rc := C.weft_writev(e.ep(), iov, desc, C.size_t(len(bufs)), C.fi_addr_t(dest),
		C.uint64_t(addr), C.uint64_t(key), ctx.address())
	runtime.KeepAlive(v)
	runtime.KeepAlive(bufs)
	return ctx.posted(rc)
}

// WriteMsg stores the message's buffers in its pieces of remote memory
// (fi_writemsg). FlagRemoteCQData sends msg.Data along; FlagInject gives the
// buffers back at once.
func (e *Endpoint) WriteMsg(msg *RMAMsg, flags Flags) error { return e.rmaMsg(1, msg, flags) }

// WriteData is Write, and the peer reads a completion with data, of
// DomainAttr.CQDataSize bytes, when the data is in its memory (fi_writedata).
// Some providers need a receive posted there for it (ModeRxCQData).
func (e *Endpoint) WriteData(buf []byte, desc Desc, data uint64, dest Addr, addr, key uint64, ctx *Context) error {
	if err := e.reaches(dest); err != nil {
		return err
	}
	if err := ctx.begin(e.root, false); err != nil {
		return err
	}
	rc := C.weft_writedata(e.ep(), ctx.pin(buf), C.size_t(len(buf)), desc.c(), C.uint64_t(data),
		C.fi_addr_t(dest), C.uint64_t(addr), C.uint64_t(key), ctx.address())
	runtime.KeepAlive(buf)
	return ctx.posted(rc)
}

// InjectWrite is Write of at most TxAttr.InjectSize bytes; buf is the caller's
// again on return and there is no completion (fi_inject_write). A flush by
// counter may pass it by over rxm.
func (e *Endpoint) InjectWrite(buf []byte, dest Addr, addr, key uint64) error {
	if err := e.injects(len(buf), dest); err != nil {
		return err
	}
	rc := C.weft_inject_write(e.ep(), (*Context)(nil).pin(buf), C.size_t(len(buf)), C.fi_addr_t(dest),
		C.uint64_t(addr), C.uint64_t(key))
	runtime.KeepAlive(buf)
	return (*Context)(nil).posted(rc)
}

// InjectWriteData is InjectWrite with data for the peer's completion queue
// (fi_inject_writedata).
func (e *Endpoint) InjectWriteData(buf []byte, data uint64, dest Addr, addr, key uint64) error {
	if err := e.injects(len(buf), dest); err != nil {
		return err
	}
	rc := C.weft_inject_writedata(e.ep(), (*Context)(nil).pin(buf), C.size_t(len(buf)), C.uint64_t(data),
		C.fi_addr_t(dest), C.uint64_t(addr), C.uint64_t(key))
	runtime.KeepAlive(buf)
	return (*Context)(nil).posted(rc)
}

// rmaMsg is ReadMsg, or WriteMsg if write is 1.
func (e *Endpoint) rmaMsg(write C.int, msg *RMAMsg, flags Flags) error {
	if err := e.sendsMsg(msg.Bufs, flags, msg.Addr); err != nil {
		return err
	}
	if len(msg.RMA) > e.root.limits.rma {
		return ErrTooBig
	}
	if len(msg.RMA) == 0 { // sockets looks at the first
		return ErrInvalid
	}
	ctx := msg.Context
	if err := ctx.begin(e.root, false); err != nil {
		return err
	}
	v, iov, desc := ctx.vector(msg.Bufs, msg.Descs)
	rma := ctx.pinArray(unsafe.Pointer(unsafe.SliceData(msg.RMA)), len(msg.RMA))
	rc := C.weft_rmamsg(e.ep(), write, iov, desc, C.size_t(len(msg.Bufs)), C.fi_addr_t(msg.Addr),
		rma, C.size_t(len(msg.RMA)), ctx.address(), C.uint64_t(msg.Data), C.uint64_t(flags))
	runtime.KeepAlive(v)
	runtime.KeepAlive(msg)
	return ctx.posted(rc)
}
