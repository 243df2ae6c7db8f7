// Package transport is the contract between weft's engine and a fabric, in the
// terms of libfabric.
//
//	Provider ── Open ──► Domain ──► CompletionQueue   what has happened
//	                       │   ├──► AddressVector     who is where: index = rank
//	                       │   ├──► MemoryRegion      what peers may read or write
//	                       └───┴──► Endpoint          messages, RMA, atomics
//
// A domain says what it is in its attributes, and the engine adapts to them,
// never to a provider's name. The contract is made for these kinds of fabric:
//
//   - inproc: ranks are goroutines of one process; a Read is a copy.
//   - tcp: byte streams; a Read is a request that the peer's progress answers,
//     and its data goes from registered memory to the local buffer.
//   - shared memory: rings of cache lines between pairs of ranks. Received
//     messages are views of ring slots, given back at the next Read of the
//     completion queue. RMA is single-copy (process_vm_readv, or loads and
//     stores where SharedMemory maps the region); Arm raises the flag that says
//     "I sleep", Wait sleeps on a futex.
//   - libfabric: FI_AV_TABLE vectors with symmetric insert; registered memory
//     whose keys, addressing and local descriptors follow Attr.MRMode; fi_read,
//     fi_write and fi_atomic on an RDM endpoint; received messages lie in
//     multi-receive buffers; Arm is fi_trywait, FD the queue's FI_WAIT_FD.
//
// # Threads
//
// Unless a domain's Threading is ThreadSafe, its user serialises all calls to
// the domain and everything opened from it (FI_THREAD_DOMAIN), except for
// CompletionQueue.Wait and CompletionQueue.Signal, which run beside anything.
// No call but Wait, Shutdown and Close blocks.
//
// # Delivery
//
// Messages from one endpoint to another arrive once, whole, and in the order
// sent (FI_ORDER_SAS), or the peer is reported down. RMA is ordered with
// nothing but itself; its completion at the initiator says that the data is
// where it belongs.
package transport

import (
	"context"
	"os"
	"time"

	"github.com/weft-hpc/weft/internal/params"
)

// Provider gives access to one kind of fabric (fi_provider(7)).
type Provider interface {
	// Name is the word that users choose the provider by, as "tcp".
	Name() string
	// Open opens a domain of the fabric (fi_getinfo, fi_fabric, fi_domain).
	Open(cfg Config) (Domain, error)
}

// Config is what a process tells a provider about itself and its job.
type Config struct {
	Self   Addr     // the index that this process has in every address vector of the job: its rank
	Size   int      // processes of the job
	JobID  string   // the same in all of them
	Secret [32]byte // known to them alone; every connection or segment is authenticated with it

	Params   *params.Set // tunables; nil: all defaults
	Listener *os.File    // a socket bound for this process, that listens if peers know of it already; nil: the provider makes its own
	OneHost  bool        // every process of the job runs on this host

	// Memory is a memory file (memfd_create(2)), empty or sized and sealed by
	// another of them, that the processes of Locals have in common, and Locals
	// who they are, in ascending order, this one among them. The domain
	// duplicates the descriptor. nil: nobody has seen to it; a provider that
	// needs such a file makes one and lets the others find it by its address.
	Memory *os.File
	Locals []Addr

	// NoMemory is the reason why this process has no Memory, although processes on other
	// hosts may have one. A provider that needs Memory then returns ErrUnavailable from
	// Open. Empty: there is no such reason.
	NoMemory string
}

// Domain is an opened fabric (fi_domain(3)).
type Domain interface {
	Attr() Attr
	// OpenCQ opens the domain's completion queue.
	OpenCQ() (CompletionQueue, error)
	// OpenAV opens an address vector of table type: an empty one, or one with
	// the addresses of all the job, where the provider knows them.
	OpenAV() (AddressVector, error)
	// RegisterMemory permits peers with the region's key to access buf (fi_mr_reg). buf
	// must stay valid until the region is closed. RegisterMemory does not
	// allocate in steady state. If there is no room until another region is closed, it
	// returns ErrAgain.
	RegisterMemory(buf []byte, access Access) (MemoryRegion, error)
	// OpenEndpoint opens the endpoint that sends to the addresses of av and
	// reports to cq. A domain has one.
	OpenEndpoint(av AddressVector, cq CompletionQueue) (Endpoint, error)
	// Close ends everything opened from the domain, idempotently; operations
	// in flight are lost. Peers that were not told by Shutdown take it for the
	// end of the process: PeerDown. It returns when no goroutine, descriptor or file of
	// the domain is left.
	Close() error
}

