//go:build libfabric

package fi

// #include "raw.h"
import "C"

import (
	"fmt"
	"syscall"
	"unsafe"
)

// Raw is a low-overhead interface to an endpoint and its completion queue. The format of the queue
// must be CQData. The caller provides the memory that libfabric may access after a call has
// returned, outside of Go's heap or pinned: buffers, and a struct fi_context2 (64 bytes) for each
// operation in flight. The address of that struct is the operation's context. Addresses are
// integers, no method pins or allocates anything, and each data transfer method is one call of C.
// The threading model of the domain applies.
//
// Methods with a result of type Errno return 0 or the Errno of the call.
type Raw struct {
	ep, cq, fabric, domain C.uintptr_t
	bindMR                 C.uintptr_t // the endpoint that Register binds regions to; 0: it binds them to none

	memory  []byte // holds entries, posts, posted and failure
	entries []RawEntry
	posts   []RawRecv // the first nposts are queued for the next Poll
	posted  *C.struct_weft_raw_posted
	failure *C.struct_weft_raw_failure
	nposts  int
}

// RawEntry is a completion: struct fi_cq_data_entry.
type RawEntry struct {
	Context uintptr
	Flags   Flags
	Len     uint64
	Buf     uintptr
	Data    uint64
}

// RawRecv is a receive to be posted: Len bytes at the address Buf.
type RawRecv struct {
	Buf, Len, Context uint64
}

// RawError is a failed operation: the main fields of struct fi_cq_err_entry, and the provider's text.
type RawError struct {
	Context   uintptr
	Flags     Flags
	Err       Errno
	ProvErrno int    // the provider's own error number
	Text      string // the provider's text for ProvErrno (fi_cq_strerror)
	ErrData   []byte // more data about the error, in the provider's format; at most 256 bytes
}

// Error returns libfabric's text, and in parentheses what the provider says besides.
func (e *RawError) Error() string { return failureText(e.Err, e.ProvErrno, e.Text, e.ErrData) }

// Unwrap returns the Errno.
func (e *RawError) Unwrap() error { return e.Err }

// RawRegion is registered memory. The zero RawRegion is none.
type RawRegion struct {
	mr   C.uintptr_t
	Desc Desc
	Key  uint64
}

const (
	_ = -uint(unsafe.Sizeof(RawEntry{}) ^ C.sizeof_struct_fi_cq_data_entry)
	_ = -uint(unsafe.Sizeof(RawRecv{}) ^ C.sizeof_struct_weft_raw_post)
)

// NewRaw returns a Raw for open objects, which must stay open until Close. A Poll reads up to batch
// completions and posts up to recvs receives. With bindMR, Register binds each region to the
// endpoint and enables the region (FI_MR_ENDPOINT); then the endpoint must be enabled before
// Register is called.
func NewRaw(f *Fabric, d *Domain, ep *Endpoint, cq *CQ, batch, recvs int, bindMR bool) (*Raw, error) {
	if !f.isOpen() || !d.isOpen() || !ep.isOpen() || !cq.isOpen() {
		return nil, closedError("fi_cq_read")
	}
	r := &Raw{
		fabric: C.uintptr_t(uintptr(f.pointer())),
		domain: C.uintptr_t(uintptr(d.pointer())),
		ep:     C.uintptr_t(uintptr(ep.pointer())),
		cq:     C.uintptr_t(uintptr(cq.pointer())),
	}
	if bindMR {
		r.bindMR = r.ep
	}
	sizes := [...]uintptr{
		uintptr(batch) * unsafe.Sizeof(RawEntry{}),
		uintptr(recvs) * unsafe.Sizeof(RawRecv{}),
		unsafe.Sizeof(*r.posted), unsafe.Sizeof(*r.failure),
	}
	var at [len(sizes)]uintptr
	total := uintptr(0)
	for i, n := range sizes {
		at[i] = total
		total += (n + 63) &^ 63
	}
	m, err := OffHeap(int(total))
	if err != nil {
		return nil, err
	}
	r.memory = m
	base := unsafe.Pointer(unsafe.SliceData(m))
	r.entries = unsafe.Slice((*RawEntry)(unsafe.Add(base, at[0])), batch)
	r.posts = unsafe.Slice((*RawRecv)(unsafe.Add(base, at[1])), recvs)
	r.posted = (*C.struct_weft_raw_posted)(unsafe.Add(base, at[2]))
	r.failure = (*C.struct_weft_raw_failure)(unsafe.Add(base, at[3]))
	return r, nil
}

