//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Messages (fi_msg(3)). A message goes to the receive that was posted first, as
// far as receives are not for certain senders (CapDirectedRecv).
//
// The calls do not block and, but for vectors without a context, do not
// allocate. They return a bare Errno: ErrAgain if the endpoint is full or not
// yet connected, and the caller is to read the completion queue and to post
// again; ErrBusy if ctx is in flight; ErrNotSupported without CapMsg, or for
// FlagTrigger; ErrTooBig for more buffers than IovLimit; ErrMsgSize for more bytes
// to inject than InjectSize; ErrOpBadState before the
// endpoint is enabled; ErrClosed.
// After an error nothing is posted and no buffer is pinned.
//
// dest and src are ignored by endpoints of type EPMsg. AddrUnspec as src is any
// sender; as dest, being AddrNotAvail, it is ErrInvalid. Another address that the
// vector does not have may end the process, which only the vector can find out.

// Msg is a message with all that it may have (struct fi_msg).
type Msg struct {
	Bufs    [][]byte // its memory, at most IovLimit buffers
	Descs   []Desc   // for each of Bufs, or none
	Addr    Addr     // the peer
	Context *Context
	Data    uint64 // for FlagRemoteCQData
}

// Send sends buf (fi_send).
func (e *Endpoint) Send(buf []byte, desc Desc, dest Addr, ctx *Context) error {
	if err := e.reaches(dest); err != nil {
		return err
	}
	if err := ctx.begin(e, false); err != nil {
		return err
	}
	rc := C.weft_send(e.ep(), ctx.pin(buf), C.size_t(len(buf)), desc.c(), C.fi_addr_t(dest), ctx.address())
	runtime.KeepAlive(buf)
	return ctx.posted(rc)
}

// SendV sends several buffers as one message (fi_sendv).
func (e *Endpoint) SendV(bufs [][]byte, descs []Desc, dest Addr, ctx *Context) error {
	if err := e.sends(len(bufs), 0, dest); err != nil {
		return err
	}
	if err := ctx.begin(e, false); err != nil {
		return err
	}
	v, iov, desc := ctx.vector(bufs, descs)
	rc := C.weft_sendv(e.ep(), iov, desc, C.size_t(len(bufs)), C.fi_addr_t(dest), ctx.address())
	runtime.KeepAlive(v)
	runtime.KeepAlive(bufs)
	return ctx.posted(rc)
}

// SendData sends buf with immediate data, of which the lowest CQDataSize bytes
// are delivered by the receiver's completion (fi_senddata).
func (e *Endpoint) SendData(buf []byte, desc Desc, data uint64, dest Addr, ctx *Context) error {
	if err := e.reaches(dest); err != nil {
		return err
	}
	if err := ctx.begin(e, false); err != nil {
		return err
	}
	rc := C.weft_senddata(e.ep(), ctx.pin(buf), C.size_t(len(buf)), desc.c(), C.uint64_t(data),
		C.fi_addr_t(dest), ctx.address())
	runtime.KeepAlive(buf)
	return ctx.posted(rc)
}

// SendMsg sends a message under flags (fi_sendmsg), which replace those of the
// TxAttr.
func (e *Endpoint) SendMsg(msg *Msg, flags Flags) error {
	if err := e.sendsMsg(msg.Bufs, flags, msg.Addr); err != nil {
		return err
	}
	ctx := msg.Context
	if err := ctx.begin(e, false); err != nil {
		return err
	}
	v, iov, desc := ctx.vector(msg.Bufs, msg.Descs)
	rc := C.weft_sendmsg(e.ep(), iov, desc, C.size_t(len(msg.Bufs)), C.fi_addr_t(msg.Addr),
		C.uint64_t(msg.Data), ctx.address(), C.uint64_t(flags))
	runtime.KeepAlive(v)
	runtime.KeepAlive(msg)
	return ctx.posted(rc)
}

// Inject sends buf, of at most InjectSize bytes, which is free when the call
// returns (fi_inject). It never completes by itself; counters count it.
func (e *Endpoint) Inject(buf []byte, dest Addr) error {
	if err := e.injects(len(buf), dest); err != nil {
		return err
	}
	rc := C.weft_inject(e.ep(), escape(unsafe.Pointer(unsafe.SliceData(buf))), C.size_t(len(buf)), C.fi_addr_t(dest))
	runtime.KeepAlive(buf)
	return sent(rc)
}

// InjectData is Inject with immediate data (fi_injectdata).
func (e *Endpoint) InjectData(buf []byte, data uint64, dest Addr) error {
	if err := e.injects(len(buf), dest); err != nil {
		return err
	}
	rc := C.weft_injectdata(e.ep(), escape(unsafe.Pointer(unsafe.SliceData(buf))), C.size_t(len(buf)),
		C.uint64_t(data), C.fi_addr_t(dest))
	runtime.KeepAlive(buf)
	return sent(rc)
}

// sent is the error of a call without a context that returned rc.
func sent(rc C.ssize_t) error {
	if rc < 0 {
		return errno(rc)
	}
	return nil
}

// Recv takes a message into buf (fi_recv). One that is longer fails with
// ErrTruncated.
func (e *Endpoint) Recv(buf []byte, desc Desc, src Addr, ctx *Context) error {
	if err := e.usable(); err != nil {
		return err
	}
	if err := ctx.begin(e, e.multi); err != nil {
		return err
	}
	rc := C.weft_recv(e.ep(), ctx.pin(buf), C.size_t(len(buf)), desc.c(), C.fi_addr_t(src), ctx.address())
	runtime.KeepAlive(buf)
	return ctx.posted(rc)
}

// RecvV takes a message into several buffers, one after the other (fi_recvv).
func (e *Endpoint) RecvV(bufs [][]byte, descs []Desc, src Addr, ctx *Context) error {
	if err := e.receives(len(bufs), 0); err != nil {
		return err
	}
	if err := ctx.begin(e, e.multi); err != nil {
		return err
	}
	v, iov, desc := ctx.vector(bufs, descs)
	rc := C.weft_recvv(e.ep(), iov, desc, C.size_t(len(bufs)), C.fi_addr_t(src), ctx.address())
	runtime.KeepAlive(v)
	runtime.KeepAlive(bufs)
	return ctx.posted(rc)
}

// RecvMsg takes a message under flags (fi_recvmsg), which replace those of the
// RxAttr. With FlagMultiRecv the one buffer takes messages, each at its place
// (CQEntry.Buf), until less than OptMinMultiRecv bytes are left; the last
// completion, or one that brings no message, says FlagMultiRecv. With several
// senders net says it with the last message even if one before it is still coming: keep the buffer
// until what came before is complete.
func (e *Endpoint) RecvMsg(msg *Msg, flags Flags) error {
	if err := e.receives(len(msg.Bufs), flags); err != nil {
		return err
	}
	ctx := msg.Context
	if err := ctx.begin(e, flags&FlagMultiRecv != 0); err != nil {
		return err
	}
	v, iov, desc := ctx.vector(msg.Bufs, msg.Descs)
	rc := C.weft_recvmsg(e.ep(), iov, desc, C.size_t(len(msg.Bufs)), C.fi_addr_t(msg.Addr), ctx.address(),
		C.uint64_t(flags))
	runtime.KeepAlive(v)
	runtime.KeepAlive(msg)
	return ctx.posted(rc)
}
