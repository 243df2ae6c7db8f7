// Package transport is the contract between weft's engine and a fabric, in the
// terms of libfabric.
//
//	Provider ── Open ──► Domain ──► CompletionQueue   reports messages and completions
//	                       │   ├──► AddressVector     addresses of the processes: index = rank
//	                       │   ├──► MemoryRegion      memory that peers may read or write
//	                       └───┴──► Endpoint          messages, RMA, atomics
//
// A domain describes itself in its attributes. The engine adapts to the
// attributes, never to a provider's name. The contract serves these fabrics:
//
//   - inproc: ranks are goroutines of one process; a Read is a copy.
//   - tcp: byte streams. A Read is a request that the peer's progress answers;
//     the data goes from registered memory to the local buffer.
//   - shared memory: rings of cache lines between pairs of ranks. Received
//     messages are views of ring slots, which the next Read of the completion
//     queue frees. RMA is single-copy: process_vm_readv, or loads and stores
//     where SharedMemoryDomain maps the region. Arm sets a flag that this rank
//     sleeps; Wait sleeps on a futex.
//   - libfabric: FI_AV_TABLE vectors with symmetric insert; registered memory
//     whose keys, addressing and local descriptors follow Attr.MRMode; fi_read,
//     fi_write and fi_atomic on an RDM endpoint; received messages lie in
//     multi-receive buffers; Arm is fi_trywait, FD is the queue's FI_WAIT_FD.
//
// # Threads
//
// The caller serialises all calls to a domain and to everything opened from it
// (FI_THREAD_DOMAIN), except CompletionQueue.Wait and CompletionQueue.Signal, which
// may run concurrently with any call. Only Wait, Shutdown and Close block.
//
// # Delivery
//
// Messages from one endpoint to another arrive once, whole, and in the order
// sent (FI_ORDER_SAS), or the provider reports the peer as down. RMA operations
// are not ordered with messages or with each other. The completion of an RMA
// operation at the initiator means that the data is in its destination.
package transport

import (
	"context"
	"os"
	"time"

	"github.com/weft-hpc/weft/internal/params"
)

// Provider gives access to one kind of fabric (fi_provider(7)).
type Provider interface {
	// Name returns the name by which users choose the provider, such as "tcp".
	Name() string
	// Open opens a domain of the fabric (fi_getinfo, fi_fabric, fi_domain).
	Open(cfg Config) (Domain, error)
}

// Config describes a process and its job to a provider.
type Config struct {
	Self   Addr     // the rank of this process: its index in every address vector of the job
	Size   int      // number of processes of the job
	JobID  string   // the same in all of them
	Secret [32]byte // known to them alone; authenticates every connection and every memory segment

	Params   *params.Set // tunables; nil: all defaults
	Listener *os.File    // a socket bound for this process; it listens already if peers know its address; nil: the provider makes its own
	OneHost  bool        // every process of the job runs on this host

	// Memory is a memory file (memfd_create(2)) that the processes in Locals
	// share. It is empty, or another of them has sized and sealed it. The domain
	// duplicates the descriptor. If Memory is nil, a provider that needs such a
	// file makes one, and the other processes find it by this process's address.
	Memory *os.File
	// Locals are the ranks that share Memory, in ascending order, including Self.
	Locals []Addr

	// NoMemory is the reason why this process has no Memory, although processes on other
	// hosts may have one. A provider that needs Memory then returns ErrUnavailable from
	// Open. Empty: there is no such reason.
	NoMemory string
}

// Domain is an opened fabric (fi_domain(3)).
type Domain interface {
	// Attr returns the domain's attributes.
	Attr() Attr
	// OpenCQ opens the domain's completion queue.
	OpenCQ() (CompletionQueue, error)
	// OpenAV opens an address vector of table type. If the provider knows the
	// addresses of the whole job, the vector holds them; otherwise it is empty.
	OpenAV() (AddressVector, error)
	// RegisterMemory permits peers with the region's key to access buf (fi_mr_reg). buf
	// must stay valid until the region is closed. RegisterMemory does not
	// allocate in steady state. If there is no room until another region is closed, it
	// returns ErrAgain.
	RegisterMemory(buf []byte, access Access) (MemoryRegion, error)
	// OpenEndpoint opens the endpoint that sends to the addresses of av and
	// reports to cq. A domain has one endpoint.
	OpenEndpoint(av AddressVector, cq CompletionQueue) (Endpoint, error)
	// Close ends everything opened from the domain and drops operations in
	// flight. It is idempotent. Without an earlier Shutdown, peers report
	// PeerDown, as if the process had ended. Close returns when the domain has no
	// goroutine, descriptor or file left.
	Close() error
}

