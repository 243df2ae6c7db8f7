//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Tagged messages (fi_tagged(3)). A message goes to the receive that was posted first among those
// whose tag equals the message's tag in all bits that the receive does not ignore. With
// CapDirectedRecv the sender must match, too. A message without a matching receive is buffered at
// the receiver, within the limits of the provider. The errors and the rules for addresses are those
// that msg.go describes; the capability is CapTagged.

// TMsg has all arguments of a tagged message operation (struct fi_msg_tagged).
type TMsg struct {
	Msg
	Tag    uint64
	Ignore uint64 // bits of the tag that a receive ignores
}

// TSend sends buf with a tag (fi_tsend).
func (e *Endpoint) TSend(buf []byte, desc Desc, dest Addr, tag uint64, ctx *Context) error {
	if err := e.checkDest(dest); err != nil {
		return err
	}
	if err := ctx.begin(e, false); err != nil {
		return err
	}
	rc := C.weft_tsend(e.ep(), ctx.pin(buf), C.size_t(len(buf)), desc.c(), C.fi_addr_t(dest), C.uint64_t(tag),
		ctx.address())
	runtime.KeepAlive(buf)
	return ctx.posted(rc)
}

// TSendV sends several buffers as one message (fi_tsendv).
func (e *Endpoint) TSendV(bufs [][]byte, descs []Desc, dest Addr, tag uint64, ctx *Context) error {
	if err := e.checkSend(len(bufs), 0, dest); err != nil {
		return err
	}
	if err := ctx.begin(e, false); err != nil {
		return err
	}
	v, iov, desc := ctx.vector(bufs, descs)
	rc := C.weft_tsendv(e.ep(), iov, desc, C.size_t(len(bufs)), C.fi_addr_t(dest), C.uint64_t(tag), ctx.address())
	runtime.KeepAlive(v)
	runtime.KeepAlive(bufs)
	return ctx.posted(rc)
}

// TSendData sends buf with immediate data (fi_tsenddata).
func (e *Endpoint) TSendData(buf []byte, desc Desc, data uint64, dest Addr, tag uint64, ctx *Context) error {
	if err := e.checkDest(dest); err != nil {
		return err
	}
	if err := ctx.begin(e, false); err != nil {
		return err
	}
	rc := C.weft_tsenddata(e.ep(), ctx.pin(buf), C.size_t(len(buf)), desc.c(), C.uint64_t(data),
		C.fi_addr_t(dest), C.uint64_t(tag), ctx.address())
	runtime.KeepAlive(buf)
	return ctx.posted(rc)
}

// TSendMsg sends a message with flags, which replace those of the TxAttr (fi_tsendmsg).
func (e *Endpoint) TSendMsg(msg *TMsg, flags Flags) error {
	if err := e.checkSendMsg(msg.Bufs, flags, msg.Addr); err != nil {
		return err
	}
	ctx := msg.Context
	if err := ctx.begin(e, false); err != nil {
		return err
	}
	v, iov, desc := ctx.vector(msg.Bufs, msg.Descs)
	rc := C.weft_tsendmsg(e.ep(), iov, desc, C.size_t(len(msg.Bufs)), C.fi_addr_t(msg.Addr), C.uint64_t(msg.Tag),
		C.uint64_t(msg.Data), ctx.address(), C.uint64_t(flags))
	runtime.KeepAlive(v)
	runtime.KeepAlive(msg)
	return ctx.posted(rc)
}

// TInject sends buf, of at most InjectSize bytes (fi_tinject). When TInject returns, the caller may
// reuse buf. There is no completion, but counters count the message.
func (e *Endpoint) TInject(buf []byte, dest Addr, tag uint64) error {
	if err := e.checkInject(len(buf), dest); err != nil {
		return err
	}
	rc := C.weft_tinject(e.ep(), escape(unsafe.Pointer(unsafe.SliceData(buf))), C.size_t(len(buf)),
		C.fi_addr_t(dest), C.uint64_t(tag))
	runtime.KeepAlive(buf)
	return sent(rc)
}

