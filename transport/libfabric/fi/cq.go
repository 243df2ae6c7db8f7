//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"fmt"
	"math"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// CQAttr says what a completion queue is to be (struct fi_cq_attr).
type CQAttr struct {
	Size            int      // completions that it must hold, below 1<<31; 0: the provider's choice
	Flags           Flags    // FlagAffinity: SignalingVector counts
	Format          CQFormat // CQUnspec is CQTagged: nobody can know the entries of another
	Wait            WaitObj  // any but WaitSet; WaitNone: SRead, Signal and FD fail
	SignalingVector int      // the processor to interrupt
	Threshold       bool     // SReadThreshold works (FI_CQ_COND_THRESHOLD); then Read may not: sockets
}

// CQ is a completion queue (fi_cq(3)): it tells which operations have ended.
//
// Reading is allowed beside other calls as far as the domain's threading model
// goes. Only Signal may always run beside an SRead.
type CQ struct {
	object
	format CQFormat
	wait   WaitObj
	woken  atomic.Bool // Signal was called, with WaitYield
	ready  int         // of its refs: those of endpoints that are enabled; guarded by objects
}

// CQEntry is a completed operation. What the queue's format does not have is
// zero.
type CQEntry struct {
	Context *Context // the operation; nil: none of this package's contexts, as for FlagRemoteWrite
	Flags   Flags    // what it was (CQMsg and more)
	Len     uint64   // bytes received (CQMsg and more)
	Buf     uintptr  // where in a buffer for several messages it lies (CQData and more)
	Data    uint64   // the peer's immediate data under FlagRemoteCQData (CQData and more)
	Tag     uint64   // of a tagged receive (CQTagged)

	op uintptr
}

// C fills entries as it knows them.
var _ = [1]struct{}{}[unsafe.Sizeof(CQEntry{})-unsafe.Sizeof(C.struct_weft_cq_entry{})]

// OpContext is the operation's context as libfabric returned it, for operations
// that were posted with another context than a Context.
func (e *CQEntry) OpContext() uintptr { return e.op }

// Within is the part of buf that the entry's message lies in, for a buf that was
// posted for several messages. It is nil if the entry is of another buffer.
func (e *CQEntry) Within(buf []byte) []byte {
	offset := e.Buf - uintptr(unsafe.Pointer(unsafe.SliceData(buf)))
	if offset > uintptr(len(buf)) || e.Len > uint64(len(buf))-uint64(offset) {
		return nil
	}
	return buf[offset : uint64(offset)+e.Len]
}

// CQError is an operation that failed (struct fi_cq_err_entry).
type CQError struct {
	CQEntry
	Src       Addr   // the sender, if an address is the reason; else AddrNotAvail (2.x)
	OLen      uint64 // bytes of the message that did not fit, where the provider says it
	Err       Errno  // ErrTruncated, ErrCanceled, …
	ProvErrno int    // the provider's own number
	Text      string // and what it says about it (fi_cq_strerror)
	ErrData   []byte // what else it knows
}

// Error says what happened, with the provider's text where it says more.
func (e *CQError) Error() string {
	if text := e.Err.Error(); e.Text == "" || e.Text == text || e.ProvErrno == 0 {
		return "operation failed: " + text
	}
	return fmt.Sprintf("operation failed: %s (%s)", e.Err.Error(), e.Text)
}

// Unwrap gives the Errno.
func (e *CQError) Unwrap() error { return e.Err }

// OpenCQ opens a completion queue (fi_cq_open).
func (d *Domain) OpenCQ(attr CQAttr) (*CQ, error) {
	const function = "fi_cq_open"
	if !d.isOpen() {
		return nil, closedError(function)
	}
	if attr.Size < 0 || attr.Size > math.MaxInt32 || // beyond, providers reckon wrongly how much memory they need
		attr.Wait == WaitSet { // sockets would follow the null pointer to the set
		return nil, &Error{function, ErrInvalid}
	}
	if attr.Format == CQUnspec {
		attr.Format = CQTagged
	}
	c := C.struct_fi_cq_attr{
		size:             C.size_t(attr.Size),
		flags:            C.uint64_t(attr.Flags),
		format:           C.enum_fi_cq_format(attr.Format),
		wait_obj:         C.enum_fi_wait_obj(attr.Wait),
		signaling_vector: C.int(attr.SignalingVector),
		wait_cond:        C.FI_CQ_COND_NONE,
	}
	if attr.Threshold {
		c.wait_cond = C.FI_CQ_COND_THRESHOLD
	}
	var fid *C.struct_fid_cq
	if err := check(function, C.fi_cq_open(d.c(), &c, &fid, nil)); err != nil {
		return nil, err
	}
	q := &CQ{format: attr.Format, wait: attr.Wait}
	if c.wait_obj == C.FI_WAIT_YIELD {
		q.wait = WaitYield // all that shm has for WaitUnspec
	}
	q.open(&fid.fid, &d.object)
	return q, nil
}