// Attr describes a domain and its abilities (struct fi_domain_attr, fi_info).
type Attr struct {
	Provider string
	Name     string   // the device, interface or file that the domain uses
	Progress Progress // of data transfers
	MRMode   MRMode
	Caps     Caps
	// NoWaitObject means that an event does not end CompletionQueue.Wait, only its
	// timeout or Signal does (FI_WAIT_NONE). It returns at short intervals.
	NoWaitObject bool

	MaxMsgSize int // largest header and data of a Send
	EagerLimit int // largest data for which a Send is better than a Read by the receiver
	MaxRMASize int // largest Read or Write
	LatencyNs  int // typical latency of a small message: the engine polls slower transports less often
}

// Progress says what makes data transfers advance (fi_domain(3), data_progress).
type Progress int

// The progress models.
const (
	ProgressManual Progress = iota // calls to CompletionQueue.Read
	ProgressAuto                   // the fabric alone
)

// MRMode is a set of requirements of a domain on registered memory (fi_mr(3), mr_mode).
type MRMode uint

// The bits of MRMode. The provider always chooses the keys.
const (
	MRLocal     MRMode = 1 << iota // local buffers of RMA need a region too; those of messages do not
	MRVirtAddr                     // remote addresses are the target's virtual addresses; without the bit, offsets in the region
	MRAllocated                    // memory must be backed by pages when it is registered
)

// Caps is a set of abilities beyond messages (fi_getinfo(3), caps).
type Caps uint

// The bits of Caps.
const (
	CapRead         Caps = 1 << iota // RMAEndpoint.Read
	CapWrite                         // RMAEndpoint.Write
	CapAtomic                        // AtomicEndpoint
	CapWaitFD                        // CompletionQueue.FD
	CapSharedMemory                  // SharedMemoryDomain
	CapPeerDown                      // the end of a peer is reported even if no operation with it is under way
	CapSymmetric                     // AddressVector.InsertSym works
	CapConnect                       // ConnectEndpoint; CapPeerDown holds only for peers with a connection
	CapDisconnect                    // DisconnectEndpoint
	CapBatch                         // BatchEndpoint
)

// Has reports whether c has all bits of want.
func (c Caps) Has(want Caps) bool { return c&want == want }

// Access is a set of permitted uses of a memory region (fi_mr(3), access).
type Access uint

// The bits of Access.
const (
	RemoteRead  Access = 1 << iota // peers may read the region
	RemoteWrite                    // peers may write to it
	Local                          // it is a local buffer of RMA, under MRLocal
)

// Addr is an index into an address vector (fi_addr_t). A job inserts its
// addresses in the order of ranks, so an Addr is a rank.
type Addr int

// Address is an address in the fabric's own form. It is printable if the
// fabric's form is.
type Address string

// AddressVector translates indexes to addresses (fi_av(3), FI_AV_TABLE).
type AddressVector interface {
	// Insert adds addresses at consecutive indexes and returns the first. An empty
	// address stands for a process whose Open returned ErrUnavailable. Only a Reacher
	// accepts it, and does not reach that process. The peer at any other address has an
	// open endpoint or a listening Listener; if not, the peer has ended.
	Insert(addrs []Address) (Addr, error)
	// InsertSym adds nodes × services addresses that follow each other
	// (fi_av_insertsym). node is the first host's numeric address, service the
	// first port of each host. Index i is service i mod services of node i div
	// services. Without CapSymmetric, InsertSym returns ErrNotSupported.
	InsertSym(node string, nodes int, service string, services int) (Addr, error)
	// Lookup returns the address at an index (fi_av_lookup).
	Lookup(a Addr) (Address, error)
	// Len returns the number of addresses inserted.
	Len() int
}

// MemoryRegion is registered memory (fi_mr(3)).
type MemoryRegion interface {
	// Key returns the number by which peers name the region (fi_mr_key). It is hard to guess.
	Key() uint64
	// Base returns the remote address of the region's first byte: 0, or its
	// virtual address under MRVirtAddr.
	Base() uint64
	// Close withdraws the region. After Close has returned, no operation of a peer uses
	// its memory: an operation that has not ended fails at that peer with ErrKey. The
	// caller must not use the MemoryRegion again, because the domain may reuse it.
	Close() error
}

// Reacher is an address vector of a fabric that reaches only some of the processes,
// such as shared memory. If Config.Memory was nil, the caller must not call Reaches
// before every process of the job has inserted all addresses: until then, a peer that
// can be reached may not be visible.
type Reacher interface {
	// Reaches reports whether this process can send to the address at an index. It
	// can always send to its own.
	Reaches(a Addr) bool
}

