package wire

import "errors"

// WindowKind is the kind of a MsgWindow: a message of one-sided communication.
type WindowKind uint8

// The kinds of window message. Requests go from the origin of an operation to its target, and
// answers go to the origin. internal/rma/message.go shows which messages belong to which operation.
const (
	WinPut WindowKind = iota + 1 // the target writes the data to Addr
	WinGet                       // the target answers with WinReply, whose data are the Bytes bytes at Addr
	WinAcc                       // the target combines the data with the elements at Addr, by the operation Op
	// The same as WinAcc, and the target answers with WinReply, whose data are the former elements
	// (Bytes bytes). If the operation only fetches (rma.NoOp), WinFetch has no data.
	WinFetch
	// Compare and swap. The data is two elements: the new value for Addr, and the value to compare
	// with. The target answers with WinReply, whose data is the former element.
	WinSwap
	WinSync   // asks the target for a WinAck, when the target has done all earlier requests of the origin
	WinLock   // asks for the target's lock: exclusive if Flag is set, else shared
	WinUnlock // releases the target's lock, which the origin holds
	// Answer: the target has done the origin's requests up to number [Window.Count]; the data is the
	// result of that request.
	WinReply
	WinAck // answer: the target has done the origin's requests up to number [Window.Count]
	// Answer: the origin has the lock. If the lock is in a table in shared memory (rma.lockTable), the
	// rank that releases the lock sends WinGrant, and the origin looks into the table.
	WinGrant
	WinGone // answer: the window does not exist at the target; if Flag is set, because it was revoked
	// Answer: the target has done the origin's requests up to number [Window.Count], except that it has
	// refused that request, because the region is not attached or does not have all the bytes.
	WinRefused
	WinBusy // answer to a WinLock with Try: the lock is not free, and the request is not queued
	winKindEnd
)

// Answer reports whether a kind is an answer: its messages go to the origin of an operation.
func (k WindowKind) Answer() bool { return k >= WinReply && k < winKindEnd }

// Window is the content of a MsgWindow, except its data.
type Window struct {
	Kind WindowKind
	Op   uint8 // WinAcc and WinFetch: number of the operation (rma.Op)
	// WinLock: the lock is exclusive. WinGone: the window was revoked. WinPut and WinAcc: the origin
	// asks for a WinAck.
	Flag bool
	// WinPut, WinGet, WinAcc and WinFetch: the data begins with runs (rma.appendRuns), which say where
	// the bytes at the target are. Then Addr has no meaning.
	Runs bool
	// WinLock: the origin has another lock, so the request does not wait for ranks that wait.
	Passes bool
	// WinLock: the origin wants the lock only if it is free. Otherwise the target answers with WinBusy.
	Try bool
	// WinReply, WinAck and WinRefused: how many requests of the origin the target has done since the
	// window was created. WinSync, WinLock and WinUnlock do not count. WinPut, WinGet, WinAcc, WinFetch
	// and WinSwap: the region of a dynamic window (rma.Region.ID); 0 in other windows.
	Count uint64
	Addr  uint64 // offset in the target's memory of the window or in the region, in bytes
	Bytes uint64 // WinGet and WinFetch: number of bytes that the origin asks for
}

// Message returns the header of a MsgWindow that carries w and n bytes of data in a context. The
// fields of the header hold these values:
//
//	sig: kind | op << 8    tag: flag | runs << 1 | passes << 2 | try << 3    handle: count    key: bytes    addr: addr
//
// Hot path: no allocation, no lock, no system call.
func (w *Window) Message(context uint64, n int) Message {
	m := Message{
		Kind: MsgWindow, Sig: uint16(w.Kind) | uint16(w.Op)<<8, Context: context, Length: n,
		Handle: w.Count, Key: w.Bytes, Addr: w.Addr,
	}
	if w.Flag {
		m.Tag = tagFlag
	}
	if w.Runs {
		m.Tag |= tagRuns
	}
	if w.Passes {
		m.Tag |= tagPasses
	}
	if w.Try {
		m.Tag |= tagTry
	}
	return m
}

// The bits of the field tag.
const (
	tagFlag = 1 << iota
	tagRuns
	tagPasses
	tagTry

	tagsOfLock = tagPasses | tagTry // have a meaning in WinLock only
)

var errWindow = errors.New("window message of an unknown kind, or with an unknown flag")

// Parse sets w from the header m of a MsgWindow. It checks the kind and the flags, and that kinds
// without data have none. It does not check Op, Count, Addr, Bytes and the runs.
//
// Hot path: no allocation, no lock, no system call.
func (w *Window) Parse(m *Message) error {
	k := WindowKind(m.Sig)
	runs := m.Tag&tagRuns != 0
	if k == 0 || k >= winKindEnd || m.Tag&^(tagFlag|tagRuns|tagsOfLock) != 0 || runs && k > WinFetch || m.Tag&tagsOfLock != 0 && k != WinLock {
		return errWindow
	}
	*w = Window{
		Kind: k, Op: uint8(m.Sig >> 8), Flag: m.Tag&tagFlag != 0, Runs: runs, Passes: m.Tag&tagPasses != 0,
		Try: m.Tag&tagTry != 0, Count: m.Handle, Addr: m.Addr, Bytes: m.Key,
	}
	carries := k == WinPut || k == WinAcc || k == WinFetch || k == WinSwap || k == WinReply || runs
	if !carries && m.Length != 0 {
		return errMsgLength
	}
	return nil
}
