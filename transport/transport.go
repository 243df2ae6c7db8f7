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
//     the data goes from the peer's registered memory to the local buffer.
//   - shared memory: a ring buffer of cache lines for each pair of ranks and each
//     direction. Received messages are views of the ring's entries; the next Read of
//     the completion queue frees these entries. RMA copies once: by loads and stores
//     if SharedMemoryDomain.Alloc has allocated the region, else by process_vm_readv(2)
//     or process_vm_writev(2), if the kernel permits that for the pair of ranks
//     (RegionReacher). Arm sets a flag which says that this rank is about to sleep;
//     Wait sleeps on a futex.
//   - libfabric: FI_AV_TABLE vectors with symmetric insert; registered memory
//     whose keys, addressing and local descriptors follow Attr.MRMode; fi_read,
//     fi_write and fi_atomic on an RDM endpoint; received messages lie in
//     multi-receive buffers; Arm is fi_trywait, FD is the queue's FI_WAIT_FD.
//
// # Threads
//
// The caller serialises all calls to a domain and to everything opened from it
// (FI_THREAD_DOMAIN), with these exceptions. CompletionQueue.Wait, CompletionQueue.Signal,
// SharedMemoryDomain.Asleep and SharedMemoryDomain.Notify may run concurrently with other
// calls. With CapPin the same holds for RegisterMemory and MemoryRegion.Close. Only Wait,
// Shutdown, Close of a domain, Close of a memory region, and with CapPin RegisterMemory
// may block; without CapPin, a region's Close only as long as peers need to finish or
// give up copies of its memory.
//
// # Delivery
//
// Messages from one endpoint to another arrive once, whole, and in the order
// sent (FI_ORDER_SAS), or the provider reports PeerDown or PeerLeft for the peer.
// RMA operations are not ordered with messages or with each other. If the completion of
// an RMA operation has no error, the data is in its destination.
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
	Self  Addr   // the rank of this process: its index in every address vector of the job
	Size  int    // number of processes of the job
	JobID string // the same in all processes of the job
	// Secret is known only to the launcher and the processes of the job. With it, a process
	// proves that it belongs to the job.
	Secret [32]byte

	Params *params.Set // the user's parameters; if nil, every parameter has its default
	// Listener is a socket that is bound to this process's address. If peers know that address
	// already, the socket listens. If Listener is nil, the provider makes a socket.
	Listener *os.File
	OneHost  bool // every process of the job runs on this host
	// HostRank is the number of this process among those of the job on this host, from 0 on, and HostSize
	// how many these are; 0: unknown.
	HostRank, HostSize int

	// Memory is a memory file (memfd_create(2)) that the processes in Locals
	// share. The process that opens its domain first sets the file's size and seals
	// it. Open duplicates the descriptor, so the caller may close Memory after Open.
	// If Memory is nil, a provider that needs such a file makes one, and the other
	// processes find the file by this process's address.
	Memory *os.File
	// Locals are the ranks that share Memory, in ascending order, including Self.
	// It has no meaning if Memory is nil.
	Locals []Addr

	// NoMemory is the reason why this process can have no Memory, although processes on
	// other hosts may have one. If it is not empty, Open of a provider that needs Memory
	// returns ErrUnavailable.
	NoMemory string
}

// Domain is an opened fabric (fi_domain(3)).
type Domain interface {
	// Attr returns the domain's attributes.
	Attr() Attr
	// OpenCQ opens the domain's completion queue. A domain has one.
	OpenCQ() (CompletionQueue, error)
	// OpenAV opens an address vector of table type (FI_AV_TABLE). If the provider
	// already knows the addresses of all ranks, the vector holds them in the order
	// of ranks; otherwise it is empty.
	OpenAV() (AddressVector, error)
	// RegisterMemory makes buf a memory region (fi_mr_reg). Peers that know the region's key
	// may use buf as access permits. buf must stay valid until the region is closed.
	// RegisterMemory does not allocate in steady state. If the domain can have no more regions
	// until the caller closes one, RegisterMemory returns ErrAgain.
	RegisterMemory(buf []byte, access Access) (MemoryRegion, error)
	// OpenEndpoint opens the endpoint that sends to the addresses in av and
	// reports to cq, both of which must be of this domain. A domain has one endpoint.
	OpenEndpoint(av AddressVector, cq CompletionQueue) (Endpoint, error)
	// Close closes everything opened from the domain and drops operations in
	// flight. It is idempotent. If the caller has not called Shutdown before, peers
	// report PeerDown, as if the process had ended. Close returns when the domain
	// has no goroutine, descriptor or file left.
	Close() error
}

