//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Tagged messages (fi_tagged(3)): a message goes to the first receive posted
// whose tag is the message's, in all bits that the receive does not ignore, and
// whose sender is, where CapDirectedRecv names one. One that meets no receive
// waits at the receiver, within the limits of the provider. What fi_msg(3) says,
// and msg.go about errors and addresses, is true here; the capability is
// CapTagged.

// TMsg is a tagged message with all that it may have (struct fi_msg_tagged).
type TMsg struct {
	Msg
	Tag    uint64
	Ignore uint64 // bits of the tag that a receive does not look at
}

// TSend sends buf under a tag (fi_tsend).
func (e *Endpoint) TSend(buf []byte, desc Desc, dest Addr, tag uint64, ctx *Context) error {
	if err := e.reaches(dest); err != nil {
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
	if err := e.sends(len(bufs), 0, dest); err != nil {
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
	if err := e.reaches(dest); err != nil {
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

// TSendMsg sends a message under flags (fi_tsendmsg), which replace those of
// the TxAttr.
func (e *Endpoint) TSendMsg(msg *TMsg, flags Flags) error {
	if err := e.sendsMsg(msg.Bufs, flags, msg.Addr); err != nil {
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

// TInject sends buf, of at most InjectSize bytes, which is free when the call
// returns (fi_tinject). It never completes by itself; counters count it.
func (e *Endpoint) TInject(buf []byte, dest Addr, tag uint64) error {
	if err := e.injects(len(buf), dest); err != nil {
		return err
	}
	rc := C.weft_tinject(e.ep(), escape(unsafe.Pointer(unsafe.SliceData(buf))), C.size_t(len(buf)),
		C.fi_addr_t(dest), C.uint64_t(tag))
	runtime.KeepAlive(buf)
	return sent(rc)
}

// TInjectData is TInject with immediate data (fi_tinjectdata).
func (e *Endpoint) TInjectData(buf []byte, data uint64, dest Addr, tag uint64) error {
	if err := e.injects(len(buf), dest); err != nil {
		return err
	}
	rc := C.weft_tinjectdata(e.ep(), escape(unsafe.Pointer(unsafe.SliceData(buf))), C.size_t(len(buf)),
		C.uint64_t(data), C.fi_addr_t(dest), C.uint64_t(tag))
	runtime.KeepAlive(buf)
	return sent(rc)
}

// TRecv takes a message with the tag, in the bits that ignore leaves, into buf
// (fi_trecv). One that is longer fails with ErrTruncated.
func (e *Endpoint) TRecv(buf []byte, desc Desc, src Addr, tag, ignore uint64, ctx *Context) error {
	if err := e.usable(); err != nil {
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

// TRecvV takes a message into several buffers, one after the other (fi_trecvv).
func (e *Endpoint) TRecvV(bufs [][]byte, descs []Desc, src Addr, tag, ignore uint64, ctx *Context) error {
	if err := e.receives(len(bufs), 0); err != nil {
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

// TRecvMsg takes a message under flags (fi_trecvmsg), which replace those of
// the RxAttr.
//
// FlagPeek looks whether a message is there, without buffers: its completion
// has the length, tag and data, and ErrNoMessage as a failure says that there is
// none. FlagPeek with FlagClaim also sets the message aside for the context,
// and FlagPeek with FlagDiscard throws it away. FlagClaim alone, with the same
// Context, then takes what was set aside, and with FlagDiscard throws it away;
// ErrInvalid if nothing was, or another operation has had the Context since.
func (e *Endpoint) TRecvMsg(msg *TMsg, flags Flags) error {
	if err := e.receives(len(msg.Bufs), flags); err != nil {
		return err
	}
	ctx, claim := msg.Context, flags&(FlagPeek|FlagClaim)
	if claim&FlagClaim != 0 && (ctx == nil || claim == FlagClaim && ctx.aside.Load() != e.root) {
		return ErrInvalid // rxm and rxd would follow a pointer in the context
	}
	if err := ctx.begin(e, flags&FlagMultiRecv != 0); err != nil {
		return err
	}
	if claim == FlagPeek|FlagClaim {
		ctx.aside.Store(e.root)
	}
	v, iov, desc := ctx.vector(msg.Bufs, msg.Descs)
	rc := C.weft_trecvmsg(e.ep(), iov, desc, C.size_t(len(msg.Bufs)), C.fi_addr_t(msg.Addr), C.uint64_t(msg.Tag),
		C.uint64_t(msg.Ignore), ctx.address(), C.uint64_t(flags))
	runtime.KeepAlive(v)
	runtime.KeepAlive(msg)
	if rc < 0 && claim == FlagClaim {
		ctx.aside.Store(e.root) // for another attempt
	} else if rc < 0 && claim&FlagClaim != 0 {
		ctx.aside.Store(nil)
	}
	return ctx.posted(rc)
}
