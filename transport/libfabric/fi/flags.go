//go:build libfabric

package fi

// #include "shim.h"
import "C"

// Flags are bits for operations, bindings and calls that open objects. The man page of a call lists
// its flags. If the libfabric headers of the build lack a flag, the constant is zero.
type Flags uint64

// The flags of operations and of their completions (fi_endpoint(3),
// fi_msg(3), fi_tagged(3), fi_cq(3)).
const (
	FlagCompletion       Flags = C.FI_COMPLETION        // the operation writes a completion
	FlagInject           Flags = C.FI_INJECT            // the caller may reuse the buffer when the call returns
	FlagInjectComplete   Flags = C.FI_INJECT_COMPLETE   // the operation completes when the caller may reuse the buffer
	FlagTransmitComplete Flags = C.FI_TRANSMIT_COMPLETE // the operation completes when this node need not retransmit the data
	FlagDeliveryComplete Flags = C.FI_DELIVERY_COMPLETE // the operation completes when the data is in the peer's memory
	FlagCommitComplete   Flags = C.FI_COMMIT_COMPLETE   // the operation completes when the data is persistent at the peer
	FlagMatchComplete    Flags = C.FI_MATCH_COMPLETE    // the operation completes when a receive has matched the message
	FlagMultiRecv        Flags = C.FI_MULTI_RECV        // the receive is a multi-receive: its buffer takes several messages
	FlagRemoteCQData     Flags = C.FI_REMOTE_CQ_DATA    // the operation carries immediate data
	FlagMore             Flags = C.FI_MORE              // the caller posts more operations immediately after this one
	FlagPeek             Flags = C.FI_PEEK              // check for a message without receiving it
	// FlagClaim reserves the message if FlagPeek is set, too. Without FlagPeek it receives the
	// reserved message.
	FlagClaim   Flags = C.FI_CLAIM
	FlagDiscard Flags = C.FI_DISCARD // with FlagPeek or FlagClaim: discard the message
	// FlagTrigger starts the operation when a counter reaches a threshold. Posting calls of this
	// package refuse it, because a Context cannot name the counter.
	FlagTrigger      Flags = C.FI_TRIGGER
	FlagFence        Flags = C.FI_FENCE    // the operation starts after all earlier ones to the same peer have completed
	FlagAffinity     Flags = C.FI_AFFINITY // direct interrupts to the processor SignalingVector of CQAttr or EQAttr
	FlagPriority     Flags = C.WEFT_PRIORITY
	FlagMulticast    Flags = C.FI_MULTICAST
	FlagPeerTransfer Flags = C.FI_PEER_TRANSFER
	FlagPeer         Flags = C.FI_PEER

	FlagMsg         Flags = C.FI_MSG
	FlagTagged      Flags = C.FI_TAGGED
	FlagRMA         Flags = C.FI_RMA
	FlagAtomic      Flags = C.FI_ATOMIC
	FlagCollective  Flags = C.FI_COLLECTIVE
	FlagSend        Flags = C.FI_SEND
	FlagTransmit    Flags = C.FI_TRANSMIT // the same as FlagSend
	FlagRecv        Flags = C.FI_RECV
	FlagRead        Flags = C.FI_READ
	FlagWrite       Flags = C.FI_WRITE
	FlagRemoteRead  Flags = C.FI_REMOTE_READ
	FlagRemoteWrite Flags = C.FI_REMOTE_WRITE
)

// The flags of fi_getinfo(3).
const (
	FlagSource       Flags = C.FI_SOURCE         // node and service are the local address
	FlagNumericHost  Flags = C.FI_NUMERICHOST    // node is an address; do not query a name server
	FlagProvAttrOnly Flags = C.FI_PROV_ATTR_ONLY // return only the names and versions of providers
	FlagRescan       Flags = C.WEFT_RESCAN       // search for devices again (only 2.x)
)