// PinningDomain is a Domain that takes long to register memory, because an adapter pins its pages
// (CapPin). RegisterMemory and MemoryRegion.Close may run concurrently with each other and with all
// other calls of the domain. After Close of the domain, RegisterMemory returns ErrClosed.
type PinningDomain interface {
	// KeptMemory returns a region of buf, as RegisterMemory or RegisterDevice does, if a registration that
	// the domain has kept (MayKeep) contains buf; otherwise it returns nil. dev is the device that buf is
	// memory of; zero: the host. Neither KeptMemory nor Close of its result takes long.
	KeptMemory(buf []byte, dev DeviceMemory, access Access) MemoryRegion
}

// DeviceDomain is a Domain whose endpoint reads from and writes to the memory of devices, such as GPUs
// (CapDevice, FI_HMEM).
type DeviceDomain interface {
	// KnowsDevice reports whether the domain has a name for devices of this kind (DeviceMemory.Kind). If
	// not, RegisterDevice returns ErrNotSupported; otherwise it may.
	KnowsDevice(kind string) bool
	// RegisterDevice makes memory of a device a memory region, as RegisterMemory does with host memory. mem
	// has the address and the length of the memory; its bytes cannot be accessed. A Read or Write
	// may have such a region as Op.Region. Op.Data is then a part of mem. If a rank accesses its own device
	// region, the operation returns ErrNotSupported. If memory of that kind cannot be registered,
	// RegisterDevice returns ErrNotSupported. MayKeep has no effect if dev.Allocation is 0.
	RegisterDevice(mem []byte, dev DeviceMemory, access Access) (MemoryRegion, error)
}

// DeviceMemory names the device that memory belongs to.
type DeviceMemory struct {
	Kind    string // name of the interface to devices of this kind in libfabric, in lower case: "cuda", "rocr", "ze", "neuron", "synapseai"
	Ordinal int    // number of the device among those of its kind
	// Allocation is the number of the allocation that contains the memory; 0: unknown. Two allocations of a
	// device never have the same number, even if one follows the other at the same address.
	Allocation uint64
}

// Attr describes a domain and its abilities (struct fi_domain_attr, fi_info).
type Attr struct {
	Provider string   // the provider's name
	Name     string   // the device, interface, address or file that the domain uses
	Progress Progress // what makes data transfers advance
	MRMode   MRMode   // what the domain requires of registered memory
	Caps     Caps     // what the domain can do beyond messages
	// NoWaitObject means that the arrival of a message or completion does not end
	// CompletionQueue.Wait (FI_WAIT_NONE). Instead, Wait returns at short intervals, so
	// that the caller can Read.
	NoWaitObject bool

	MaxMsgSize int // largest message of a Send: header and data, in bytes
	EagerLimit int // up to this many bytes of data, a Send is better than a Read by the receiver
	MaxRMASize int // largest Read or Write in bytes
	// LatencyNs is the typical latency of a small message in nanoseconds. The engine polls a
	// transport with a greater latency less often.
	LatencyNs int
}

// Progress says whether data transfers need calls of CompletionQueue.Read to advance
// (fi_domain(3), data_progress).
type Progress int

// The progress models.
const (
	ProgressManual Progress = iota // transfers need calls of Read to advance (FI_PROGRESS_MANUAL)
	ProgressAuto                   // transfers advance without calls of Read (FI_PROGRESS_AUTO)
)

// MRMode is a set of requirements of a domain on registered memory (fi_mr(3), mr_mode).
type MRMode uint

// The bits of MRMode. The provider always chooses the keys.
const (
	// MRLocal: the local buffer of a Read or Write must be registered too, and Op.Region is its
	// region. Buffers of messages need not be registered.
	MRLocal MRMode = 1 << iota
	// MRVirtAddr: Op.RemoteAddr is a virtual address of the target. Without this bit, it is an
	// offset in the region.
	MRVirtAddr
	MRAllocated // memory must be backed by physical pages when it is registered
)

