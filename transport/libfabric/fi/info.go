//go:build libfabric

package fi

// #include "shim.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Info describes one way to communicate: a provider, a fabric, a domain and an endpoint that belong
// together (fi_getinfo(3)). As hints, it has the caller's requirements; zero fields require
// nothing.
//
// The fields are those of struct fi_info. The caller may change them before it passes the Info to a
// call. If the C structure of a newer library has fields that Info lacks, the Info keeps their
// values. math.MaxInt as a size or count means no limit (SIZE_MAX in C).
type Info struct {
	Caps       Caps
	Mode       Mode
	AddrFormat AddrFormat
	SrcAddr    []byte // in AddrFormat, as are all addresses of the domain
	DestAddr   []byte

	Tx     TxAttr
	Rx     RxAttr
	EP     EPAttr
	Domain DomainAttr
	Fabric FabricAttr
	NIC    *NIC // nil: the provider names no device; ignored in hints

	// request is the connection request that the Info belongs to, or nil. Copies of the Info share
	// it.
	request *request
	// raw is the C structure that the Info was created from. It is nil if the program has made the
	// Info as a struct value.
	raw *rawInfo
}

// TxAttr has the attributes of a transmit context (struct fi_tx_attr, fi_endpoint(3)).
type TxAttr struct {
	Caps        Caps
	Mode        Mode
	OpFlags     Flags // default flags of transmit operations, for calls without a flags argument
	MsgOrder    MsgOrder
	CompOrder   CompOrder
	InjectSize  int // size of the largest message that can be injected, in bytes
	Size        int // how many operations may be in flight
	IovLimit    int // how many local buffers an operation may have
	RMAIovLimit int // how many segments of remote memory an operation may have
	TClass      TClass
}

// RxAttr has the attributes of a receive context (struct fi_rx_attr, fi_endpoint(3)).
type RxAttr struct {
	Caps              Caps
	Mode              Mode
	OpFlags           Flags // default flags of receives, for calls without a flags argument
	MsgOrder          MsgOrder
	CompOrder         CompOrder
	TotalBufferedRecv int // size of the provider's buffers for unexpected messages, in bytes; obsolete
	Size              int // how many receives may be posted
	IovLimit          int // how many buffers a receive may have
}

// EPAttr describes an endpoint (struct fi_ep_attr, fi_endpoint(3)).
type EPAttr struct {
	Type            EPType
	Protocol        Protocol
	ProtocolVersion uint32
	MaxMsgSize      int // largest message in bytes
	// MsgPrefixSize is the number of bytes that every message buffer must have in front of the
	// message, with ModeMsgPrefix.
	MsgPrefixSize   int
	MaxOrderRAWSize int // largest operation for which OrderRAW holds, in bytes
	MaxOrderWARSize int // largest operation for which OrderWAR holds, in bytes
	MaxOrderWAWSize int // largest operation for which OrderWAW holds, in bytes
	MemTagFormat    uint64
	TxCtxCnt        int // number of transmit contexts; SharedContext: the endpoint uses a shared one
	RxCtxCnt        int // number of receive contexts; SharedContext: the endpoint uses a shared one
	AuthKey         []byte
}

// DomainAttr describes a domain (struct fi_domain_attr, fi_domain(3)). The fields named *Cnt and
// Max* without a comment are limits as in C. A version in parentheses is the first version of
// libfabric that has the field.
type DomainAttr struct {
	Domain    *Domain // in hints: accept only this open domain
	Name      string
	Threading Threading
	// ControlProgress says what drives connections, registrations and insertions. In 2.x the field
	// is fi_domain_attr.progress.
	ControlProgress Progress
	DataProgress    Progress
	ResourceMgmt    ResourceMgmt
	AVType          AVType
	MRMode          MRMode
	MRKeySize       int // size of a memory key in bytes
	CQDataSize      int // size of immediate data in bytes
	CQCnt           int // recommended number of completion queues
	EPCnt           int
	TxCtxCnt        int
	RxCtxCnt        int
	MaxEPTxCtx      int // how many transmit contexts one scalable endpoint may have
	MaxEPRxCtx      int
	MaxEPStxCtx     int // how many endpoints may share one transmit context
	MaxEPSrxCtx     int
	CntrCnt         int
	MRIovLimit      int // how many buffers one registration may have
	Caps            Caps
	Mode            Mode
	AuthKey         []byte
	AuthKeyByAV     bool // FI_AV_AUTH_KEY: the authorisation keys come from the address vector (2.x)
	MaxErrData      int  // how many bytes of data the provider may report about an error
	MRCnt           int
	TClass          TClass
	MaxEPAuthKey    int    // how many authorisation keys an endpoint may have (1.20)
	MaxGroupID      uint32 // largest id of a peer group; 0: no groups (2.0)
	MaxCntrValue    uint64 // largest value of a counter; 0: unknown (2.5)
	MaxErrCntrValue uint64 // largest error value of a counter; 0: unknown (2.5)
	MaxXPUCtxCnt    int    // how many XPU contexts the domain may have (2.6)
}

// FabricAttr names a fabric and its provider (struct fi_fabric_attr,
// fi_fabric(3)).
type FabricAttr struct {
	Fabric      *Fabric // in hints: accept only this open fabric
	Name        string
	ProvName    string // for example "tcp;ofi_rxm"; in hints "^sockets" means any but sockets
	ProvVersion Version
	APIVersion  Version // version of libfabric's interface that the fabric is opened with
}

