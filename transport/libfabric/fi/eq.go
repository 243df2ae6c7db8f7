//go:build libfabric

package fi

// #include "shim_eq.h"
import "C"

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"
)

// EQ is an event queue: it tells of connections, and of control operations
// that have ended (fi_eq(3)).
type EQ struct {
	object
	wait   WaitObj
	yields bool // waiting is reading again and again
}

// EQAttr describes a queue to be opened (struct fi_eq_attr).
type EQAttr struct {
	Size            int     // entries, at least; zero: the provider's choice
	Flags           Flags   // FlagWrite to write events, FlagAffinity
	Wait            WaitObj // any but WaitSet
	SignalingVector int     // the processor to interrupt, with FlagAffinity
}

// EQEvent is something that has happened. Which fields it has depends on the
// type: a connection request has Info and Private, a connection Private, the
// end of a control operation Context and Data. All of it is the reader's.
type EQEvent struct {
	Type    EventType
	FID     FID     // the object it is about: a passive endpoint for requests
	Context uintptr // what the operation was started with
	Data    uint64  // what it says, as the number of addresses inserted
	Info    *Info   // to accept a connection request with, or to reject it; after FlagPeek only to look at
	Private []byte  // what the peer sent along, perhaps with padding behind
}

// EQError is a control operation, a connection or an object that has failed
// (struct fi_eq_err_entry).
type EQError struct {
	FID       FID
	Context   uintptr
	Data      uint64
	Err       Errno
	ProvErrno int    // the provider's own number
	Text      string // the provider's text for it
	ErrData   []byte // what belongs to it: of a rejected connection, what the peer sent
}

// Error says what failed and why.
func (e *EQError) Error() string {
	return fmt.Sprintf("libfabric event: %v (provider: %d, %s)", e.Err, e.ProvErrno, e.Text)
}

// Unwrap gives the Errno.
func (e *EQError) Unwrap() error { return e.Err }

// OpenEQ opens an event queue (fi_eq_open).
func (f *Fabric) OpenEQ(attr EQAttr) (*EQ, error) {
	const function = "fi_eq_open"
	if !f.isOpen() {
		return nil, closedError(function)
	}
	if attr.Size < 0 || attr.Wait == WaitSet { // sockets would follow the null pointer to the set
		return nil, &Error{function, ErrInvalid}
	}
	a := C.struct_fi_eq_attr{
		size:             C.size_t(attr.Size),
		flags:            C.uint64_t(attr.Flags),
		wait_obj:         C.enum_fi_wait_obj(attr.Wait),
		signaling_vector: C.int(attr.SignalingVector),
	}
	var c *C.struct_fid_eq
	if err := check(function, C.fi_eq_open(f.c(), &a, &c, nil)); err != nil {
		return nil, err
	}
	q := &EQ{
		wait:   attr.Wait,
		yields: attr.Wait == WaitYield || attr.Wait == WaitUnspec && f.provider == "shm",
	}
	q.open(&c.fid, &f.object)
	return q, nil
}

func (q *EQ) c() *C.struct_fid_eq { return (*C.struct_fid_eq)(q.pointer()) }

func (q *EQ) waitable() *object { return &q.object }

// Read returns the next event (fi_eq_read), and never blocks. With FlagPeek the
// event stays in the queue.
//
// ErrAgain says that there is none, ErrAvail that something has failed, which
// ReadErr tells.
func (q *EQ) Read(flags Flags) (*EQEvent, error) {
	if !q.isOpen() {
		return nil, ErrClosed
	}
	return q.read(flags, func(e *C.struct_weft_eq_event) C.ssize_t {
		return C.weft_eq_read(q.c(), e, C.uint64_t(flags))
	})
}

// SRead is Read that waits for an event (fi_eq_sread), for as long as timeout,
// or without end if it is negative; then ErrAgain. It blocks a thread of the
// system. A queue opened with WaitNone cannot do that: ErrInvalid.
func (q *EQ) SRead(timeout time.Duration, flags Flags) (*EQEvent, error) {
	if !q.isOpen() {
		return nil, ErrClosed
	}
	if q.wait == WaitNone { // sockets would wait all the same
		return nil, ErrInvalid
	}
	if q.yields { // fi_eq_sread knows no timeout then: it returns when there is an event
		return q.poll(timeout, flags)
	}
	return q.read(flags, func(e *C.struct_weft_eq_event) C.ssize_t {
		var n C.ssize_t
		_ = waitFor(timeout, func(ms C.int) Errno {
			n = C.weft_eq_sread(q.c(), e, ms, C.uint64_t(flags))
			return Errno(-min(n, 0))
		})
		return n
	})
}