// The flags of bindings (fi_endpoint(3), fi_domain(3)), of address vectors
// (fi_av(3)), of their sets (fi_av_set(3)) and of memory (fi_mr(3)).
const (
	// With FlagSelectiveCompletion, operations without FlagCompletion write no completion, unless
	// they fail.
	FlagSelectiveCompletion Flags = C.FI_SELECTIVE_COMPLETION
	FlagRegMR               Flags = C.WEFT_REG_MR // with Domain.BindEQ: registrations complete asynchronously

	FlagEvent         Flags = C.FI_EVENT       // insertions are asynchronous; the same bit as FlagCompletion
	FlagSymmetric     Flags = C.FI_SYMMETRIC   // all nodes have the same number of endpoints
	FlagSyncErr       Flags = C.FI_SYNC_ERR    // Insert reports an errno for each address that failed
	FlagAVUserID      Flags = C.FI_AV_USER_ID  // the caller chooses the Addr by which completions report a peer
	FlagAuthKey       Flags = C.WEFT_AUTH_KEY  // the Addr stands for an authorisation key (only 2.x)
	FlagFirewallAddr  Flags = C.WEFT_FIREWALL  // this side must not start the connection, because of a firewall (only 2.x)
	FlagUniverse      Flags = C.FI_UNIVERSE    // the set contains all addresses of the vector
	FlagBarrierSet    Flags = C.FI_BARRIER_SET // the set is for barriers; the flags below name other collectives
	FlagBroadcastSet  Flags = C.FI_BROADCAST_SET
	FlagAlltoallSet   Flags = C.FI_ALLTOALL_SET
	FlagAllreduceSet  Flags = C.FI_ALLREDUCE_SET
	FlagAllgatherSet  Flags = C.FI_ALLGATHER_SET
	FlagRedScatterSet Flags = C.FI_REDUCE_SCATTER_SET
	FlagReduceSet     Flags = C.FI_REDUCE_SET
	FlagScatterSet    Flags = C.FI_SCATTER_SET
	FlagGatherSet     Flags = C.FI_GATHER_SET

	FlagRMAEvent       Flags = C.FI_RMA_EVENT // the region can be bound to a counter, which counts peers' accesses
	FlagRMAPmem        Flags = C.FI_RMA_PMEM  // the region is persistent memory
	FlagHMEMHostAlloc  Flags = C.FI_HMEM_HOST_ALLOC
	FlagHMEMDeviceOnly Flags = C.FI_HMEM_DEVICE_ONLY
	FlagMRDMABuf       Flags = C.WEFT_MR_DMABUF     // the region is a dma-buf (only 2.x)
	FlagMRSingleUse    Flags = C.WEFT_MR_SINGLE_USE // the region is for one operation (only 2.x)
)

// Caps are the capabilities of an endpoint or a domain (fi_getinfo(3)). If the libfabric headers of
// the build lack a capability, the constant is zero.
type Caps uint64

// The capabilities.
const (
	CapMsg         Caps = C.FI_MSG
	CapRMA         Caps = C.FI_RMA
	CapTagged      Caps = C.FI_TAGGED
	CapAtomic      Caps = C.FI_ATOMIC
	CapMulticast   Caps = C.FI_MULTICAST
	CapCollective  Caps = C.FI_COLLECTIVE
	CapRead        Caps = C.FI_READ
	CapWrite       Caps = C.FI_WRITE
	CapRecv        Caps = C.FI_RECV
	CapSend        Caps = C.FI_SEND
	CapRemoteRead  Caps = C.FI_REMOTE_READ
	CapRemoteWrite Caps = C.FI_REMOTE_WRITE

	CapMultiRecv    Caps = C.FI_MULTI_RECV
	CapTrigger      Caps = C.FI_TRIGGER
	CapFence        Caps = C.FI_FENCE
	CapAVUserID     Caps = C.FI_AV_USER_ID
	CapPeer         Caps = C.FI_PEER
	CapHMEM         Caps = C.FI_HMEM
	CapVariableMsg  Caps = C.WEFT_VARIABLE_MSG // only 1.x
	CapRMAPmem      Caps = C.FI_RMA_PMEM
	CapSourceErr    Caps = C.FI_SOURCE_ERR
	CapLocalComm    Caps = C.FI_LOCAL_COMM
	CapRemoteComm   Caps = C.FI_REMOTE_COMM
	CapSharedAV     Caps = C.FI_SHARED_AV
	CapRMAEvent     Caps = C.FI_RMA_EVENT
	CapSource       Caps = C.FI_SOURCE
	CapNamedRxCtx   Caps = C.FI_NAMED_RX_CTX
	CapDirectedRecv Caps = C.FI_DIRECTED_RECV

	CapXPU                Caps = C.WEFT_XPU                  // only 2.x
	CapTaggedDirectedRecv Caps = C.WEFT_TAGGED_DIRECTED_RECV // only 2.x
	CapTaggedMultiRecv    Caps = C.WEFT_TAGGED_MULTI_RECV    // only 2.x
	CapExactDirectedRecv  Caps = C.WEFT_EXACT_DIRECTED_RECV  // only 2.x
)

// Mode is what a provider requires of the application; in hints, what the
// application supports (fi_getinfo(3)).
type Mode uint64

// The mode bits.
const (
	ModeContext   Mode = C.FI_CONTEXT    // each operation's context points to 32 bytes for the provider
	ModeContext2  Mode = C.FI_CONTEXT2   // each operation's context points to 64 bytes for the provider
	ModeMsgPrefix Mode = C.FI_MSG_PREFIX // each message buffer begins with space for the provider
	// ModeAsyncIov: the arrays that list an operation's buffers or segments must not change until
	// the operation completes.
	ModeAsyncIov        Mode = C.FI_ASYNC_IOV
	ModeRxCQData        Mode = C.FI_RX_CQ_DATA // a write with immediate data consumes a receive of the peer
	ModeLocalMR         Mode = C.WEFT_LOCAL_MR // what MRLocal means, for programs written for libfabric before 1.5
	ModeNotifyFlagsOnly Mode = C.WEFT_NOTIFY_FLAGS_ONLY
	ModeRestrictedComp  Mode = C.WEFT_RESTRICTED_COMP
	ModeBufferedRecv    Mode = C.WEFT_BUFFERED_RECV
	ModePeerTransfer    Mode = C.FI_PEER_TRANSFER
)