// TInjectData is TInject with immediate data (fi_tinjectdata).
func (e *Endpoint) TInjectData(buf []byte, data uint64, dest Addr, tag uint64) error {
	if err := e.checkInject(len(buf), dest); err != nil {
		return err
	}
	rc := C.weft_tinjectdata(e.ep(), escape(unsafe.Pointer(unsafe.SliceData(buf))), C.size_t(len(buf)),
		C.uint64_t(data), C.fi_addr_t(dest), C.uint64_t(tag))
	runtime.KeepAlive(buf)
	return sent(rc)
}

// TRecv posts buf for a message whose tag equals tag in all bits that are not set in ignore
// (fi_trecv). If the message is longer than buf, the receive fails with ErrTruncated.
func (e *Endpoint) TRecv(buf []byte, desc Desc, src Addr, tag, ignore uint64, ctx *Context) error {
	if err := e.checkUsable(); err != nil {
		return err
	}
	if err := ctx.begin(e, e.multiTagged); err != nil {
		return err
	}
	rc := C.weft_trecv(e.ep(), ctx.pin(buf), C.size_t(len(buf)), desc.c(), C.fi_addr_t(src), C.uint64_t(tag),
		C.uint64_t(ignore), ctx.address())
	runtime.KeepAlive(buf)
	return ctx.posted(rc)
}

// TRecvV posts several buffers for one message (fi_trecvv).
func (e *Endpoint) TRecvV(bufs [][]byte, descs []Desc, src Addr, tag, ignore uint64, ctx *Context) error {
	if err := e.checkRecv(len(bufs), 0); err != nil {
		return err
	}
	if err := ctx.begin(e, e.multiTagged); err != nil {
		return err
	}
	v, iov, desc := ctx.vector(bufs, descs)
	rc := C.weft_trecvv(e.ep(), iov, desc, C.size_t(len(bufs)), C.fi_addr_t(src), C.uint64_t(tag),
		C.uint64_t(ignore), ctx.address())
	runtime.KeepAlive(v)
	runtime.KeepAlive(bufs)
	return ctx.posted(rc)
}

// TRecvMsg posts a receive with flags, which replace those of the RxAttr (fi_trecvmsg).
//
// A call with FlagPeek checks for a message without receiving it, and needs no buffers. Its
// completion has the length, tag and data of the message; if there is no message, the operation
// fails with ErrNoMessage. FlagPeek with FlagClaim also reserves the message for the Context, and
// FlagPeek with FlagDiscard discards it. A call with FlagClaim without FlagPeek, with the same
// Context, receives the reserved message, or with FlagDiscard discards it. This call returns
// ErrInvalid if no message is reserved, or if another operation has used the Context since then.
func (e *Endpoint) TRecvMsg(msg *TMsg, flags Flags) error {
	if err := e.checkRecv(len(msg.Bufs), flags); err != nil {
		return err
	}
	ctx, claim := msg.Context, flags&(FlagPeek|FlagClaim)
	if claim&FlagClaim != 0 && (ctx == nil || claim == FlagClaim && ctx.claimed.Load() != e.root) {
		return ErrInvalid // rxm and rxd would dereference a pointer in the context
	}
	if err := ctx.begin(e, flags&FlagMultiRecv != 0); err != nil {
		return err
	}
	if claim == FlagPeek|FlagClaim {
		ctx.claimed.Store(e.root)
	}
	v, iov, desc := ctx.vector(msg.Bufs, msg.Descs)
	rc := C.weft_trecvmsg(e.ep(), iov, desc, C.size_t(len(msg.Bufs)), C.fi_addr_t(msg.Addr), C.uint64_t(msg.Tag),
		C.uint64_t(msg.Ignore), ctx.address(), C.uint64_t(flags))
	runtime.KeepAlive(v)
	runtime.KeepAlive(msg)
	if rc < 0 && claim == FlagClaim {
		ctx.claimed.Store(e.root) // the message stays reserved, so that the caller may try again
	} else if rc < 0 && claim&FlagClaim != 0 {
		ctx.claimed.Store(nil)
	}
	return ctx.posted(rc)
}
