//go:build libfabric

package fi

// #include "shim.h"
import "C"

import "math"

// SharedContext is a value of TxCtxCnt and RxCtxCnt of an EPAttr. It requests an endpoint that uses
// a shared transmit or receive context (FI_SHARED_CONTEXT).
const SharedContext = math.MaxInt

// Threading says which calls on a domain's objects may run concurrently (fi_domain(3)).
type Threading int

// The threading models.
const (
	ThreadUnspec     Threading = C.FI_THREAD_UNSPEC
	ThreadSafe       Threading = C.FI_THREAD_SAFE       // all calls may run concurrently
	ThreadFID        Threading = C.FI_THREAD_FID        // one call at a time per object
	ThreadDomain     Threading = C.FI_THREAD_DOMAIN     // one call at a time per domain and its objects
	ThreadCompletion Threading = C.FI_THREAD_COMPLETION // one call at a time per completion queue and the objects bound to it
	ThreadEndpoint   Threading = C.FI_THREAD_ENDPOINT   // one call at a time per endpoint
)

// Progress says whether the provider or the application drives operations forward (fi_domain(3)).
type Progress int

// The models of progress.
const (
	ProgressUnspec         Progress = C.FI_PROGRESS_UNSPEC
	ProgressAuto           Progress = C.FI_PROGRESS_AUTO   // the provider drives progress
	ProgressManual         Progress = C.FI_PROGRESS_MANUAL // the application drives progress by reading queues and counters
	ProgressControlUnified Progress = C.WEFT_PROGRESS_CONTROL_UNIFIED
)

// ResourceMgmt says whether a provider protects its queues against overruns
// (fi_domain(3)).
type ResourceMgmt int

// The kinds of resource management.
const (
	RMUnspec   ResourceMgmt = C.FI_RM_UNSPEC
	RMDisabled ResourceMgmt = C.FI_RM_DISABLED
	RMEnabled  ResourceMgmt = C.FI_RM_ENABLED
)

// AVType says what values an address vector returns as the Addr of its entries (fi_av(3)).
type AVType int

// The types of address vectors.
const (
	AVUnspec AVType = C.FI_AV_UNSPEC
	AVMap    AVType = C.FI_AV_MAP   // values that the provider chooses
	AVTable  AVType = C.FI_AV_TABLE // indices in the order of insertion
)

// EPType is a type of endpoint (fi_endpoint(3)).
type EPType int

// The types of endpoints.
const (
	EPUnspec EPType = C.FI_EP_UNSPEC
	EPMsg    EPType = C.FI_EP_MSG   // connected endpoint with reliable messages
	EPDgram  EPType = C.FI_EP_DGRAM // unconnected endpoint with unreliable datagrams
	EPRDM    EPType = C.FI_EP_RDM   // unconnected endpoint with reliable messages
)

// AddrFormat is the format of the addresses of an Info (fi_getinfo(3)).
type AddrFormat uint32

// The address formats.
const (
	FormatUnspec AddrFormat = C.FI_FORMAT_UNSPEC
	Sockaddr     AddrFormat = C.FI_SOCKADDR
	SockaddrIn   AddrFormat = C.FI_SOCKADDR_IN
	SockaddrIn6  AddrFormat = C.FI_SOCKADDR_IN6
	SockaddrIB   AddrFormat = C.FI_SOCKADDR_IB
	SockaddrIP   AddrFormat = C.WEFT_SOCKADDR_IP // an IPv4 or IPv6 socket address; only 2.x
	AddrPSMX     AddrFormat = C.FI_ADDR_PSMX
	AddrGNI      AddrFormat = C.FI_ADDR_GNI
	AddrBGQ      AddrFormat = C.FI_ADDR_BGQ
	AddrMLX      AddrFormat = C.FI_ADDR_MLX
	AddrStr      AddrFormat = C.FI_ADDR_STR
	AddrPSMX2    AddrFormat = C.FI_ADDR_PSMX2
	AddrIBUD     AddrFormat = C.FI_ADDR_IB_UD
	AddrEFA      AddrFormat = C.FI_ADDR_EFA
	AddrPSMX3    AddrFormat = C.FI_ADDR_PSMX3
	AddrOPX      AddrFormat = C.FI_ADDR_OPX
	AddrCXI      AddrFormat = C.FI_ADDR_CXI
	AddrUCX      AddrFormat = C.WEFT_ADDR_UCX // only 2.x
)