// Caps is a set of abilities beyond messages (fi_getinfo(3), caps). They hold for all peers and
// regions, except that Read and Write of a RegionReacher may access only some regions.
type Caps uint

// The bits of Caps.
const (
	CapRead         Caps = 1 << iota // RMAEndpoint.Read works
	CapWrite                         // RMAEndpoint.Write works
	CapAtomic                        // the endpoint is an AtomicEndpoint
	CapWaitFD                        // CompletionQueue.FD returns a descriptor
	CapSharedMemory                  // the domain is a SharedMemoryDomain
	CapPeerDown                      // the end of a peer is reported even without an operation with the peer
	CapSymmetric                     // AddressVector.InsertSym works
	// CapConnect: the endpoint is a ConnectEndpoint. CapPeerDown then holds only for peers with a
	// connection.
	CapConnect
	CapDisconnect // the endpoint is a DisconnectEndpoint
	CapBatch      // the endpoint is a BatchEndpoint
	CapFlush      // the endpoint is a FlushEndpoint
	// CapKeyCheck: a read, write or atomic by a key that is not valid, or not valid any more, fails
	// with ErrKey. The peer and other operations are not affected.
	CapKeyCheck
	CapPin    // the domain is a PinningDomain
	CapDevice // the domain is a DeviceDomain
)

// Has reports whether c has all bits of want.
func (c Caps) Has(want Caps) bool { return c&want == want }

// Access is a set of permitted uses of a memory region (fi_mr(3), access).
type Access uint

// The bits of Access.
const (
	RemoteRead  Access = 1 << iota // peers may read the region
	RemoteWrite                    // peers may write to the region
	Local                          // this process may use the region as Op.Region, which MRLocal requires
	// MayKeep: the caller may register the same memory again, and trusts peers that know the key
	// not to use it after Close. So the domain may keep the registration, and must then use it for
	// later regions only while it stands for the same memory. MayKeep is not for RemoteWrite.
	MayKeep
)

// Addr is an index into an address vector (fi_addr_t). A job inserts its
// addresses in the order of ranks, so an Addr is a rank.
type Addr int

// Address is the address of an endpoint in the fabric's own form: text for some fabrics, such as
// "host:port", and arbitrary bytes for others.
type Address string

// AddressVector translates indexes to addresses (fi_av(3), FI_AV_TABLE).
type AddressVector interface {
	// Insert adds addresses at consecutive indexes and returns the first index. An empty
	// address stands for a process whose Open returned ErrUnavailable. Only a Reacher
	// accepts an empty address, and its Reaches returns false for that index. The caller
	// must not insert another peer's address before that peer has opened its endpoint,
	// unless the peer has a Config.Listener that listens already. So if nothing answers at
	// an address, the peer has ended.
	Insert(addrs []Address) (Addr, error)
	// InsertSym adds the addresses of nodes hosts with services ports each
	// (fi_av_insertsym), and returns the first index. node is the numeric address of
	// the first host; the other hosts have the addresses that follow it. service is
	// the first port on each host. The i-th address is that of host i div services
	// and of port service + i mod services. Without CapSymmetric, InsertSym returns
	// ErrNotSupported.
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
	// Close withdraws the region. After Close has returned, no operation of a peer changes
	// the region's memory or returns bytes that are stored there later. If an operation of a
	// peer needs the memory after that, it fails with ErrKey. The caller must not use the
	// MemoryRegion again, because the domain may reuse it.
	Close() error
}

// Reacher is an address vector of a fabric that reaches only some of the job's processes.
// For example, shared memory reaches only those on this host.
type Reacher interface {
	// Reaches reports whether this process can send to the address at an index. For this
	// process's own index it returns true. If Config.Memory was nil, the caller must not
	// call Reaches before every process of the job has inserted all addresses: until
	// then, Reaches may return false for a peer that can be reached.
	Reaches(a Addr) bool
}