// Attr is what a domain is and can (struct fi_domain_attr, fi_info).
type Attr struct {
	Provider     string
	Name         string // the device, interface or file that the domain stands for
	Threading    Threading
	Progress     Progress // of data: who moves it
	MRMode       MRMode
	Caps         Caps
	NoWaitObject bool // CompletionQueue.Wait is ended by time and Signal alone, not by what comes

	InjectSize  int // header and data up to this size are always sent at once: Send answers done
	MaxMsgSize  int // largest header and data of a Send
	EagerLimit  int // largest data for which a Send is advised over a Read
	MaxRMASize  int // largest Read or Write
	MRKeySize   int // bytes of a memory key
	MaxGroupID  int // group ids that the fabric itself tells apart (max_group_id); 0: none
	LatencyNs   int // what the engine may assume for choosing algorithms: α
	BytesPerSec int // 1/β
}

// Threading says which calls may run at once (fi_domain(3), threading).
type Threading int

// The threading models.
const (
	ThreadDomain Threading = iota // the user serialises calls on the domain
	ThreadSafe                    // any calls at once
)

// Progress says who moves data (fi_domain(3), data_progress).
type Progress int

// The progress models.
const (
	ProgressManual Progress = iota // calls to CompletionQueue.Read do
	ProgressAuto                   // the fabric by itself
)

// MRMode says what a domain asks of registered memory (fi_mr(3), mr_mode).
type MRMode uint

// The bits of MRMode. Keys are always the provider's.
const (
	MRLocal     MRMode = 1 << iota // local buffers of RMA need a region too; those of messages are the endpoint's business
	MRVirtAddr                     // remote addresses are the target's virtual addresses, else offsets from the region's start
	MRAllocated                    // memory must be backed by pages when it is registered
	MREndpoint                     // regions are bound to the endpoint (done by the provider)
)

// Caps says what a domain can beyond messages (fi_getinfo(3), caps).
type Caps uint

// The bits of Caps.
const (
	CapRead         Caps = 1 << iota // RMAEndpoint.Read
	CapWrite                         // RMAEndpoint.Write
	CapAtomic                        // AtomicEndpoint
	CapWaitFD                        // CompletionQueue.FD
	CapSharedMemory                  // SharedMemoryDomain
	CapPeerDown                      // a peer's end is reported without being asked for
	CapSymmetric                     // AddressVector.InsertSym works
	CapConnect                       // ConnectEndpoint; CapPeerDown is of peers that there is a connection with
	CapDisconnect                    // DisconnectEndpoint
	CapBatch                         // BatchEndpoint
)

// Has says whether all bits of want are there.
func (c Caps) Has(want Caps) bool { return c&want == want }

// Access says what peers may do with a memory region (fi_mr(3), access).
type Access uint

// The bits of Access.
const (
	RemoteRead Access = 1 << iota
	RemoteWrite
	Local // a local buffer of RMA, under MRLocal
)

// Addr is an index into an address vector (fi_addr_t). A job inserts its
// addresses in the order of ranks, so it is a rank.
type Addr int

// Address is a fabric's own form of an address, printable where the fabric's is.
type Address string

// AddressVector translates indexes to addresses (fi_av(3), FI_AV_TABLE).
type AddressVector interface {
	// Insert adds addresses at consecutive indexes and returns the first. An empty
	// address stands for a process whose Open returned ErrUnavailable. Only a Reacher
	// accepts it, and does not reach that process. The peer at any other address has an
	// open endpoint or a listening Listener; if not, the peer has ended.
	Insert(addrs []Address) (Addr, error)
	// InsertSym adds nodes × services addresses that follow each other: node
	// names the first host by a numeric address, service its first port; the
	// address of index i is service i mod services of node i div services
	// (fi_av_insertsym). Without CapSymmetric it answers ErrNotSupported.
	InsertSym(node string, nodes int, service string, services int) (Addr, error)
	// Lookup returns the address at an index (fi_av_lookup).
	Lookup(a Addr) (Address, error)
	// Len is the number of addresses inserted.
	Len() int
}

// MemoryRegion is registered memory (fi_mr(3)).
type MemoryRegion interface {
	// Key is what peers name the region by (fi_mr_key). It is hard to guess.
	Key() uint64
	// Base is what peers name the region's first byte by: 0, or its virtual
	// address under MRVirtAddr.
	Base() uint64
	// Close withdraws the region. No byte of it is touched after it returns;
	// an operation of a peer on it that has not ended fails at that peer with
	// ErrKey. The region may be reused: it must not be used again.
	Close() error
}