// Close frees the memory of r itself. The libfabric objects that r uses stay open.
func (r *Raw) Close() {
	if r != nil && r.memory != nil {
		_ = syscall.Munmap(r.memory) // cannot fail: it is a whole mapping
		*r = Raw{}
	}
}

// OffHeap returns n zero bytes outside of Go's heap, at the start of a page. syscall.Munmap frees
// them.
func OffHeap(n int) ([]byte, error) {
	m, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", n, err)
	}
	return m, nil
}

// AddressOf returns the address of b. If b is in Go's heap, the address is valid only while b is
// pinned.
func AddressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// Inject sends n bytes (fi_inject). When Inject returns, the caller may reuse the buffer.
func (r *Raw) Inject(buf uintptr, n int, dest Addr) Errno {
	return Errno(-C.weft_raw_inject(r.ep, C.uintptr_t(buf), C.size_t(n), C.uint64_t(dest)))
}

// Send calls fi_send.
func (r *Raw) Send(buf uintptr, n int, desc Desc, dest Addr, context uintptr) Errno {
	return Errno(-C.weft_raw_send(r.ep, C.uintptr_t(buf), C.size_t(n), desc.c(), C.uint64_t(dest), C.uintptr_t(context)))
}

// Send2 sends two buffers, head and then body, as one message (fi_sendv).
func (r *Raw) Send2(head uintptr, headLen int, headDesc Desc, body uintptr, bodyLen int, bodyDesc Desc, dest Addr, context uintptr) Errno {
	return Errno(-C.weft_raw_send2(r.ep, C.uintptr_t(head), C.size_t(headLen), headDesc.c(),
		C.uintptr_t(body), C.size_t(bodyLen), bodyDesc.c(), C.uint64_t(dest), C.uintptr_t(context)))
}

// Read calls fi_read.
func (r *Raw) Read(buf uintptr, n int, desc Desc, src Addr, addr, key uint64, context uintptr) Errno {
	return Errno(-C.weft_raw_read(r.ep, C.uintptr_t(buf), C.size_t(n), desc.c(),
		C.uint64_t(src), C.uint64_t(addr), C.uint64_t(key), C.uintptr_t(context)))
}

// Write calls fi_writemsg.
func (r *Raw) Write(buf uintptr, n int, desc Desc, dest Addr, addr, key uint64, context uintptr, flags Flags) Errno {
	return Errno(-C.weft_raw_write(r.ep, C.uintptr_t(buf), C.size_t(n), desc.c(),
		C.uint64_t(dest), C.uint64_t(addr), C.uint64_t(key), C.uintptr_t(context), C.uint64_t(flags)))
}

// RawAtomic has the arguments of an atomic operation. The local buffers at the addresses Data,
// Compare and Fetch have Count elements each, and Desc is the descriptor of all of them.
type RawAtomic struct {
	Op                   AtomicOp
	Type                 Datatype
	Data, Compare, Fetch uintptr
	Count                int
	Desc                 Desc
	Dest                 Addr
	Addr, Key            uint64
	Context              uintptr
}

// Atomic calls fi_atomicmsg.
func (r *Raw) Atomic(a *RawAtomic, flags Flags) Errno {
	return Errno(-C.weft_raw_atomic(r.ep, C.uintptr_t(a.Data), C.size_t(a.Count), a.Desc.c(), C.uint64_t(a.Dest),
		C.uint64_t(a.Addr), C.uint64_t(a.Key), C.int(a.Type), C.int(a.Op), C.uintptr_t(a.Context), C.uint64_t(flags)))
}

// FetchAtomic calls fi_fetch_atomic.
func (r *Raw) FetchAtomic(a *RawAtomic) Errno {
	return Errno(-C.weft_raw_fetch_atomic(r.ep, C.uintptr_t(a.Data), C.size_t(a.Count), a.Desc.c(), C.uintptr_t(a.Fetch),
		C.uint64_t(a.Dest), C.uint64_t(a.Addr), C.uint64_t(a.Key), C.int(a.Type), C.int(a.Op), C.uintptr_t(a.Context)))
}

// CompareAtomic calls fi_compare_atomic.
func (r *Raw) CompareAtomic(a *RawAtomic) Errno {
	return Errno(-C.weft_raw_compare_atomic(r.ep, C.uintptr_t(a.Data), C.size_t(a.Count), a.Desc.c(),
		C.uintptr_t(a.Compare), C.uintptr_t(a.Fetch), C.uint64_t(a.Dest), C.uint64_t(a.Addr), C.uint64_t(a.Key),
		C.int(a.Type), C.int(a.Op), C.uintptr_t(a.Context)))
}

