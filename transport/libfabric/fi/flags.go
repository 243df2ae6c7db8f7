//go:build libfabric

package fi

// #include "shim.h"
import "C"

// Flags are bits for operations, bindings and calls that open objects. The man page of a call lists
// its flags. A flag that the headers in use do not have is zero.
type Flags uint64

// The flags of operations and of their completions (fi_endpoint(3),
// fi_msg(3), fi_tagged(3), fi_cq(3)).
const (
	FlagCompletion       Flags = C.FI_COMPLETION        // write a completion for the operation
	FlagInject           Flags = C.FI_INJECT            // the buffer is free when the call returns
	FlagInjectComplete   Flags = C.FI_INJECT_COMPLETE   // complete when the buffer is free
	FlagTransmitComplete Flags = C.FI_TRANSMIT_COMPLETE // complete when the local node need not retransmit it
	FlagDeliveryComplete Flags = C.FI_DELIVERY_COMPLETE // complete when it is in the peer's memory
	FlagCommitComplete   Flags = C.FI_COMMIT_COMPLETE   // complete when it is persistent at the peer
	FlagMatchComplete    Flags = C.FI_MATCH_COMPLETE    // complete when a receive has matched it
	FlagMultiRecv        Flags = C.FI_MULTI_RECV        // the buffer takes several messages
	FlagRemoteCQData     Flags = C.FI_REMOTE_CQ_DATA    // the operation carries immediate data
	FlagMore             Flags = C.FI_MORE              // more operations follow immediately
	FlagPeek             Flags = C.FI_PEEK              // check for a message without receiving it
	FlagClaim            Flags = C.FI_CLAIM             // with FlagPeek: reserve the message; without: receive it
	FlagDiscard          Flags = C.FI_DISCARD           // discard the message
	FlagTrigger          Flags = C.FI_TRIGGER           // start at a counter's threshold; posting calls refuse it, because a Context cannot name the counter
	FlagFence            Flags = C.FI_FENCE             // start after all earlier operations to the same peer
	FlagAffinity         Flags = C.FI_AFFINITY          // use the signaling vector
	FlagPriority         Flags = C.WEFT_PRIORITY
	FlagMulticast        Flags = C.FI_MULTICAST
	FlagPeerTransfer     Flags = C.FI_PEER_TRANSFER
	FlagPeer             Flags = C.FI_PEER

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
	FlagProvAttrOnly Flags = C.FI_PROV_ATTR_ONLY // list only the providers
	FlagRescan       Flags = C.WEFT_RESCAN       // search for devices again (2.x)
)

// The flags of bindings (fi_endpoint(3), fi_domain(3)), of address vectors
// (fi_av(3)), of their sets (fi_av_set(3)) and of memory (fi_mr(3)).
const (
	FlagSelectiveCompletion Flags = C.FI_SELECTIVE_COMPLETION // only operations with FlagCompletion write a completion
	FlagRegMR               Flags = C.WEFT_REG_MR             // registrations complete asynchronously

	FlagEvent         Flags = C.FI_EVENT         // insert asynchronously; the same bit as FlagCompletion
	FlagSymmetric     Flags = C.FI_SYMMETRIC     // all nodes have the same number of endpoints
	FlagSyncErr       Flags = C.FI_SYNC_ERR      // return an errno for each address
	FlagAVUserID      Flags = C.FI_AV_USER_ID    // the caller chooses the addresses in completions
	FlagAuthKey       Flags = C.WEFT_AUTH_KEY    // the addresses are authorisation keys (2.x)
	FlagFirewallAddr  Flags = C.WEFT_FIREWALL    // the peer must start the connection (2.x)
	FlagUniverse      Flags = C.FI_UNIVERSE      // the set of all addresses
	FlagBarrierSet    Flags = C.FI_BARRIER_SET   // the set is for barriers; the next ones are alike
	FlagBroadcastSet  Flags = C.FI_BROADCAST_SET //
	FlagAlltoallSet   Flags = C.FI_ALLTOALL_SET
	FlagAllreduceSet  Flags = C.FI_ALLREDUCE_SET
	FlagAllgatherSet  Flags = C.FI_ALLGATHER_SET
	FlagRedScatterSet Flags = C.FI_REDUCE_SCATTER_SET
	FlagReduceSet     Flags = C.FI_REDUCE_SET
	FlagScatterSet    Flags = C.FI_SCATTER_SET
	FlagGatherSet     Flags = C.FI_GATHER_SET

	FlagRMAEvent       Flags = C.FI_RMA_EVENT // count peers' accesses to the memory
	FlagRMAPmem        Flags = C.FI_RMA_PMEM  // the memory is persistent
	FlagHMEMHostAlloc  Flags = C.FI_HMEM_HOST_ALLOC
	FlagHMEMDeviceOnly Flags = C.FI_HMEM_DEVICE_ONLY
	FlagMRDMABuf       Flags = C.WEFT_MR_DMABUF     // the region is a dma-buf (2.x)
	FlagMRSingleUse    Flags = C.WEFT_MR_SINGLE_USE // (2.x)
)

