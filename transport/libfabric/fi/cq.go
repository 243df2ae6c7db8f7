//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"
	"unsafe"
)

// CQAttr has the attributes for opening a completion queue (struct fi_cq_attr).
type CQAttr struct {
	Size            int      // smallest capacity in completions, below 1<<31; 0: the provider's choice
	Flags           Flags    // FlagAffinity if SignalingVector is to be used
	Format          CQFormat // CQUnspec means CQTagged
	Wait            WaitObj  // how SRead waits; not WaitSet; with WaitNone, SRead, Signal and FD fail
	SignalingVector int      // the processor that gets the device's interrupts, with FlagAffinity
	// Threshold permits SReadThreshold (FI_CQ_COND_THRESHOLD). With sockets, Read may then find no
	// completions.
	Threshold bool
}

// CQ is a completion queue (fi_cq(3)): it reports which operations have ended.
//
// The domain's threading model says which calls may run concurrently with reads. Only Signal may
// always run concurrently with an SRead.
type CQ struct {
	object
	format CQFormat
	wait   WaitObj
	woken  atomic.Bool // only with WaitYield: Signal was called, and no SRead has returned for that yet
	// ready is the number of enabled endpoints among those that are bound to the queue; object.refs
	// counts all of those. The lock objects guards ready.
	ready int
}

// CQEntry is a completed operation. Each comment names the first format that has the field; with a
// smaller format the field is zero. The formats are, from the smallest: CQContext, CQMsg, CQData,
// CQTagged.
type CQEntry struct {
	Context *Context // CQContext: the operation; nil if it has no Context, for example a peer's write with data
	Flags   Flags    // CQMsg: flags that say what kind of operation has ended
	Len     uint64   // CQMsg: number of bytes received
	Buf     uintptr  // CQData: address of the message in a multi-receive buffer
	Data    uint64   // CQData: the peer's immediate data, if Flags has FlagRemoteCQData
	Tag     uint64   // CQTagged: tag of a tagged message that was received

	op uintptr // the operation's context as libfabric reports it
}

// CQEntry and struct weft_cq_entry must have the same size, because C code fills entries.
var _ = [1]struct{}{}[unsafe.Sizeof(CQEntry{})-unsafe.Sizeof(C.struct_weft_cq_entry{})]

// OpContext returns the operation's context as libfabric reported it, an address. It is for
// operations that were not posted with a Context, for example by other C code.
func (e *CQEntry) OpContext() uintptr { return e.op }

// Within returns the part of buf that holds the entry's message. buf is the buffer of a
// multi-receive. It returns nil if the message is not in buf.
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
	// Src is the sender, if the error is about the sender's address, else AddrNotAvail. It is set
	// only with headers of libfabric 1.20 or newer.
	Src Addr
	// OLen is the number of bytes of the message that did not fit in the buffer. It is 0 also if
	// the provider does not report that number.
	OLen      uint64
	Err       Errno  // why the operation failed, for example ErrTruncated or ErrCanceled
	ProvErrno int    // the provider's own error number
	Text      string // the provider's text for ProvErrno (fi_cq_strerror)
	ErrData   []byte // more data about the error, in the provider's format; at most 1024 bytes
}

// Error returns libfabric's text, and in parentheses what the provider says besides.
func (e *CQError) Error() string {
	return "operation failed: " + failureText(e.Err, e.ProvErrno, e.Text, e.ErrData)
}

// shownErrData is the number of bytes of err_data that the text of an error has at most.
const shownErrData = 64