// Protocol is the wire protocol of an endpoint (fi_endpoint(3)). Providers with the same protocol
// can communicate.
type Protocol uint32

// The protocols.
const (
	ProtoUnspec        Protocol = C.FI_PROTO_UNSPEC
	ProtoRDMACMIBRC    Protocol = C.FI_PROTO_RDMA_CM_IB_RC
	ProtoIWARP         Protocol = C.FI_PROTO_IWARP
	ProtoIBUD          Protocol = C.FI_PROTO_IB_UD
	ProtoPSMX          Protocol = C.FI_PROTO_PSMX
	ProtoUDP           Protocol = C.FI_PROTO_UDP
	ProtoSockTCP       Protocol = C.FI_PROTO_SOCK_TCP
	ProtoMXM           Protocol = C.FI_PROTO_MXM
	ProtoIWARPRDM      Protocol = C.FI_PROTO_IWARP_RDM
	ProtoIBRDM         Protocol = C.FI_PROTO_IB_RDM
	ProtoGNI           Protocol = C.FI_PROTO_GNI
	ProtoRXM           Protocol = C.FI_PROTO_RXM
	ProtoRXD           Protocol = C.FI_PROTO_RXD
	ProtoMLX           Protocol = C.FI_PROTO_MLX
	ProtoNetworkDirect Protocol = C.FI_PROTO_NETWORKDIRECT
	ProtoPSMX2         Protocol = C.FI_PROTO_PSMX2
	ProtoSHM           Protocol = C.FI_PROTO_SHM
	ProtoMRail         Protocol = C.FI_PROTO_MRAIL
	ProtoRStream       Protocol = C.FI_PROTO_RSTREAM
	ProtoRDMACMIBXRC   Protocol = C.FI_PROTO_RDMA_CM_IB_XRC
	ProtoEFA           Protocol = C.FI_PROTO_EFA
	ProtoPSMX3         Protocol = C.FI_PROTO_PSMX3
	ProtoRXMTCP        Protocol = C.FI_PROTO_RXM_TCP
	ProtoOPX           Protocol = C.FI_PROTO_OPX
	ProtoCXI           Protocol = C.FI_PROTO_CXI
	ProtoXNet          Protocol = C.FI_PROTO_XNET

	// The protocols of 2.x are given by number, because older headers lack their names.

	ProtoColl   Protocol = ProtoXNet + 1
	ProtoUCX    Protocol = ProtoXNet + 2
	ProtoSM2    Protocol = ProtoXNet + 3
	ProtoCXIRNR Protocol = ProtoXNet + 4
	ProtoLPP    Protocol = ProtoXNet + 5
	ProtoLNX    Protocol = ProtoXNet + 6
)

// TClass is a traffic class (fi_endpoint(3)).
type TClass uint32

// The traffic classes. MakeDSCP returns others.
const (
	TClassUnspec          TClass = C.FI_TC_UNSPEC
	TClassBestEffort      TClass = C.FI_TC_BEST_EFFORT
	TClassLowLatency      TClass = C.FI_TC_LOW_LATENCY
	TClassDedicatedAccess TClass = C.FI_TC_DEDICATED_ACCESS
	TClassBulkData        TClass = C.FI_TC_BULK_DATA
	TClassScavenger       TClass = C.FI_TC_SCAVENGER
	TClassNetworkCtrl     TClass = C.FI_TC_NETWORK_CTRL
)

// MakeDSCP returns the traffic class of a differentiated services code point (fi_tc_dscp_set).
func MakeDSCP(dscp uint8) TClass { return TClass(C.fi_tc_dscp_set(C.uint8_t(dscp))) }