// SharedMemoryDomain is a domain with memory that several ranks map
// (CapSharedMemory): a store by one rank is visible to the others. If a rank (the
// reader) waits until another rank (the writer) stores a value, both follow this protocol,
// so that the reader does not sleep on after the store:
//
//	writer: store by sync/atomic ── if Asleep returns true: Notify(reader)
//	reader: Arm ── load by sync/atomic ── if the value is not there: Wait, which Notify ends
type SharedMemoryDomain interface {
	// Alloc allocates n bytes in this rank's part of the shared memory, zeroed
	// and aligned to a page. Peers may also read and write them by RMA, if the
	// domain has CapRead and CapWrite. Close of the region frees the memory. Before
	// that, the caller must make sure that no peer uses the slice that Map returned
	// to the peer.
	Alloc(n int) ([]byte, MemoryRegion, error)
	// Map returns the memory that one call of Alloc has allocated at a peer, for direct
	// access. key is the key of the region that Alloc returned there. The slice is valid
	// until this domain is closed or the caller passes the same slice to Unmap. If no
	// open region of Alloc has that key, Map returns ErrKey. A second Map of a region may
	// return another slice.
	Map(peer Addr, key uint64) ([]byte, error)
	// Unmap ends the use of a slice that Map returned.
	Unmap(mem []byte) error
	// Asleep reports whether any rank that shares memory with this domain may be
	// in Wait or may have called Arm before a Wait. It costs at most one load. Any
	// goroutine may call Asleep and Notify at any time.
	Asleep() bool
	// Notify ends a peer's Wait, as a message does, if the peer is in Wait or has called
	// Arm before a Wait. Otherwise it has no effect.
	Notify(peer Addr)
}

// LastingMemoryDomain is a SharedMemoryDomain whose memory can outlive it.
type LastingMemoryDomain interface {
	// AllocLasting allocates like Alloc, but this rank may use the memory after the
	// domain's Close too, until it closes the region. After the domain's Close no peer
	// can access the memory.
	AllocLasting(n int) ([]byte, MemoryRegion, error)
}

// Endpoint sends messages (fi_endpoint(3) of type RDM, fi_msg(3)).
// A fabric with connections makes a connection when an operation first needs it.
type Endpoint interface {
	// Address returns the address that peers insert to reach this endpoint (fi_getname).
	Address() Address
	// Send sends op.Header and op.Data as one message to op.Peer, which may be
	// this endpoint. If Send returns done, the caller may reuse op and its buffers, and no
	// completion follows. If Send returns false without an error, op and all it points to
	// belong to the endpoint until a completion with that Op. After an error, nothing was
	// sent and no completion follows. If the error is ErrAgain, the caller Reads the queue
	// and calls Send again; see also ErrAbsent.
	Send(op *Op) (done bool, err error)
	// Shutdown makes peers report PeerLeft; on a fabric with connections, only peers with a
	// connection do. It returns nil when, for each peer, everything sent to the peer will reach
	// it even if this process ends, or the peer has ended. If ctx ends before that, or the
	// domain fails, Shutdown returns an error. During Shutdown the caller must not call the
	// domain. Messages that arrive after Shutdown was called are dropped.
	Shutdown(ctx context.Context) error
}

// RMAEndpoint is an endpoint with one-sided transfers (fi_rma(3)); CapRead, CapWrite. Read and
// Write do not block. If a call returns nil, a completion with that Op follows: for Read when
// op.Data is filled, for Write when the data is in the target's memory. Until then op and op.Data
// belong to the endpoint. If the operation fails later, for example because the target refuses it,
// the completion has the error. If the call itself returns an error, nothing was begun and no
// completion follows; ErrAgain has the same meaning as for Send.
type RMAEndpoint interface {
	// Read fetches len(op.Data) bytes into op.Data. They come from the region of op.Peer
	// with the key op.RemoteKey, at the remote address op.RemoteAddr.
	Read(op *Op) error
	// Write stores op.Data in the region of op.Peer with the key op.RemoteKey, at the
	// remote address op.RemoteAddr.
	Write(op *Op) error
}

