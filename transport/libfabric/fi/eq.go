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

// EQ is an event queue: it reports requests, starts and ends of connections, and the completion of
// asynchronous control operations (fi_eq(3)).
type EQ struct {
	object
	wait   WaitObj
	yields bool // SRead calls Read again and again, because the provider's fi_eq_sread ignores the timeout
}

// EQAttr has the attributes for opening an event queue (struct fi_eq_attr).
type EQAttr struct {
	Size            int     // smallest capacity in events; 0: the provider's choice
	Flags           Flags   // FlagWrite if Write is to be called, FlagAffinity if SignalingVector is to be used
	Wait            WaitObj // how SRead waits; not WaitSet; with WaitNone, SRead and FD fail
	SignalingVector int     // the processor that gets the device's interrupts, with FlagAffinity
}

// EQEvent is an event. Besides Type and FID, EventConnReq has Info and Private, and EventConnected
// has Private. Events about control operations have Context and Data. The reader owns everything in
// it.
type EQEvent struct {
	Type    EventType
	FID     FID     // the object that the event is about; for EventConnReq the passive endpoint
	Context uintptr // the context that the operation was started with
	Data    uint64  // for example the number of inserted addresses
	// Info is for accepting or rejecting the connection request. The Info from a Read with FlagPeek
	// cannot be used for that.
	Info    *Info
	Private []byte // private data of the peer, possibly followed by padding
}

// EQError reports a failed control operation, connection or object (struct fi_eq_err_entry).
type EQError struct {
	FID       FID
	Context   uintptr
	Data      uint64
	Err       Errno
	ProvErrno int    // the provider's own error number
	Text      string // the provider's text for ProvErrno
	ErrData   []byte // more data about the error; if the peer rejected a connection, its private data
}

// Error returns the errno and the provider's text.
func (e *EQError) Error() string {
	return fmt.Sprintf("libfabric event: %v (provider: %d, %s)", e.Err, e.ProvErrno, e.Text)
}

// Unwrap returns the Errno.
func (e *EQError) Unwrap() error { return e.Err }

// OpenEQ opens an event queue (fi_eq_open).
func (f *Fabric) OpenEQ(attr EQAttr) (*EQ, error) {
	const function = "fi_eq_open"
	if !f.isOpen() {
		return nil, closedError(function)
	}
	if attr.Size < 0 || attr.Wait == WaitSet { // sockets would dereference the set, which is NULL
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

// Read returns the next event (fi_eq_read). It never blocks. With FlagPeek the event stays in the
// queue.
//
// Read returns ErrAgain if there is no event, and ErrAvail if there is an error; then ReadErr
// returns the error.
func (q *EQ) Read(flags Flags) (*EQEvent, error) {
	if !q.isOpen() {
		return nil, ErrClosed
	}
	return q.read(flags, func(e *C.struct_weft_eq_event) C.ssize_t {
		return C.weft_eq_read(q.c(), e, C.uint64_t(flags))
	})
}

// SRead is Read, but waits up to timeout for an event (fi_eq_sread); a negative timeout is
// infinite. After the timeout SRead returns ErrAgain. It blocks an operating system thread while it
// waits, except with WaitYield and, with shm, WaitUnspec. If the queue was opened with WaitNone,
// SRead returns ErrInvalid.
func (q *EQ) SRead(timeout time.Duration, flags Flags) (*EQEvent, error) {
	if !q.isOpen() {
		return nil, ErrClosed
	}
	if q.wait == WaitNone { // sockets would wait even then
		return nil, ErrInvalid
	}
	if q.yields { // fi_eq_sread would ignore the timeout
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

// poll is SRead for providers whose fi_eq_sread ignores the timeout: it calls Read until that
// returns an event or an error other than ErrAgain, or until the timeout.
func (q *EQ) poll(timeout time.Duration, flags Flags) (*EQEvent, error) {
	const maxYields = 64 // after so many reads, poll sleeps between two reads
	start := time.Now()
	for i := 0; ; i++ {
		ev, err := q.Read(flags)
		if err != ErrAgain || timeout >= 0 && time.Since(start) >= timeout { //nolint:errorlint // Read returns bare errnos
			return ev, err
		}
		if i < maxYields {
			runtime.Gosched()
		} else {
			time.Sleep(50 * time.Microsecond)
		}
	}
}

// read calls call, which reads an event into C memory, and converts the event. flags are the flags
// with which call reads.
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
		default: // with FlagPeek the queue still owns the info and the request
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

// ReadErr removes an error from the queue and returns it (fi_eq_readerr). It returns ErrAgain if
// there is none.
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

// Write adds an event of the application to the queue (fi_eq_write): its type, FID, Context, Data
// and up to 2000 bytes of Private. The queue must have been opened with FlagWrite. A provider may
// act on events of libfabric's types, so applications use EventNotify or types that libfabric does
// not have.
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

// StrError returns the provider's text for one of its own error numbers and the data of the error
// (fi_eq_strerror).
func (q *EQ) StrError(provErrno int, errData []byte) string {
	if !q.isOpen() {
		return ""
	}
	var buf [256]C.char
	C.fi_eq_strerror(q.c(), C.int(provErrno), unsafe.Pointer(unsafe.SliceData(errData)), &buf[0], C.size_t(len(buf)-1))
	return C.GoString(&buf[0])
}

// FD returns the file descriptor of a queue opened with WaitFD (fi_control with FI_GETWAIT). It is
// readable when there may be an event. Call [Fabric.TryWait] before sleeping on it. The queue owns
// the descriptor.
func (q *EQ) FD() (int, error) {
	const function = "fi_control"
	if !q.isOpen() {
		return -1, closedError(function)
	}
	if q.wait != WaitFD { // some providers dereference a null pointer or return another wait object
		return -1, &Error{function, ErrNotSupp}
	}
	fd := C.int(-1)
	err := check(function, C.fi_control(q.fid, C.FI_GETWAIT, unsafe.Pointer(&fd)))
	return int(fd), err
}