// DSCP returns the differentiated services code point of the class, 0 if it has none
// (fi_tc_dscp_get).
func (t TClass) DSCP() uint8 { return uint8(C.fi_tc_dscp_get(C.uint32_t(t))) }

// WaitObj says how a thread can wait on a queue or a counter (fi_eq(3), fi_cq(3)).
type WaitObj int

// The kinds of waiting. For a counter, SRead in these comments means [Counter.Wait].
const (
	WaitNone      WaitObj = C.FI_WAIT_NONE       // a thread cannot wait
	WaitUnspec    WaitObj = C.FI_WAIT_UNSPEC     // a thread can wait only by calling SRead
	WaitSet       WaitObj = C.FI_WAIT_SET        // by a wait set, which this package does not support
	WaitFD        WaitObj = C.FI_WAIT_FD         // by SRead, or on a file descriptor
	WaitMutexCond WaitObj = C.FI_WAIT_MUTEX_COND // by SRead, or on a pthread condition
	WaitYield     WaitObj = C.FI_WAIT_YIELD      // by SRead, which polls and yields the processor
	WaitPollFD    WaitObj = C.FI_WAIT_POLLFD     // by SRead, or on a set of file descriptors
)

// CQFormat is the format of the entries of a completion queue (fi_cq(3)).
type CQFormat int

// The formats. Each has the fields of the one before it and those in its comment.
const (
	CQUnspec  CQFormat = C.FI_CQ_FORMAT_UNSPEC
	CQContext CQFormat = C.FI_CQ_FORMAT_CONTEXT // context of the operation
	CQMsg     CQFormat = C.FI_CQ_FORMAT_MSG     // flags and length of the message
	CQData    CQFormat = C.FI_CQ_FORMAT_DATA    // buffer address and immediate data
	CQTagged  CQFormat = C.FI_CQ_FORMAT_TAGGED  // tag of the message
)

// HMEMIface is the interface of the device that memory belongs to, for example CUDA (fi_mr(3)).
type HMEMIface int

// The kinds of memory.
const (
	HMEMSystem    HMEMIface = C.FI_HMEM_SYSTEM
	HMEMCUDA      HMEMIface = C.FI_HMEM_CUDA
	HMEMROCR      HMEMIface = C.FI_HMEM_ROCR
	HMEMZE        HMEMIface = C.FI_HMEM_ZE
	HMEMNeuron    HMEMIface = C.FI_HMEM_NEURON
	HMEMSynapseAI HMEMIface = C.FI_HMEM_SYNAPSEAI
)

// CollectiveOp is a collective operation of libfabric (fi_collective(3)).
type CollectiveOp int

// The collective operations.
const (
	CollBarrier       CollectiveOp = C.FI_BARRIER
	CollBroadcast     CollectiveOp = C.FI_BROADCAST
	CollAlltoall      CollectiveOp = C.FI_ALLTOALL
	CollAllreduce     CollectiveOp = C.FI_ALLREDUCE
	CollAllgather     CollectiveOp = C.FI_ALLGATHER
	CollReduceScatter CollectiveOp = C.FI_REDUCE_SCATTER
	CollReduce        CollectiveOp = C.FI_REDUCE
	CollScatter       CollectiveOp = C.FI_SCATTER
	CollGather        CollectiveOp = C.FI_GATHER
)

// EventType is the type of an EQEvent (fi_eq(3), fi_cm(3)).
type EventType uint32

// The types of events.
const (
	EventNotify       EventType = C.FI_NOTIFY
	EventConnReq      EventType = C.FI_CONNREQ       // a peer requests a connection to a passive endpoint
	EventConnected    EventType = C.FI_CONNECTED     // an endpoint has been connected
	EventShutdown     EventType = C.FI_SHUTDOWN      // an endpoint's connection has ended
	EventMRComplete   EventType = C.FI_MR_COMPLETE   // a memory region has been registered
	EventAVComplete   EventType = C.FI_AV_COMPLETE   // an insertion has ended; Data is the number of inserted addresses
	EventJoinComplete EventType = C.FI_JOIN_COMPLETE // an endpoint has joined a multicast group
)