// failureText returns the text of a failed operation: that of err, and what the provider says besides:
// its own text if that is different, its error number, and err_data, as text if it is printable.
func failureText(err Errno, prov int, text string, data []byte) string {
	s := err.Error()
	var more []string
	if prov != 0 {
		if text != "" && text != s {
			more = append(more, text)
		}
		more = append(more, fmt.Sprintf("prov_errno %d", prov))
	}
	if data = data[:min(len(data), shownErrData)]; len(data) > 0 {
		plain := strings.TrimRight(string(data), "\x00")
		if utf8.ValidString(plain) && strings.IndexFunc(plain, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
			more = append(more, fmt.Sprintf("err_data %q", plain))
		} else {
			more = append(more, fmt.Sprintf("err_data %x", data))
		}
	}
	if len(more) == 0 {
		return s
	}
	return fmt.Sprintf("%s (%s)", s, strings.Join(more, ", "))
}

// Unwrap returns the Errno.
func (e *CQError) Unwrap() error { return e.Err }

// OpenCQ opens a completion queue (fi_cq_open).
func (d *Domain) OpenCQ(attr CQAttr) (*CQ, error) {
	const function = "fi_cq_open"
	if !d.isOpen() {
		return nil, closedError(function)
	}
	if attr.Size < 0 || attr.Size > math.MaxInt32 || // with a larger size, providers miscalculate the memory that they need
		attr.Wait == WaitSet { // sockets would dereference the set, which is NULL
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
		q.wait = WaitYield // shm chooses this for WaitUnspec
	}
	q.open(&fid.fid, &d.object)
	return q, nil
}

func (q *CQ) c() *C.struct_fid_cq { return (*C.struct_fid_cq)(q.pointer()) }

func (q *CQ) waitable() *object { return &q.object }

// Format returns the format of the queue's entries.
func (q *CQ) Format() CQFormat { return q.format }

// Read fills entries with completed operations, at most 64, and returns their number (fi_cq_read).
// With manual progress Read drives the progress of the endpoints that are bound to the queue. It
// never blocks.
//
// Read returns ErrAgain if there is no completion, and ErrAvail if an operation has failed; then
// ReadErr returns that operation.
func (q *CQ) Read(entries []CQEntry) (int, error) { return q.ReadFrom(entries, nil) }

// ReadFrom is Read that also stores the sender of each received message in from (fi_cq_readfrom),
// for domains with CapSource. from is nil or at least as long as entries.
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

// completed sets Context in the first n entries and ends their operations. If n is negative, it is
// a negative errno, which completed returns as the error.
func (q *CQ) completed(entries []CQEntry, n C.ssize_t) (int, error) {
	if n < 0 {
		return 0, errno(n)
	}
	for i := range entries[:n] {
		e := &entries[i]
		e.Context = finishContext(e.op, e.Flags, false)
	}
	return int(n), nil
}

// ReadErr removes a failed operation from the queue and returns it (fi_cq_readerr). It returns
// ErrAgain if there is none, for example because another goroutine has read it.
func (q *CQ) ReadErr() (*CQError, error) {
	if !q.isOpen() {
		return nil, ErrClosed
	}
	var c C.struct_weft_cq_error
	// While objects is locked, no endpoint is bound, enabled or closed, so the result of hasText
	// stays valid.
	objects.Lock()
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
	entry.Context = finishContext(entry.op, ends, true)
	return &CQError{
		CQEntry:   entry,
		Src:       Addr(c.src_addr),
		OLen:      uint64(c.olen),
		Err:       Errno(max(c.err, -c.err)), // shm returns the errno of truncation as a negative number
		ProvErrno: int(c.prov_errno),
		Text:      C.GoString(&c.text[0]),
		ErrData:   C.GoBytes(unsafe.Pointer(&c.err_data[0]), C.int(c.err_data_size)),
	}, nil
}

// StrError returns the provider's text for one of its own error numbers (fi_cq_strerror). If no
// endpoint is bound to the queue, or if a bound endpoint is not enabled, it returns libfabric's
// text for the Errno with the same number.
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

// hasText reports whether fi_cq_strerror may be called: there are bound endpoints, and all of them
// are enabled. A layered provider such as rxm gets the text from the first bound endpoint, without
// a check that there is one and that it is enabled. The caller holds the lock objects.
func (q *CQ) hasText() bool { return q.refs > 0 && q.refs == q.ready }
