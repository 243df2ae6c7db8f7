package wire

import "errors"

// WindowKind says what a MsgWindow is for.
type WindowKind uint8

// The kinds of window message. Questions go from the origin of an operation to
// its target, answers back; internal/rma/message.go draws how.
const (
	WinPut    WindowKind = iota + 1 // the data goes to Addr
	WinGet                          // Bytes at Addr are asked for: WinReply
	WinAcc                          // the data is combined with what is at Addr by Op
	WinFetch                        // the same for Bytes; the former elements are asked for. Some operations need no data
	WinSwap                         // the data is two elements: what to store at Addr, and what must be there. WinReply
	WinSync                         // an acknowledgement of all before is asked for
	WinLock                         // the target's lock is asked for, exclusively if Flag
	WinUnlock                       // it is given back
	WinReply                        // Count questions are dealt with, and the last asked for the data
	WinAck                          // Count questions are dealt with
	WinGrant                        // the lock is the origin's
	WinGone                         // there is no such window, as it was revoked if Flag
	winKindEnd
)

// Answer says whether a target sends messages of this kind.
func (k WindowKind) Answer() bool { return k >= WinReply && k < winKindEnd }

// Window is what a MsgWindow says besides its data.
type Window struct {
	Kind  WindowKind
	Op    uint8  // of WinAcc and WinFetch
	Flag  bool   // questions that change memory: an acknowledgement is asked for
	Count uint64 // of an answer
	Addr  uint64 // in bytes from the start of the target's part
	Bytes uint64 // asked for
}

// Message is the header that carries w, with n bytes of data, to a window.
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

var errWindow = errors.New("window message that says nothing known")

// Parse takes w from the header of a MsgWindow. What it names may not be there.
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