// poll reads until there is something or the time is over.
func (q *EQ) poll(timeout time.Duration, flags Flags) (*EQEvent, error) {
	const impatient = 64 // times, before it sleeps between two
	start := time.Now()
	for i := 0; ; i++ {
		ev, err := q.Read(flags)
		if err != ErrAgain || timeout >= 0 && time.Since(start) >= timeout { //nolint:errorlint // Read returns bare errnos
			return ev, err
		}
		if i < impatient {
			runtime.Gosched()
		} else {
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// read calls a reading function and makes an event of what it has read.
func (q *EQ) read(flags Flags, call func(*C.struct_weft_eq_event) C.ssize_t) (*EQEvent, error) {
	e := C.weft_eq_event_new()
	if e == nil {
		return nil, ErrNoMemory
	}
	defer C.free(unsafe.Pointer(e))
	n := call(e)
	if n < 0 {
		return nil, Errno(-n)
	}
	ev := &EQEvent{Type: EventType(e.event)}
	rest := unsafe.Pointer(&e.buf[0])
	header := C.size_t(C.WEFT_EQ_ENTRY)
	switch ev.Type {
	case EventConnReq, EventConnected, EventShutdown:
		header = C.WEFT_EQ_CM_ENTRY
		cm := (*C.struct_fi_eq_cm_entry)(rest)
		ev.FID = FID{unsafe.Pointer(cm.fid)}
		switch {
		case cm.info == nil || ev.Type != EventConnReq:
		case flags&FlagPeek == 0:
			r := &request{handle: unsafe.Pointer(cm.info.handle)}
			ev.Info = takeInfo(cm.info)
			ev.Info.request = r
		default: // the queue still owns it, and the request
			if dup := C.fi_dupinfo(cm.info); dup != nil {
				ev.Info = takeInfo(dup)
			}
		}
	default:
		entry := (*C.struct_fi_eq_entry)(rest)
		ev.FID = FID{unsafe.Pointer(entry.fid)}
		ev.Context = uintptr(entry.context)
		ev.Data = uint64(entry.data)
	}
	if C.size_t(n) > header {
		ev.Private = goBytes(unsafe.Add(rest, header), C.size_t(n)-header)
	}
	return ev, nil
}

// ReadErr returns what has failed (fi_eq_readerr). ErrAgain says that nothing
// has.
func (q *EQ) ReadErr(flags Flags) (*EQError, error) {
	if !q.isOpen() {
		return nil, ErrClosed
	}
	e := C.weft_eq_event_new()
	if e == nil {
		return nil, ErrNoMemory
	}
	defer C.free(unsafe.Pointer(e))
	switch n := C.weft_eq_readerr(q.c(), e, C.uint64_t(flags)); {
	case n == 0:
		return nil, ErrAgain
	case n < 0:
		return nil, Errno(-n)
	}
	ev := &EQError{
		FID:       FID{unsafe.Pointer(e.err.fid)},
		Context:   uintptr(e.err.context),
		Data:      uint64(e.err.data),
		Err:       Errno(e.err.err),
		ProvErrno: int(e.err.prov_errno),
		ErrData:   goBytes(e.err.err_data, e.err.err_data_size),
	}
	ev.Text = q.StrError(ev.ProvErrno, ev.ErrData)
	return ev, nil
}

// Write puts an event of the application's into the queue (fi_eq_write), which
// was opened with FlagWrite: its type, FID, Context, Data and up to 2000 bytes
// of Private. A provider may hand it on as it is, so applications use
// EventNotify or types that libfabric does not have.
func (q *EQ) Write(ev EQEvent, flags Flags) error {
	const function = "fi_eq_write"
	if !q.isOpen() {
		return closedError(function)
	}
	buf := make([]byte, C.WEFT_EQ_ENTRY, C.WEFT_EQ_ENTRY+len(ev.Private))
	switch ev.Type {
	case EventConnReq, EventConnected, EventShutdown:
		buf = buf[:C.WEFT_EQ_CM_ENTRY]
		(*C.struct_fi_eq_cm_entry)(unsafe.Pointer(&buf[0])).fid = C.fid_t(ev.FID.p)
	default:
		*(*C.struct_fi_eq_entry)(unsafe.Pointer(&buf[0])) = C.struct_fi_eq_entry{
			fid:  C.fid_t(ev.FID.p),
			data: C.uint64_t(ev.Data),
		}
		*(*uintptr)(unsafe.Add(unsafe.Pointer(&buf[0]), C.WEFT_EQ_CONTEXT)) = ev.Context
	}
	buf = append(buf, ev.Private...)
	if len(buf) > C.WEFT_EQ_BUFFER {
		return &Error{function, ErrMsgSize}
	}
	n := C.fi_eq_write(q.c(), C.uint32_t(ev.Type), unsafe.Pointer(&buf[0]), C.size_t(len(buf)), C.uint64_t(flags))
	return check(function, C.int(min(n, 0)))
}

// StrError is the provider's text for one of its own error numbers, with what
// came along with it (fi_eq_strerror).
func (q *EQ) StrError(provErrno int, errData []byte) string {
	if !q.isOpen() {
		return ""
	}
	var buf [256]C.char
	C.fi_eq_strerror(q.c(), C.int(provErrno), unsafe.Pointer(unsafe.SliceData(errData)), &buf[0], C.size_t(len(buf)-1))
	return C.GoString(&buf[0])
}

// FD is a file descriptor that is readable when there may be an event, for a
// queue opened with WaitFD (fi_control with FI_GETWAIT). Fabric.TryWait says
// whether to sleep on it. It belongs to the queue.
func (q *EQ) FD() (int, error) {
	const function = "fi_control"
	if !q.isOpen() {
		return -1, closedError(function)
	}
	if q.wait != WaitFD { // some providers follow a null pointer, or give another object
		return -1, &Error{function, ErrNotSupp}
	}
	fd := C.int(-1)
	err := check(function, C.fi_control(q.fid, C.FI_GETWAIT, unsafe.Pointer(&fd)))
	return int(fd), err
}
