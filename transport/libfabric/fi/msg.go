//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Messages (fi_msg(3)). Each message goes to the oldest posted receive. With CapDirectedRecv,
// receives may name a sender; such a receive takes only messages of that sender.
//
// The calls do not block. They do not allocate, except for vectors without a Context. Errors are
// not wrapped in an Error. Among them are:
//
//   - ErrAgain: the endpoint has no room or is not connected yet; read the completion queue and
//     post again.
//   - ErrBusy: ctx is in flight.
//   - ErrNotSupported: the endpoint lacks CapMsg, or the flags have FlagTrigger.
//   - ErrTooBig: more buffers than IovLimit.
//   - ErrMsgSize: more bytes to inject than InjectSize.
//   - ErrOpBadState: the endpoint is not enabled.
//   - ErrClosed: the endpoint or ctx is closed.
//
// After an error nothing is posted and no buffer is pinned.
//
// Endpoints of type EPMsg ignore dest and src. As src, AddrUnspec means any sender. As dest it is
// the same as AddrNotAvail, which is ErrInvalid. Any other dest must be in the address vector;
// providers do not check that and may crash.

// Msg has all arguments of a message operation (struct fi_msg).
type Msg struct {
	Bufs    [][]byte // the message's memory, at most IovLimit buffers
	Descs   []Desc   // one descriptor per buffer, or none at all
	Addr    Addr     // the destination of a send, or the source of a receive
	Context *Context
	Data    uint64 // immediate data, with FlagRemoteCQData
}

// Send sends buf (fi_send).
func (e *Endpoint) Send(buf []byte, desc Desc, dest Addr, ctx *Context) error {
	if err := e.checkDest(dest); err != nil {
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
	if err := e.checkSend(len(bufs), 0, dest); err != nil {
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

// SendData sends buf with immediate data (fi_senddata). The receiver's completion carries the
// lowest CQDataSize bytes of data.
func (e *Endpoint) SendData(buf []byte, desc Desc, data uint64, dest Addr, ctx *Context) error {
	if err := e.checkDest(dest); err != nil {
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

// SendMsg sends a message with flags, which replace those of the TxAttr (fi_sendmsg).
func (e *Endpoint) SendMsg(msg *Msg, flags Flags) error {
	if err := e.checkSendMsg(msg.Bufs, flags, msg.Addr); err != nil {
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

// Inject sends buf, of at most InjectSize bytes (fi_inject). When Inject returns, the caller may
// reuse buf. There is no completion, but counters count the message.
func (e *Endpoint) Inject(buf []byte, dest Addr) error {
	if err := e.checkInject(len(buf), dest); err != nil {
		return err
	}
	rc := C.weft_inject(e.ep(), escape(unsafe.Pointer(unsafe.SliceData(buf))), C.size_t(len(buf)), C.fi_addr_t(dest))
	runtime.KeepAlive(buf)
	return sent(rc)
}

// InjectData is Inject with immediate data (fi_injectdata).
func (e *Endpoint) InjectData(buf []byte, data uint64, dest Addr) error {
	if err := e.checkInject(len(buf), dest); err != nil {
		return err
	}
	rc := C.weft_injectdata(e.ep(), escape(unsafe.Pointer(unsafe.SliceData(buf))), C.size_t(len(buf)),
		C.uint64_t(data), C.fi_addr_t(dest))
	runtime.KeepAlive(buf)
	return sent(rc)
}

// sent returns the error of a call of libfabric without a context that returned rc.
func sent(rc C.ssize_t) error {
	if rc < 0 {
		return errno(rc)
	}
	return nil
}

// Recv posts buf for a message (fi_recv). If the message is longer than buf, the receive fails with
// ErrTruncated.
func (e *Endpoint) Recv(buf []byte, desc Desc, src Addr, ctx *Context) error {
	if err := e.checkUsable(); err != nil {
		return err
	}
	if err := ctx.begin(e, e.multi); err != nil {
		return err
	}
	rc := C.weft_recv(e.ep(), ctx.pin(buf), C.size_t(len(buf)), desc.c(), C.fi_addr_t(src), ctx.address())
	runtime.KeepAlive(buf)
	return ctx.posted(rc)
}

// RecvV posts several buffers for one message (fi_recvv).
func (e *Endpoint) RecvV(bufs [][]byte, descs []Desc, src Addr, ctx *Context) error {
	if err := e.checkRecv(len(bufs), 0); err != nil {
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

// RecvMsg posts a receive with flags, which replace those of the RxAttr (fi_recvmsg). With
// FlagMultiRecv there must be one buffer, which takes several messages, each at the address in
// CQEntry.Buf, until less than OptMinMultiRecv bytes are left. Then the last completion, or one
// without a message, has FlagMultiRecv. If there are several senders, net may set FlagMultiRecv
// although an earlier message in the buffer is still incomplete. So keep the buffer until all
// messages in it are complete.
func (e *Endpoint) RecvMsg(msg *Msg, flags Flags) error {
	if err := e.checkRecv(len(msg.Bufs), flags); err != nil {
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