// Reacher is an address vector of a fabric that does not lead everywhere, as
// shared memory does not. Where Config.Memory was nil it may be asked once every
// process of the job has inserted all addresses: until then a peer that can be
// reached may not have shown up.
type Reacher interface {
	// Reaches says whether the address at an index can be sent to; itself can.
	Reaches(a Addr) bool
}

// SharedMemoryDomain is a domain with memory that several ranks map
// (CapSharedMemory), so that the stores of one are seen by the others. Who
// stores what another waits for, and who waits, see to each other thus:
//
//	writer: store (sync/atomic) ── Asleep? ── Notify(peer)
//	reader: Arm ── load again ── Wait, which Notify ends
type SharedMemoryDomain interface {
	// Alloc allocates n bytes of this rank's part of the shared heap, zeroed
	// and aligned to a page, with remote read and write access by RMA and
	// atomics too. Closing the region frees it: the caller sees to it that no
	// peer uses what Map gave it any more.
	Alloc(n int) ([]byte, MemoryRegion, error)
	// Map gives direct access to memory that a peer allocated by its Alloc,
	// under the key of its region: all of it, until this domain is closed or
	// Unmap is called with the same slice. ErrKey: it is no such memory.
	// Mapping the same region again may give another slice.
	Map(peer Addr, key uint64) ([]byte, error)
	// Unmap gives up what Map gave.
	Unmap(mem []byte) error
	// Asleep says whether any rank that this domain shares memory with may be
	// in Wait or about to be, at the cost of a load. It is asked after a store
	// by sync/atomic. It may be called from any goroutine at any time, as
	// Notify may.
	Asleep() bool
	// Notify ends a peer's Wait if it is in one or has Armed, as a message would.
	Notify(peer Addr)
}

// LastingMemoryDomain is a SharedMemoryDomain whose memory can outlive it.
type LastingMemoryDomain interface {
	// AllocLasting is Alloc of memory that stays past the domain's Close, until
	// the region's, although no peer reaches it any more then.
	AllocLasting(n int) ([]byte, MemoryRegion, error)
}

// Endpoint sends messages (fi_endpoint(3) of type RDM, fi_msg(3)).
// Connections, where the fabric has them, are made on first use.
type Endpoint interface {
	// Address is what peers insert to reach this endpoint (fi_getname).
	Address() Address
	// Send sends op.Header and op.Data as one message to op.Peer, which may be
	// this endpoint itself. Either the
	// buffers are free again when it returns (done; no completion follows), or
	// op, with all it points to, belongs to the endpoint until a completion
	// names it. An error means that nothing was sent and no completion
	// follows; ErrAgain asks to Read the queue and try again, see also ErrAbsent.
	Send(op *Op) (done bool, err error)
	// Shutdown tells connected peers that this endpoint leaves, and returns
	// when all that was sent is with them, or they have ended, or ctx is done.
	// Until then the caller must keep away from the domain; peers' messages
	// are dropped.
	Shutdown(ctx context.Context) error
}

// RMAEndpoint is an endpoint with one-sided transfers (fi_rma(3)); CapRead,
// CapWrite. A completion names op when op.Data may be used again (Read: when it
// is filled; Write: when the data is in the target's memory), or with what the
// target refused it for. An error of the call means that nothing was begun and
// no completion follows; ErrAgain is as for Send.
type RMAEndpoint interface {
	// Read fetches len(op.Data) bytes from op.RemoteKey at op.RemoteAddr of op.Peer.
	Read(op *Op) error
	// Write stores op.Data at op.RemoteKey, op.RemoteAddr of op.Peer.
	Write(op *Op) error
}

// AtomicEndpoint is an endpoint with atomics at the target (fi_atomic(3)); CapAtomic.
type AtomicEndpoint interface {
	// AtomicValid says whether op.Atomic on elements of op.Datatype is
	// possible, with a Fetch and a Compare where op has them, and on how many
	// elements at once (fi_atomicvalid, fi_fetch_atomicvalid,
	// fi_compare_atomicvalid). Only which of the slices are nil counts.
	AtomicValid(op *Op) (count int, ok bool)
	// Atomic applies op.Data to the elements at op.RemoteKey, op.RemoteAddr of
	// op.Peer, each as one step; where op.Fetch is not nil the former values go
	// there, and where op.Compare is not nil it is compared. Completion and
	// errors are as for Write; it says that the elements have been changed and
	// that Fetch is filled.
	Atomic(op *Op) error
}