// RegionReacher is an RMAEndpoint that may reach only some of its peers' regions. An example is the
// endpoint of shared memory: the kernel may forbid a process to copy from the private memory of
// another. For the other regions, the caller of the endpoint uses messages. An endpoint that may
// not reach all regions has no atomics (CapAtomic), because all accumulates of a window need one
// method.
type RegionReacher interface {
	// ReachesRegion reports whether Read and Write can access the peer's region with a key;
	// if not, they return ErrNotSupported. The caller has the key from the peer, so the peer
	// has opened its endpoint. The answer is the same for all regions of RegisterMemory of a
	// peer, and does not change while the domain is open; if the fabric refuses a Read or Write
	// later, the peer has failed. The answer is true for regions of Alloc and for regions of
	// this rank itself. The peer may get another answer for regions of this rank.
	// ReachesRegion does not check whether the key is valid; Read and Write do.
	ReachesRegion(peer Addr, key uint64) bool
}

// AtomicEndpoint is an endpoint with atomics at the target (fi_atomic(3)); CapAtomic.
type AtomicEndpoint interface {
	// AtomicValid reports whether Atomic can do op, and on how many elements at once
	// (fi_atomicvalid, fi_fetch_atomicvalid, fi_compare_atomicvalid). The answer depends
	// on op.Atomic, op.Datatype, and whether op.Fetch and op.Compare are nil. The lengths
	// and contents of the slices do not matter.
	AtomicValid(op *Op) (count int, ok bool)
	// Atomic does the operation op.Atomic on elements of op.Datatype in the region of
	// op.Peer with the key op.RemoteKey, at the remote address op.RemoteAddr. op.Data
	// has one operand for each element. Each element changes atomically. If op.Fetch is
	// not nil, it receives the former values. AtomicCswap compares the elements with
	// op.Compare. Completions and errors are as for Write: at the completion the
	// elements have changed and op.Fetch is filled.
	Atomic(op *Op) error
}

// ConnectEndpoint is an endpoint of a fabric that detects the end of a peer by the
// connection with it (CapConnect). It does not detect the end of a peer without a
// connection.
type ConnectEndpoint interface {
	// Connect starts to make a connection with a peer, as a Send does (fi_connect). If
	// there is a connection already, or one is being made, Connect has no effect. It does
	// not wait for the connection. If the peer does not exist any more, PeerDown or
	// PeerLeft follows. If Connect returns an error, for example because the peer's end
	// was reported before, nothing was begun.
	Connect(peer Addr) error
}

// DisconnectEndpoint is an endpoint that can mark a peer as failed when the caller
// knows of the failure from elsewhere (CapDisconnect). The fabric may not detect every
// failure: a host whose network is cut does not answer at all.
type DisconnectEndpoint interface {
	// Disconnect marks a peer as failed, whether there is a connection with the peer or
	// not. It does not block. After it has returned, no Read returns a message from the
	// peer, and new operations with the peer return an error. Operations under way end
	// in the Reads that follow, whatever the peer does; then PeerDown follows, unless the
	// peer's end was reported before. If the peer still runs, all its later operations
	// with this endpoint are refused, and it may report this endpoint as down. Disconnect
	// returns an error if there is no such peer or the endpoint is closed. A second call
	// for the same peer has no effect.
	//
	// No endpoint can stop a process that still runs from writing to memory that the
	// process has mapped or is copying to. So the caller must make sure that no process
	// of the peer runs on this host any more. If such a process runs all the same,
	// operations that the process takes part in, and Close of regions that it writes to,
	// still end within seconds.
	Disconnect(peer Addr) error
}

// BatchEndpoint is an endpoint that can send several small messages to a peer
// at the cost of one (CapBatch). FI_MORE of fi_msg(3) serves the same purpose, but
// there the caller must know that more messages follow.
type BatchEndpoint interface {
	// EnableBatch allows Send to copy and hold back a small message that closely
	// follows other messages to the same peer in time. Send returns done for such a
	// message. The message leaves in the next Read of the completion queue, in a later
	// operation with the same peer, or in Shutdown. Send holds back no other message,
	// and none between an Arm that has returned true and the next Read. While Unsent
	// returns true, the caller must Read the queue soon.
	EnableBatch()
	// Unsent reports whether messages or other output wait for a Read of the queue.
	Unsent() bool
}

// FlushEndpoint is an endpoint whose Send may return done although the message still needs Reads of
// the queue (CapFlush), for example because the fabric may refuse it, so that it must be sent again.
type FlushEndpoint interface {
	// Flushed reports whether all messages have left, except those to peers that have failed: that
	// the endpoint knows to have failed, or for which failed returns true. Then this process may
	// end, and the other peers still get their messages.
	Flushed(failed func(peer Addr) bool) bool
}