// PostLater queues a receive of up to n bytes for the next Poll, which posts it. It returns false
// if as many receives as the argument recvs of NewRaw are queued already.
func (r *Raw) PostLater(buf uintptr, n int, context uintptr) bool {
	if r.nposts == len(r.posts) {
		return false
	}
	r.posts[r.nposts] = RawRecv{uint64(buf), uint64(n), uint64(context)}
	r.nposts++
	return true
}

// Pending returns the number of receives that are queued for the next Poll.
func (r *Raw) Pending() int { return r.nposts }

// Poll posts the queued receives with desc and flags (fi_recvmsg). Then it reads up to limit
// completions (fi_cq_read), up to tries times while the queue is empty; with a limit of 0 it reads
// nothing. The entries are valid until the next Poll. If Poll returns ErrAvail, the caller must
// call ReadErr. If the endpoint has no room for a receive, the receive stays queued; other posting
// errors are returned.
func (r *Raw) Poll(flags Flags, desc Desc, limit, tries int) ([]RawEntry, Errno) {
	n := C.weft_raw_poll(r.ep, r.cq, C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(r.posts)))), C.size_t(r.nposts),
		C.uint64_t(flags), desc.c(), C.uintptr_t(uintptr(unsafe.Pointer(r.posted))),
		C.uintptr_t(uintptr(unsafe.Pointer(unsafe.SliceData(r.entries)))), C.size_t(min(limit, len(r.entries))), C.unsigned(tries))
	if done := int(r.posted.count); done > 0 {
		r.nposts = copy(r.posts, r.posts[done:r.nposts])
	}
	if n < 0 {
		return nil, Errno(-n)
	}
	if e := Errno(r.posted.error); e != 0 && e != ErrAgain {
		return r.entries[:n], e
	}
	return r.entries[:n], 0
}

// ReadErr removes a failed operation from the queue and returns it (fi_cq_readerr, fi_cq_strerror). It
// returns nil if there is none or if fi_cq_readerr fails. The endpoint must be enabled.
func (r *Raw) ReadErr() *RawError {
	if C.weft_raw_readerr(r.cq, C.uintptr_t(uintptr(unsafe.Pointer(r.failure)))) <= 0 {
		return nil
	}
	f := r.failure
	return &RawError{
		Context: uintptr(f.entry.op_context), Flags: Flags(f.entry.flags),
		Err:       Errno(max(f.entry.err, -f.entry.err)), // shm returns some as negative numbers
		ProvErrno: int(f.entry.prov_errno), Text: C.GoString(&f.text[0]),
		ErrData: C.GoBytes(unsafe.Pointer(&f.data[0]), C.int(f.data_size)),
	}
}

// TryWait returns 0 if a thread may sleep on the queue's descriptor, or ErrAgain if the caller must
// read the queue first (fi_trywait).
func (r *Raw) TryWait() Errno { return Errno(-C.weft_raw_trywait(r.fabric, r.cq)) }

// SetMinMultiRecv sets the free space, in bytes, below which the provider releases a multi-receive
// buffer (FI_OPT_MIN_MULTI_RECV).
func (r *Raw) SetMinMultiRecv(n int) Errno {
	return Errno(-C.weft_raw_set_min_multi_recv(r.ep, C.size_t(n)))
}

// Register registers n bytes at buf (fi_mr_reg), which must stay valid until the region is closed.
// The region's key is key, unless the provider chooses keys (FI_MR_PROV_KEY).
func (r *Raw) Register(buf uintptr, n int, access Access, key uint64) (RawRegion, Errno) {
	return r.RegisterDevice(buf, n, access, key, HMEMSystem, 0)
}

// RegisterDevice is Register for memory of a device (fi_mr_regattr): iface is the kind of the device, and
// device its number.
func (r *Raw) RegisterDevice(buf uintptr, n int, access Access, key uint64, iface HMEMIface, device int) (RawRegion, Errno) {
	m := C.weft_raw_mr_reg(r.domain, r.bindMR, C.uintptr_t(buf), C.size_t(n), C.uint64_t(access), C.uint64_t(key),
		C.int(iface), C.int64_t(device))
	if m.error != 0 {
		return RawRegion{}, Errno(m.error)
	}
	return RawRegion{mr: m.mr, Desc: Desc{uintptr(m.desc)}, Key: uint64(m.key)}, 0
}

// Close closes the region (fi_close). On the zero RawRegion it does nothing.
func (m RawRegion) Close() Errno {
	if m.mr == 0 {
		return 0
	}
	return Errno(-C.weft_raw_mr_close(m.mr))
}