// ConnectEndpoint is an endpoint of a fabric that hears of a peer's end by the
// connection with it, and so never of one that nothing was exchanged with;
// CapConnect.
type ConnectEndpoint interface {
	// Connect makes the connection with a peer if it is neither there nor under
	// way, as a Send would (fi_connect). It does not wait for it: where nobody
	// is there, PeerDown or PeerLeft says so. An error means that nothing was
	// begun, as with a peer of which that has been reported.
	Connect(peer Addr) error
}

// DisconnectEndpoint is an endpoint that can be told that a peer is no more by who
// knows it from elsewhere, since the fabric may not tell: a host whose network is
// cut answers nothing, neither yes nor no; CapDisconnect.
type DisconnectEndpoint interface {
	// Disconnect gives a peer up, be it connected or not. It does not block. When
	// it has returned, nothing more comes from the peer, messages that no Read has
	// given are dropped, and new operations with it are answered with an error.
	// Those under way end at the next Reads, whatever the peer does; then comes
	// PeerDown, if the peer's end has not been reported before. The peer, should it
	// be there after all, is refused for good, and may take this endpoint for dead.
	// An error means that there is no such peer; doing it twice does no harm.
	//
	// What a process that still runs does to memory that it has mapped, or is in
	// the midst of copying to, no endpoint can prevent. So who calls this sees to it
	// that on this host nothing of the peer runs any more. If something does, the
	// operations that it takes part in, and Close of the regions that it writes to,
	// still end within seconds.
	Disconnect(peer Addr) error
}

// BatchEndpoint is an endpoint that can send several small messages to a peer
// at the cost of one; CapBatch. FI_MORE of fi_msg(3) serves the same purpose, but
// there the caller must know that more messages follow.
type BatchEndpoint interface {
	// EnableBatch allows Send to keep a copy of a small message that closely
	// follows others to the same peer. Send returns done for it; the message
	// leaves with the next Read of the completion queue, or with a later
	// operation on the same peer. Send keeps no message that follows no other
	// closely, and none between Arm and the next Read. In return the caller Reads
	// the queue soon when Unsent reports true. Shutdown sends what was kept.
	EnableBatch()
	// Unsent reports whether output waits for a Read of the queue.
	Unsent() bool
}

// Op is an operation's context (fi_context). Its owner fills the upper part and
// must not touch it between posting and completion. Ops are reused: nothing in
// an endpoint may refer to one after its completion.
type Op struct {
	Peer   Addr
	Header [HeaderSize]byte // sent before Data; its first HeaderLen bytes
	// HeaderLen may be 0 for RMA.
	HeaderLen  int
	Data       []byte
	RemoteKey  uint64
	RemoteAddr uint64
	Region     MemoryRegion // of the Data of a Read or Write, where MRLocal asks for it
	Fetch      []byte       // atomics: where the former elements go
	Compare    []byte       // atomics: what they are compared with
	Atomic     AtomicOp
	Datatype   Datatype

	// User is the owner's, to find what the operation belongs to.
	User any

	// For the provider, between posting and completion.
	Next    *Op    // queue link
	Scratch uint64 // progress or handle
	ID      uint64 // what the wire calls the operation
}

// HeaderSize is the room for a message's header.
const HeaderSize = 64

// CompletionKind says what a completion reports.
type CompletionKind uint8

// The kinds of completion.
const (
	RecvDone   CompletionKind = iota + 1 // a message came: Peer, Msg
	OpDone                               // Op has ended: Err nil or why it failed
	PeerDown                             // Peer is gone: Err; nothing more comes from it, operations to it fail
	PeerLeft                             // Peer has shut down in good order; nothing more comes from it
	PeerNotice                           // something odd that the user may want to know, as strange bytes at the listener: Err
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

// CompletionQueue tells what has happened (fi_cq(3)).
type CompletionQueue interface {
	// Read moves the fabric on (ProgressManual) and fills c with what has
	// happened since, without blocking; 0 where nothing has. It ends the
	// validity of the messages given before. An error means that the domain is
	// of no further use.
	Read(c []Completion) (int, error)
	// Arm prepares to sleep (fi_trywait): true says that Wait may be called,
	// and anything that happens from now on ends it; false says Read again.
	Arm() bool
	// Wait blocks until a Read may find something, Signal is called, or the
	// time is over (negative: no limit). It may return early. It runs outside
	// the caller's lock, in one goroutine at a time (fi_cq_sread).
	Wait(timeout time.Duration) error
	// Signal ends a Wait, also one that has not yet begun (fi_cq_signal).
	Signal()
	// FD is a descriptor that is readable when Wait would return, for waiting
	// on several queues at once; ok is false without CapWaitFD. It stays so
	// after a Signal until a Wait, which may be of no time, has taken it.
	FD() (fd int, ok bool)
}