// Caps are the capabilities of an endpoint or a domain (fi_getinfo(3)). One
// that the headers in use do not have is zero.
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
	CapVariableMsg  Caps = C.WEFT_VARIABLE_MSG // 1.x
	CapRMAPmem      Caps = C.FI_RMA_PMEM
	CapSourceErr    Caps = C.FI_SOURCE_ERR
	CapLocalComm    Caps = C.FI_LOCAL_COMM
	CapRemoteComm   Caps = C.FI_REMOTE_COMM
	CapSharedAV     Caps = C.FI_SHARED_AV
	CapRMAEvent     Caps = C.FI_RMA_EVENT
	CapSource       Caps = C.FI_SOURCE
	CapNamedRxCtx   Caps = C.FI_NAMED_RX_CTX
	CapDirectedRecv Caps = C.FI_DIRECTED_RECV

	CapXPU                Caps = C.WEFT_XPU                  // 2.x
	CapTaggedDirectedRecv Caps = C.WEFT_TAGGED_DIRECTED_RECV // 2.x
	CapTaggedMultiRecv    Caps = C.WEFT_TAGGED_MULTI_RECV    // 2.x
	CapExactDirectedRecv  Caps = C.WEFT_EXACT_DIRECTED_RECV  // 2.x
)

// Mode is what a provider requires of the application; in hints, what the
// application supports (fi_getinfo(3)).
type Mode uint64

// The mode bits.
const (
	ModeContext         Mode = C.FI_CONTEXT    // each operation's context points to 32 bytes for the provider
	ModeContext2        Mode = C.FI_CONTEXT2   // each operation's context points to 64 bytes for the provider
	ModeMsgPrefix       Mode = C.FI_MSG_PREFIX // space in front of each message
	ModeAsyncIov        Mode = C.FI_ASYNC_IOV  // iovecs live as long as the operation
	ModeRxCQData        Mode = C.FI_RX_CQ_DATA // immediate data consumes a posted receive
	ModeLocalMR         Mode = C.WEFT_LOCAL_MR // before 1.5; now MRLocal
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
	MRUnspec     MRMode = C.WEFT_MR_UNSPEC
	MRBasic      MRMode = C.WEFT_MR_BASIC    // before 1.5: VirtAddr, Allocated and ProvKey
	MRScalable   MRMode = C.WEFT_MR_SCALABLE // before 1.5: none of the bits
	MRLocal      MRMode = C.FI_MR_LOCAL      // local buffers need a descriptor, too
	MRRaw        MRMode = C.FI_MR_RAW        // keys are longer than 64 bits
	MRVirtAddr   MRMode = C.FI_MR_VIRT_ADDR  // remote addresses are virtual addresses, not offsets
	MRAllocated  MRMode = C.FI_MR_ALLOCATED  // pages must back the memory when it is registered
	MRProvKey    MRMode = C.FI_MR_PROV_KEY   // the provider chooses the key
	MRMMUNotify  MRMode = C.FI_MR_MMU_NOTIFY // the application reports changed page tables
	MRRMAEvent   MRMode = C.FI_MR_RMA_EVENT  // with FlagRMAEvent: bind a counter, then enable the region
	MREndpoint   MRMode = C.FI_MR_ENDPOINT   // bind the region to an endpoint, then enable it
	MRHMEM       MRMode = C.FI_MR_HMEM       // device memory needs a descriptor
	MRCollective MRMode = C.FI_MR_COLLECTIVE // buffers of collectives need a descriptor
	MRXPUDesc    MRMode = C.WEFT_MR_XPU_DESC // 2.x
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

// The orders, named as in C: read, write or send after read, write or send.
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
	CompOrderStrict CompOrder = C.WEFT_ORDER_STRICT // in the order of the operations
	CompOrderData   CompOrder = C.WEFT_ORDER_DATA   // bytes arrive in ascending order
)