// MRMode is what a provider requires of registered memory; in hints, what the
// application supports (fi_mr(3)).
type MRMode int

// The bits of MRMode. Without any, only remote access needs registered memory, peers
// use offsets as addresses, and the application chooses the key.
const (
	MRUnspec MRMode = C.WEFT_MR_UNSPEC
	// MRBasic is for programs written for libfabric before 1.5. It means MRVirtAddr, MRAllocated
	// and MRProvKey.
	MRBasic MRMode = C.WEFT_MR_BASIC
	// MRScalable is for programs written for libfabric before 1.5. It means none of the bits below.
	MRScalable   MRMode = C.WEFT_MR_SCALABLE
	MRLocal      MRMode = C.FI_MR_LOCAL      // local buffers need a descriptor, too
	MRRaw        MRMode = C.FI_MR_RAW        // keys are longer than 64 bits
	MRVirtAddr   MRMode = C.FI_MR_VIRT_ADDR  // remote addresses are virtual addresses, not offsets
	MRAllocated  MRMode = C.FI_MR_ALLOCATED  // the memory must be backed by pages when it is registered
	MRProvKey    MRMode = C.FI_MR_PROV_KEY   // the provider chooses the keys
	MRMMUNotify  MRMode = C.FI_MR_MMU_NOTIFY // the application reports changes of page tables ([MR.Refresh])
	MRRMAEvent   MRMode = C.FI_MR_RMA_EVENT  // a region with FlagRMAEvent must be bound to a counter and then enabled
	MREndpoint   MRMode = C.FI_MR_ENDPOINT   // a region must be bound to an endpoint and then enabled
	MRHMEM       MRMode = C.FI_MR_HMEM       // buffers in device memory need a descriptor
	MRCollective MRMode = C.FI_MR_COLLECTIVE // buffers of collective operations need a descriptor
	MRXPUDesc    MRMode = C.WEFT_MR_XPU_DESC // only 2.x
)

// Access is the set of operations that may use registered memory (fi_mr(3)).
type Access uint64

// The kinds of access.
const (
	AccessSend        Access = C.FI_SEND
	AccessRecv        Access = C.FI_RECV
	AccessRead        Access = C.FI_READ
	AccessWrite       Access = C.FI_WRITE
	AccessRemoteRead  Access = C.FI_REMOTE_READ
	AccessRemoteWrite Access = C.FI_REMOTE_WRITE
	AccessCollective  Access = C.FI_COLLECTIVE
)

// MsgOrder says which operations stay in order (fi_endpoint(3)). OrderSAS, send after
// send, keeps messages in order.
type MsgOrder uint64

// The orders, named as in C by two operations: OrderWAR, for example, keeps a write after an
// earlier read in order.
const (
	OrderNone      MsgOrder = 0
	OrderRAR       MsgOrder = C.FI_ORDER_RAR
	OrderRAW       MsgOrder = C.FI_ORDER_RAW
	OrderRAS       MsgOrder = C.FI_ORDER_RAS
	OrderWAR       MsgOrder = C.FI_ORDER_WAR
	OrderWAW       MsgOrder = C.FI_ORDER_WAW
	OrderWAS       MsgOrder = C.FI_ORDER_WAS
	OrderSAR       MsgOrder = C.FI_ORDER_SAR
	OrderSAW       MsgOrder = C.FI_ORDER_SAW
	OrderSAS       MsgOrder = C.FI_ORDER_SAS
	OrderRMARAR    MsgOrder = C.FI_ORDER_RMA_RAR
	OrderRMARAW    MsgOrder = C.FI_ORDER_RMA_RAW
	OrderRMAWAR    MsgOrder = C.FI_ORDER_RMA_WAR
	OrderRMAWAW    MsgOrder = C.FI_ORDER_RMA_WAW
	OrderAtomicRAR MsgOrder = C.FI_ORDER_ATOMIC_RAR
	OrderAtomicRAW MsgOrder = C.FI_ORDER_ATOMIC_RAW
	OrderAtomicWAR MsgOrder = C.FI_ORDER_ATOMIC_WAR
	OrderAtomicWAW MsgOrder = C.FI_ORDER_ATOMIC_WAW
)

// CompOrder is the order in which the provider writes completions (fi_endpoint(3)).
type CompOrder uint64

// The orders of completions.
const (
	CompOrderNone   CompOrder = 0
	CompOrderStrict CompOrder = C.WEFT_ORDER_STRICT // completions are in the order in which the operations were posted
	CompOrderData   CompOrder = C.WEFT_ORDER_DATA   // the bytes of a message arrive in ascending order
)