// SharedMemoryDomain is a domain with memory that several ranks map
// (CapSharedMemory): a store by one rank is visible to the others. A rank that
// waits for a store, and a rank that stores, follow this protocol:
//
//	writer: store (sync/atomic) ── Asleep? ── Notify(peer)
//	reader: Arm ── load again ── Wait, which Notify ends
type SharedMemoryDomain interface {
	// Alloc allocates n bytes of this rank's part of the shared heap, zeroed
	// and aligned to a page. Peers may read and write them by RMA and
	// atomics too. Closing the region frees the memory: the caller must first make
	// sure that no peer uses what Map returned for it.
	Alloc(n int) ([]byte, MemoryRegion, error)
	// Map gives direct access to all of the memory that a peer allocated by its
	// Alloc, under the key of its region. The slice is valid until this domain is
	// closed or the caller passes the same slice to Unmap. If the key is not that of
	// such memory, Map returns ErrKey. Mapping a region again may return another slice.
	Map(peer Addr, key uint64) ([]byte, error)
	// Unmap ends the use of a slice that Map returned.
	Unmap(mem []byte) error
	// Asleep reports whether any rank that shares memory with this domain may be
	// in Wait or about to be. It costs one load. A writer calls it after a store
	// by sync/atomic. Any goroutine may call Asleep and Notify at any time.
	Asleep() bool
	// Notify ends a peer's Wait if the peer is in one or has Armed, as a message does.
	Notify(peer Addr)
}

// LastingMemoryDomain is a SharedMemoryDomain whose memory can outlive it.
type LastingMemoryDomain interface {
	// AllocLasting is an Alloc of memory that stays valid after the domain's Close,
	// until the region is closed. After the domain's Close no peer reaches it.
	AllocLasting(n int) ([]byte, MemoryRegion, error)
}

// Endpoint sends messages (fi_endpoint(3) of type RDM, fi_msg(3)).
// A fabric with connections makes them at their first use.
type Endpoint interface {
	// Address returns the address that peers insert to reach this endpoint (fi_getname).
	Address() Address
	// Send sends op.Header and op.Data as one message to op.Peer, which may be
	// this endpoint. If Send returns done, the buffers are free again and no
	// completion follows. Otherwise op, with all it points to, belongs to the
	// endpoint until a completion names it. After an error, nothing was sent and no
	// completion follows. If the error is ErrAgain, the caller Reads the queue and
	// tries again; see also ErrAbsent.
	Send(op *Op) (done bool, err error)
	// Shutdown tells connected peers that this endpoint leaves the job. It returns
	// when everything sent has reached the peers, or they have ended, or ctx is done.
	// During Shutdown the caller must not call the domain. Messages from peers are
	// dropped.
	Shutdown(ctx context.Context) error
}

// RMAEndpoint is an endpoint with one-sided transfers (fi_rma(3)); CapRead,
// CapWrite. A completion names op when op.Data may be used again: for Read, when it
// is filled; for Write, when the data is in the target's memory. If the target refuses
// the operation, the completion has the error. If the call itself returns an error,
// nothing was begun and no completion follows; ErrAgain is as for Send.
type RMAEndpoint interface {
	// Read fetches len(op.Data) bytes from op.RemoteKey at op.RemoteAddr of op.Peer.
	Read(op *Op) error
	// Write stores op.Data at op.RemoteKey, op.RemoteAddr of op.Peer.
	Write(op *Op) error
}

// AtomicEndpoint is an endpoint with atomics at the target (fi_atomic(3)); CapAtomic.
type AtomicEndpoint interface {
	// AtomicValid reports whether op.Atomic is possible on elements of op.Datatype,
	// with a Fetch and a Compare if op has them, and on how many elements at once
	// (fi_atomicvalid, fi_fetch_atomicvalid, fi_compare_atomicvalid). Of the slices it
	// only looks at whether they are nil.
	AtomicValid(op *Op) (count int, ok bool)
	// Atomic applies op.Data to the elements at op.RemoteKey, op.RemoteAddr of
	// op.Peer, to each element atomically. If op.Fetch is not nil, it receives the
	// former values. If op.Compare is not nil, the elements are compared with it.
	// Completion and errors are as for Write: at the completion the elements have
	// changed and Fetch is filled.
	Atomic(op *Op) error
}

// ConnectEndpoint is an endpoint of a fabric that detects the end of a peer by the
// connection with it (CapConnect). It does not detect the end of a peer without a
// connection.
type ConnectEndpoint interface {
	// Connect starts a connection with a peer, as a Send does (fi_connect), unless
	// there is one or one is being made. It does not wait for the connection. If the
	// peer does not exist any more, PeerDown or PeerLeft follows. If Connect returns an
	// error, nothing was begun: for example, the end of the peer was reported before.
	Connect(peer Addr) error
}