// Op is an operation: its arguments and its context (fi_context). The caller sets the fields up to
// User and posts the Op by Send, Read, Write or Atomic. It must not access the Op until the
// operation is complete. Callers reuse Ops, so an endpoint must not refer to an Op after its
// completion.
type Op struct {
	Peer      Addr             // the receiver or target
	Header    [HeaderSize]byte // Send sends the first HeaderLen bytes before Data
	HeaderLen int              // used by Send only
	Data      []byte           // the bytes to send or write, the buffer of a Read, or the operands of an atomic
	RemoteKey uint64           // RMA and atomics: the key of the target's region
	// RemoteAddr, for RMA and atomics, is the remote address of the first byte in that region.
	// MRVirtAddr says what a remote address is.
	RemoteAddr uint64
	Region     MemoryRegion // RMA with MRLocal: a region that contains Data
	Fetch      []byte       // atomics: receives the former values of the elements; nil if they are not wanted
	Compare    []byte       // AtomicCswap: the values with which the elements are compared
	Atomic     AtomicOp     // atomics: the operation
	Datatype   Datatype     // atomics: the type of the elements

	// User is for the caller. The endpoint neither reads nor changes it.
	User any

	// The provider may use these fields as it likes between posting and completion.
	Next    *Op    // for example the next Op in a queue
	Scratch uint64 // for example a number of bytes or a handle
	ID      uint64 // for example a number that identifies the operation in messages
}

// HeaderSize is the largest length of a message's header in bytes.
const HeaderSize = 64

// CompletionKind is what a completion reports.
type CompletionKind uint8

// The kinds of completion.
const (
	RecvDone CompletionKind = iota + 1 // the message Msg from Peer has arrived
	OpDone                             // the operation Op has ended; Err is nil, or the reason of its failure
	// PeerDown: Peer has failed, for the reason Err. No message from Peer follows, and operations
	// with Peer fail.
	PeerDown
	// PeerLeft: Peer has called Shutdown. No message from Peer follows, and operations with Peer
	// fail.
	PeerLeft
	// PeerNotice: Err is a warning for the user, for example that a process outside the job has
	// sent bytes to the listener.
	PeerNotice
)

// Completion is an entry of a completion queue (fi_cq(3)).
type Completion struct {
	Kind CompletionKind
	Peer Addr // the rank that the completion is about; undefined for PeerNotice
	Op   *Op  // OpDone: the operation
	// Msg is, for RecvDone, the message's header and data. It is in memory of the
	// provider, and valid until the next Read of the queue.
	Msg []byte
	Err error // set for OpDone (nil if it succeeded), PeerDown and PeerNotice; see [CompletionKind]
}

// CompletionQueue reports messages, completions and ends of peers (fi_cq(3)).
type CompletionQueue interface {
	// Read advances transfers (ProgressManual), moves at most len(c) completions to c, and
	// returns their number. The others wait for the next Read. Read does not block; it
	// returns 0 if there are no completions. The messages that the previous Read returned
	// become invalid. After an error the caller can only Close the domain.
	Read(c []Completion) (int, error)
	// Arm prepares to sleep (fi_trywait). If it returns true, the caller may call
	// Wait, and that Wait ends if anything that Read reports arrives after the call of Arm.
	// If Arm returns false, the caller must Read again before the next Arm.
	Arm() bool
	// Wait blocks until a Read may find something, Signal is called, the domain is
	// closed, or the timeout is over (negative: no limit). It may also return for no
	// reason. Wait may run concurrently with all other calls, but only one goroutine at a
	// time may be in Wait (fi_cq_sread).
	Wait(timeout time.Duration) error
	// Signal ends the Wait under way. If there is none, it ends the next Wait
	// (fi_cq_signal).
	Signal()
	// FD returns a descriptor that is readable when Wait would return, so that the caller
	// can wait on several queues at once by poll(2). ok is false without CapWaitFD. After
	// a Signal the descriptor stays readable until a Wait, for example with timeout 0,
	// has returned.
	FD() (fd int, ok bool)
}
