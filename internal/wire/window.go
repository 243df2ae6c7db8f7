package wire

import "errors"

// WindowKind is the kind of a MsgWindow: a message of one-sided communication.
type WindowKind uint8

// The kinds of window message. Requests go from the origin of an operation to its target, and
// answers go back. internal/rma/message.go shows which messages belong to which operation.
const (
	WinPut WindowKind = iota + 1 // the target writes the data to Addr
	WinGet                       // the target answers with WinReply, whose data are the Bytes bytes at Addr
	WinAcc                       // the target combines the data with the elements at Addr, by the operation Op
	// The same as WinAcc, and the target answers with WinReply, whose data are the former elements
	// (Bytes bytes). Some operations, such as a mere fetch, need no data.
	WinFetch
	// Compare and swap. The data is two elements: the new value for Addr, and the value to compare
	// with. The target answers with WinReply, whose data is the former element.
	WinSwap
	WinSync   // asks the target to acknowledge all earlier requests of the origin
	WinLock   // asks for the target's lock: exclusive if Flag is set, else shared
	WinUnlock // releases the target's lock
	// Answer: the target has done the first Count requests; the data is the result of the last of
	// them.
	WinReply
	WinAck   // answer: the target has done the first Count requests
	WinGrant // answer: the origin has the lock
	WinGone  // answer: the window does not exist at the target; if Flag is set, because it was revoked
	winKindEnd
)

// Answer reports whether messages of this kind go from a target to an origin.
func (k WindowKind) Answer() bool { return k >= WinReply && k < winKindEnd }

// Window is the content of a MsgWindow, except its data.
type Window struct {
	Kind WindowKind
	Op   uint8 // for WinAcc and WinFetch: number of the operation
	// WinLock: the lock is exclusive. WinGone: the window was revoked. Requests that change memory:
	// the origin asks for an acknowledgement.
	Flag bool
	// WinReply and WinAck: number of requests of the origin that the target has done, since the
	// window exists. WinSync, WinLock and WinUnlock do not count.
	Count uint64
	Addr  uint64 // offset in the target's memory of the window, in bytes
	Bytes uint64 // WinGet and WinFetch: number of bytes that the origin asks for
}

// Message returns the header of a MsgWindow that carries w and n bytes of data in a context. The
// fields of the header hold these values:
//
//	sig: kind | op << 8    tag: flag    handle: count    key: bytes    addr: addr
//
// Hot path: no allocation, no lock, no system call.
func (w *Window) Message(context uint64, n int) Message {
	m := Message{
		Kind: MsgWindow, Sig: uint16(w.Kind) | uint16(w.Op)<<8, Context: context, Length: n,
		Handle: w.Count, Key: w.Bytes, Addr: w.Addr,
	}
	if w.Flag {
		m.Tag = 1
	}
	return m
}

var errWindow = errors.New("window message of an unknown kind, or with an unknown flag")

// Parse sets w from the header m of a MsgWindow. It does not check that the memory at Addr exists.
//
// Hot path: no allocation, no lock, no system call.
func (w *Window) Parse(m *Message) error {
	k := WindowKind(m.Sig)
	if k == 0 || k >= winKindEnd || m.Tag&^1 != 0 {
		return errWindow
	}
	*w = Window{Kind: k, Op: uint8(m.Sig >> 8), Flag: m.Tag == 1, Count: m.Handle, Addr: m.Addr, Bytes: m.Key}
	carries := k == WinPut || k == WinAcc || k == WinFetch || k == WinSwap || k == WinReply
	if !carries && m.Length != 0 {
		return errMsgLength
	}
	return nil
}
