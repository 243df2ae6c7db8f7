package wire

import "errors"

// WindowKind is the kind of a MsgWindow.
type WindowKind uint8

// The kinds of window message. Requests go from the origin of an operation to its target, answers
// back. internal/rma/message.go draws the exchanges.
const (
	WinPut    WindowKind = iota + 1 // the target writes the data to Addr
	WinGet                          // the target answers with Bytes bytes at Addr: WinReply
	WinAcc                          // the target combines the data with the elements at Addr by Op
	WinFetch                        // the same; the target answers with the Bytes bytes of the former elements: WinReply. Some operations need no data
	WinSwap                         // the data is two elements: the new value for Addr, and the value to compare with (compare and swap). Answer: WinReply
	WinSync                         // asks for an acknowledgement of all earlier requests
	WinLock                         // asks for the target's lock, exclusive if Flag is set
	WinUnlock                       // releases the lock
	WinReply                        // the target has done Count requests; the data is the answer to the last one
	WinAck                          // the target has done Count requests
	WinGrant                        // the origin has the lock
	WinGone                         // the window does not exist; if Flag is set, because it was revoked
	winKindEnd
)

// Answer reports whether a target sends messages of this kind.
func (k WindowKind) Answer() bool { return k >= WinReply && k < winKindEnd }

// Window holds the content of a MsgWindow except its data.
type Window struct {
	Kind  WindowKind
	Op    uint8  // operation of WinAcc and WinFetch
	Flag  bool   // of requests that change memory: the origin asks for an acknowledgement
	Count uint64 // of an answer: number of requests
	Addr  uint64 // in bytes from the start of the target's part
	Bytes uint64 // number of bytes that the origin asks for
}

// Message returns the header that carries w, with n bytes of data, in a context.
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

// Parse sets w from the header of a MsgWindow. It does not check that the addressed memory
// exists.
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