func (q *CQ) c() *C.struct_fid_cq { return (*C.struct_fid_cq)(q.pointer()) }

func (q *CQ) waitable() *object { return &q.object }

// Format is how much the queue's entries tell.
func (q *CQ) Format() CQFormat { return q.format }

// Read fills entries with operations that have completed, and returns how many
// (fi_cq_read): at most 64 at a time. It moves the endpoints' data on where
// progress is manual, and never blocks.
//
// ErrAgain says that there are none, ErrAvail that one has failed, which ReadErr
// tells.
func (q *CQ) Read(entries []CQEntry) (int, error) { return q.ReadFrom(entries, nil) }

// ReadFrom is Read that also says who sent what was received (fi_cq_readfrom),
// for domains with CapSource. From has a place for each entry, or is nil.
func (q *CQ) ReadFrom(entries []CQEntry, from []Addr) (int, error) {
	if !q.isOpen() {
		return 0, ErrClosed
	}
	if len(entries) == 0 || from != nil && len(from) < len(entries) {
		return 0, ErrInvalid
	}
	n := C.weft_cq_read(C.uintptr_t(uintptr(unsafe.Pointer(q.fid))), C.enum_fi_cq_format(q.format),
		escape(unsafe.Pointer(unsafe.SliceData(entries))), C.size_t(len(entries)),
		escape(unsafe.Pointer(unsafe.SliceData(from))))
	runtime.KeepAlive(from)
	return q.completed(entries, n)
}

// completed ends the n operations that entries tell of.
func (q *CQ) completed(entries []CQEntry, n C.ssize_t) (int, error) {
	if n < 0 {
		return 0, errno(n)
	}
	for i := range entries[:n] {
		e := &entries[i]
		e.Context = reported(e.op, e.Flags, false)
	}
	return int(n), nil
}

// ReadErr returns an operation that has failed (fi_cq_readerr). ErrAgain says
// that there is none, as when another goroutine was faster.
func (q *CQ) ReadErr() (*CQError, error) {
	if !q.isOpen() {
		return nil, ErrClosed
	}
	var c C.struct_weft_cq_error
	objects.Lock() // no endpoint is closed meanwhile
	n := C.weft_cq_readerr(C.uintptr_t(uintptr(unsafe.Pointer(q.fid))), &c, C.bool(q.hasText()))
	objects.Unlock()
	switch {
	case n == 0:
		return nil, errno(-C.FI_EAGAIN)
	case n < 0:
		return nil, errno(n)
	}
	entry := CQEntry{
		Flags: Flags(c.flags),
		Len:   uint64(c.len),
		Buf:   uintptr(c.buf),
		Data:  uint64(c.data),
		Tag:   uint64(c.tag),
		op:    uintptr(c.op_context),
	}
	ends := entry.Flags
	if e := c.err; e == C.FI_ECANCELED || e == -C.FI_ECANCELED {
		ends |= FlagMultiRecv // a cancelled receive takes no more messages
	}
	entry.Context = reported(entry.op, ends, true)
	return &CQError{
		CQEntry:   entry,
		Src:       Addr(c.src_addr),
		OLen:      uint64(c.olen),
		Err:       Errno(max(c.err, -c.err)), // shm has the number of truncation negative
		ProvErrno: int(c.prov_errno),
		Text:      C.GoString(&c.text[0]),
		ErrData:   C.GoBytes(unsafe.Pointer(&c.err_data[0]), C.int(c.err_data_size)),
	}, nil
}

// StrError is the provider's text for one of its own error numbers
// (fi_cq_strerror), or libfabric's where the provider has none yet.
func (q *CQ) StrError(provErrno int) string {
	if !q.isOpen() {
		return ""
	}
	objects.Lock()
	defer objects.Unlock()
	if q.hasText() {
		if text := C.fi_cq_strerror(q.c(), C.int(provErrno), nil, nil, 0); text != nil {
			return C.GoString(text)
		}
	}
	return Errno(max(provErrno, -provErrno)).Error()
}

// hasText says whether the provider can be asked for texts: layered ones look
// for them through the first endpoint that is bound, without looking whether
// there is one that is enabled. It is called with objects locked.
func (q *CQ) hasText() bool { return q.refs > 0 && q.refs == q.ready }