// rawInfo owns the C structure that an Info was created from. The structure has the values of the
// fields that Info lacks; so dup copies the structure and then writes the fields of Info to the
// copy.
type rawInfo struct{ c *C.struct_fi_info }

// own takes ownership of a C structure, which a cleanup frees when nothing refers to the rawInfo
// any more.
func own(c *C.struct_fi_info) *rawInfo {
	r := &rawInfo{c}
	runtime.AddCleanup(r, func(c *C.struct_fi_info) { C.fi_freeinfo(c) }, c)
	return r
}

// NewInfo returns an empty Info, for hints (fi_allocinfo). It panics if there is no memory.
func NewInfo() *Info {
	c := C.fi_allocinfo()
	if c == nil {
		panic("fi_allocinfo: out of memory")
	}
	return takeInfo(c)
}

// takeInfo converts c, which the caller has removed from any list, to an Info, which owns c from
// then on. It clears the references to an open fabric and domain, because no code needs them, and
// they would dangle after the objects were closed. It also clears the handle of a connection
// request, which the caller keeps in Info.request.
func takeInfo(c *C.struct_fi_info) *Info {
	c.next = nil
	if c.fabric_attr != nil {
		c.fabric_attr.fabric = nil
	}
	if c.domain_attr != nil {
		c.domain_attr.domain = nil
	}
	c.handle = nil
	i := readInfo(c)
	i.raw = own(c)
	return i
}

// GetInfo returns the available ways to communicate, the best first (fi_getinfo). version is the
// version of the interface that the caller was written for, usually HeaderVersion. node and service
// are the local address with FlagSource, else the peer's; either may be empty. If hints is nil,
// GetInfo returns everything. If nothing meets the hints, the error is ErrNoData.
//
// The first call may be slow: it loads the providers, which search for devices.
func GetInfo(version Version, node, service string, flags Flags, hints *Info) ([]*Info, error) {
	cnode, free := optional(node)
	defer free()
	cservice, free := optional(service)
	defer free()
	loaded.Store(true)
	var (
		list *C.struct_fi_info
		rc   C.int
	)
	get := func(h *C.struct_fi_info) {
		rc = C.fi_getinfo(C.uint32_t(version), cnode, cservice, C.uint64_t(flags), h, &list)
	}
	if hints == nil {
		get(nil)
	} else if err := hints.withC(get); err != nil {
		return nil, err
	}
	if err := check("fi_getinfo", rc); err != nil {
		return nil, err
	}
	var infos []*Info
	for list != nil {
		next := list.next
		requested := hints != nil && list.handle != nil && unsafe.Pointer(list.handle) == hints.request.fid()
		i := takeInfo(list)
		if requested {
			i.request = hints.request
		}
		infos = append(infos, i)
		list = next
	}
	return infos, nil
}

// Dup returns a copy of i (fi_dupinfo). The two share only the connection request, if there is one.
// Dup panics if there is no memory.
func (i *Info) Dup() *Info {
	c, err := i.dup()
	if err != nil {
		panic(err)
	}
	dup := takeInfo(c)
	if i != nil {
		dup.request = i.request
	}
	return dup
}

// String returns all fields in many lines, as fi_info -v prints them (fi_tostr).
func (i *Info) String() string {
	if i == nil {
		return "<nil>"
	}
	const size = 16 << 10
	buf := (*C.char)(C.calloc(1, size))
	defer C.free(unsafe.Pointer(buf))
	if err := i.withC(func(c *C.struct_fi_info) {
		C.fi_tostr_r(buf, size, unsafe.Pointer(c), C.FI_TYPE_INFO)
	}); err != nil {
		return err.Error()
	}
	return C.GoString(buf)
}

// withC calls f with a C structure that has the fields of i, and then frees the structure. It
// returns an error only if there is no memory.
func (i *Info) withC(f func(*C.struct_fi_info)) error {
	free, err := i.heldC(f)
	if err == nil {
		free()
	}
	return err
}

// heldC is withC, except that the structure lives until the caller calls free. It is for opening an
// object, because the domains and endpoints of sockets read the structure as long as they are open:
// the caller calls free when the object is closed.
func (i *Info) heldC(f func(*C.struct_fi_info)) (free func(), err error) {
	c, err := i.dup()
	if err != nil {
		return nil, err
	}
	f(c)
	return func() { C.fi_freeinfo(c) }, nil
}

// dup returns a C structure with the fields of i. The caller frees it.
func (i *Info) dup() (*C.struct_fi_info, error) {
	var from *C.struct_fi_info
	if i != nil && i.raw != nil {
		from = i.raw.c
	}
	c := C.fi_dupinfo(from)
	if c == nil {
		return nil, &Error{"fi_dupinfo", ErrNoMemory}
	}
	if i != nil {
		i.write(c)
		runtime.KeepAlive(i.raw)
	}
	return c, nil
}

// optional returns s as a C string, or NULL if it is empty, and a function that frees the C string.
func optional(s string) (*C.char, func()) {
	if s == "" {
		return nil, func() {}
	}
	c := C.CString(s)
	return c, func() { C.free(unsafe.Pointer(c)) }
}