// DisconnectEndpoint is an endpoint that can mark a peer as failed when the caller
// knows of the failure from elsewhere (CapDisconnect). The fabric may not detect every
// failure: a host whose network is cut does not answer at all.
type DisconnectEndpoint interface {
	// Disconnect marks a peer as failed, connected or not. It does not block. After it
	// has returned, nothing more comes from the peer: messages that no Read has
	// returned are dropped, and new operations with the peer return an error.
	// Operations under way end at the next Reads, whatever the peer does; then
	// PeerDown follows, unless the peer's end was reported before. If the peer still
	// runs, it is refused for good, and may report this endpoint as down.
	// An error means that there is no such peer. A second call for the same peer has no
	// effect.
	//
	// No endpoint can stop a process that still runs from writing to memory that it has
	// mapped or is copying to. So the caller must make sure that no process
	// of the peer runs on this host any more. If one does, operations
	// that it takes part in, and Close of regions that it writes to,
	// still end within seconds.
	Disconnect(peer Addr) error
}

// BatchEndpoint is an endpoint that can send several small messages to a peer
// at the cost of one (CapBatch). FI_MORE of fi_msg(3) serves the same purpose, but
// there the caller must know that more messages follow.
type BatchEndpoint interface {
	// EnableBatch allows Send to keep a copy of a small message that closely
	// follows others to the same peer. Send returns done for it; the message
	// leaves with the next Read of the completion queue, or with a later
	// operation on the same peer. Send keeps no message that does not closely follow
	// another, and none between Arm and the next Read. The caller must
	// Read the queue soon after Unsent has reported true. Shutdown sends what was kept.
	EnableBatch()
	// Unsent reports whether output waits for a Read of the queue.
	Unsent() bool
}

// Op is an operation's context (fi_context). Its owner fills the upper part and
// must not touch it between posting and completion. Ops are reused: an endpoint
// must not refer to an Op after its completion.
type Op struct {
	Peer       Addr
	Header     [HeaderSize]byte // its first HeaderLen bytes are sent before Data
	HeaderLen  int              // RMA ignores it
	Data       []byte
	RemoteKey  uint64
	RemoteAddr uint64
	Region     MemoryRegion // of Data, for a Read or Write under MRLocal
	Fetch      []byte       // atomics: receives the former elements
	Compare    []byte       // atomics: what the elements are compared with
	Atomic     AtomicOp
	Datatype   Datatype

	// User belongs to the owner: it identifies what the operation is part of.
	User any

	// For the provider, between posting and completion.
	Next    *Op    // queue link
	Scratch uint64 // for example a number of bytes or a handle
	ID      uint64 // identifies the operation in messages
}

// HeaderSize is the largest length of a message's header.
const HeaderSize = 64

// CompletionKind is what a completion reports.
type CompletionKind uint8

// The kinds of completion.
const (
	RecvDone   CompletionKind = iota + 1 // a message came: Peer, Msg
	OpDone                               // Op has ended: Err is nil or the reason of its failure
	PeerDown                             // Peer has failed, for the reason Err; nothing more comes from it, operations with it fail
	PeerLeft                             // Peer has called Shutdown; nothing more comes from it
	PeerNotice                           // Err is a warning for the user, for example that a stranger sent bytes to the listener
)

// Completion is an entry of a completion queue (fi_cq(3)).
type Completion struct {
	Kind CompletionKind
	Peer Addr
	Op   *Op
	// Msg is the message's header and data, in memory of the provider, valid
	// until the next Read of the queue.
	Msg []byte
	Err error
}

// CompletionQueue reports messages, completions and ends of peers (fi_cq(3)).
type CompletionQueue interface {
	// Read advances transfers (ProgressManual), and fills c with the completions since
	// the last Read. It does not block; it returns 0 if there are none. The
	// messages that the last Read returned are no longer valid. After an error the
	// domain is of no further use.
	Read(c []Completion) (int, error)
	// Arm prepares to sleep (fi_trywait). If it returns true, the caller may call
	// Wait, and any event from now on ends that Wait. If it returns false, the caller
	// must Read again.
	Arm() bool
	// Wait blocks until a Read may find something, Signal is called, or the
	// timeout is over (negative: no limit). It may return early. The caller does not
	// hold the lock that serialises other calls; one goroutine at a time may
	// Wait (fi_cq_sread).
	Wait(timeout time.Duration) error
	// Signal ends a Wait, even one that has not yet begun (fi_cq_signal).
	Signal()
	// FD returns a descriptor that is readable when Wait would return, for waiting
	// on several queues at once. ok is false without CapWaitFD. After a
	// Signal the descriptor stays readable until a Wait, perhaps with timeout 0,
	// has consumed the Signal.
	FD() (fd int, ok bool)
}
