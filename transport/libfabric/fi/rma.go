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
// The key of a region and an address name the peer's memory. The address is the virtual address at
// the peer if the domain's MRMode has MRVirtAddr, else the offset from the region's start. An
// operation must stay within the region and do only what the region's Access permits; otherwise it
// fails with an error completion, if the provider checks that.
//
// The peer gets no completion, except for a write with immediate data. A counter that is bound to
// the region counts the operation (CapRMAEvent). If the peer's DataProgress is manual, the
// operation progresses only while the peer reads its completion queue.
//
// Buffers belong to libfabric until the completion has been read. The calls do not block. They do
// not allocate, except for vectors without a Context. Errors are not wrapped in an Error. Among
// them are:
//
//   - ErrAgain: the endpoint has no room or is not connected yet; read the completion queue and
//     post again.
//   - ErrNotSupported: the endpoint lacks CapRMA.
//   - ErrTooBig: more buffers than TxAttr.IovLimit, or more segments than TxAttr.RMAIovLimit.
//   - ErrBusy: ctx is in flight.
//   - ErrOpBadState: the endpoint is not enabled.
//   - ErrClosed: the endpoint or ctx is closed.

// RMAIov is a segment of a peer's memory (struct fi_rma_iov).
type RMAIov struct {
	Addr uint64 // virtual address in the peer or offset in the region, as the domain's MRMode says
	Len  uint64 // length in bytes
	Key  uint64
}

// RMAMsg has all arguments of an RMA operation (struct fi_msg_rma).
type RMAMsg struct {
	Bufs  [][]byte // local memory, at most TxAttr.IovLimit buffers
	Descs []Desc   // one descriptor per buffer, or none at all
	Addr  Addr     // the peer whose memory is accessed
	// RMA is the peer's memory, as many bytes as Bufs, in at most TxAttr.RMAIovLimit segments. With
	// ModeAsyncIov the caller must not change the slice's elements before the operation completes.
	RMA     []RMAIov
	Context *Context
	Data    uint64 // immediate data, with FlagRemoteCQData
}

// Read reads from the memory of src into buf (fi_read).
func (e *Endpoint) Read(buf []byte, desc Desc, src Addr, addr, key uint64, ctx *Context) error {
	if err := e.checkDest(src); err != nil {
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

// ReadV reads from the memory of src into several buffers, in their order (fi_readv). There are at
// most TxAttr.IovLimit buffers.
func (e *Endpoint) ReadV(bufs [][]byte, descs []Desc, src Addr, addr, key uint64, ctx *Context) error {
	if err := e.checkSend(len(bufs), 0, src); err != nil {
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

// ReadMsg reads from the message's segments of remote memory into its buffers (fi_readmsg).
func (e *Endpoint) ReadMsg(msg *RMAMsg, flags Flags) error { return e.rmaMsg(0, msg, flags) }

// Write writes buf to the memory of dest (fi_write).
func (e *Endpoint) Write(buf []byte, desc Desc, dest Addr, addr, key uint64, ctx *Context) error {
	if err := e.checkDest(dest); err != nil {
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

// WriteV writes several buffers, in their order, to the memory of dest (fi_writev). There are at
// most TxAttr.IovLimit buffers.
func (e *Endpoint) WriteV(bufs [][]byte, descs []Desc, dest Addr, addr, key uint64, ctx *Context) error {
	if err := e.checkSend(len(bufs), 0, dest); err != nil {
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

// WriteMsg writes the message's buffers to its segments of remote memory (fi_writemsg). With
// FlagRemoteCQData the write carries msg.Data. With FlagInject the caller may reuse the buffers
// when WriteMsg returns.
func (e *Endpoint) WriteMsg(msg *RMAMsg, flags Flags) error { return e.rmaMsg(1, msg, flags) }

// WriteData is Write with immediate data (fi_writedata): when the bytes of buf are in the peer's
// memory, the peer gets a completion with the lowest DomainAttr.CQDataSize bytes of data. With some
// providers that completion consumes a receive, which the peer must have posted (ModeRxCQData).
func (e *Endpoint) WriteData(buf []byte, desc Desc, data uint64, dest Addr, addr, key uint64, ctx *Context) error {
	if err := e.checkDest(dest); err != nil {
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

// InjectWrite is Write for at most TxAttr.InjectSize bytes (fi_inject_write). When InjectWrite
// returns, the caller may reuse buf. There is no completion. With rxm a counter may count the write
// before the write is complete.
func (e *Endpoint) InjectWrite(buf []byte, dest Addr, addr, key uint64) error {
	if err := e.checkInject(len(buf), dest); err != nil {
		return err
	}
	rc := C.weft_inject_write(e.ep(), (*Context)(nil).pin(buf), C.size_t(len(buf)), C.fi_addr_t(dest),
		C.uint64_t(addr), C.uint64_t(key))
	runtime.KeepAlive(buf)
	return (*Context)(nil).posted(rc)
}

// InjectWriteData is InjectWrite with immediate data (fi_inject_writedata).
func (e *Endpoint) InjectWriteData(buf []byte, data uint64, dest Addr, addr, key uint64) error {
	if err := e.checkInject(len(buf), dest); err != nil {
		return err
	}
	rc := C.weft_inject_writedata(e.ep(), (*Context)(nil).pin(buf), C.size_t(len(buf)), C.uint64_t(data),
		C.fi_addr_t(dest), C.uint64_t(addr), C.uint64_t(key))
	runtime.KeepAlive(buf)
	return (*Context)(nil).posted(rc)
}

// rmaMsg implements ReadMsg, and WriteMsg if write is 1.
func (e *Endpoint) rmaMsg(write C.int, msg *RMAMsg, flags Flags) error {
	if err := e.checkSendMsg(msg.Bufs, flags, msg.Addr); err != nil {
		return err
	}
	if len(msg.RMA) > e.root.limits.rma {
		return ErrTooBig
	}
	if len(msg.RMA) == 0 { // sockets reads the first element without a check
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
