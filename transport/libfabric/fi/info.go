//go:build libfabric

package fi

// #include "shim.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Info describes one way to communicate: a provider, a fabric, a domain and an
// endpoint that fit together (fi_getinfo(3)). As hints, it says what is wanted;
// zero is no wish.
//
// The fields are those of struct fi_info. They may be changed before the Info
// is given to a call; what a newer library's structure has besides is kept. A
// size or count without limit (SIZE_MAX) is math.MaxInt.
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
	NIC    *NIC // nil without a device; never read from hints

	request *request // the connection request that it came with, which its copies share
	raw     *rawInfo // nil in one that was not made by this package
}

// TxAttr is what can be sent, and how (struct fi_tx_attr, fi_endpoint(3)).
type TxAttr struct {
	Caps        Caps
	Mode        Mode
	OpFlags     Flags // of all operations that take no flags
	MsgOrder    MsgOrder
	CompOrder   CompOrder
	InjectSize  int // bytes of the largest message that may be injected
	Size        int // operations that may be on their way
	IovLimit    int // buffers of an operation
	RMAIovLimit int // remote buffers of an operation
	TClass      TClass
}

// RxAttr is what can be received, and how (struct fi_rx_attr, fi_endpoint(3)).
type RxAttr struct {
	Caps              Caps
	Mode              Mode
	OpFlags           Flags // of all operations that take no flags
	MsgOrder          MsgOrder
	CompOrder         CompOrder
	TotalBufferedRecv int // bytes; obsolete
	Size              int // receives that may be posted
	IovLimit          int // buffers of a receive
}

// EPAttr describes an endpoint (struct fi_ep_attr, fi_endpoint(3)).
type EPAttr struct {
	Type            EPType
	Protocol        Protocol
	ProtocolVersion uint32
	MaxMsgSize      int // bytes
	MsgPrefixSize   int // bytes in front of a message, with ModeMsgPrefix
	MaxOrderRAWSize int // bytes up to which OrderRAW holds
	MaxOrderWARSize int // bytes up to which OrderWAR holds
	MaxOrderWAWSize int // bytes up to which OrderWAW holds
	MemTagFormat    uint64
	TxCtxCnt        int // transmit contexts; SharedContext for shared ones
	RxCtxCnt        int // receive contexts; SharedContext for shared ones
	AuthKey         []byte
}

// DomainAttr describes a domain (struct fi_domain_attr, fi_domain(3)).
type DomainAttr struct {
	Domain          *Domain // in hints: only what this open domain offers
	Name            string
	Threading       Threading
	ControlProgress Progress // of connections, registrations and insertions; Progress in 2.x
	DataProgress    Progress
	ResourceMgmt    ResourceMgmt
	AVType          AVType
	MRMode          MRMode
	MRKeySize       int // bytes of a key
	CQDataSize      int // bytes of immediate data
	CQCnt           int // completion queues that are a good number
	EPCnt           int
	TxCtxCnt        int
	RxCtxCnt        int
	MaxEPTxCtx      int // of one scalable endpoint
	MaxEPRxCtx      int
	MaxEPStxCtx     int // endpoints that may share one transmit context
	MaxEPSrxCtx     int
	CntrCnt         int
	MRIovLimit      int // buffers of one registration
	Caps            Caps
	Mode            Mode
	AuthKey         []byte
	AuthKeyByAV     bool // FI_AV_AUTH_KEY: the keys come from the address vector (2.x)
	MaxErrData      int  // bytes an error entry may carry
	MRCnt           int
	TClass          TClass
	MaxEPAuthKey    int    // authorisation keys of an endpoint (1.20)
	MaxGroupID      uint32 // largest group id, zero: no groups (2.0)
	MaxCntrValue    uint64 // largest value of a counter, zero: not said (2.5)
	MaxErrCntrValue uint64 // the same for the errors (2.5)
	MaxXPUCtxCnt    int    // (2.6)
}

// FabricAttr names a fabric and its provider (struct fi_fabric_attr,
// fi_fabric(3)).
type FabricAttr struct {
	Fabric      *Fabric // in hints: only what this open fabric offers
	Name        string
	ProvName    string // as hints, a list like "tcp;ofi_rxm" or "^sockets"
	ProvVersion Version
	APIVersion  Version // of the interface that the fabric is opened with
}

// rawInfo owns a C structure, for the fields that Go does not know and as the
// last state that fields are compared with.
type rawInfo struct{ c *C.struct_fi_info }

// own takes over a C structure, which is freed when nobody refers to it.
func own(c *C.struct_fi_info) *rawInfo {
	r := &rawInfo{c}
	runtime.AddCleanup(r, func(c *C.struct_fi_info) { C.fi_freeinfo(c) }, c)
	return r
}

// NewInfo is an empty Info, for hints (fi_allocinfo).
func NewInfo() *Info {
	c := C.fi_allocinfo()
	if c == nil {
		panic("fi_allocinfo: out of memory")
	}
	return takeInfo(c)
}

// takeInfo makes an Info of a C structure that is not part of a list, and owns
// it from then on. References to open fabrics and domains are dropped: nothing
// needs them, and they would outlive what they refer to. So is the handle of a
// connection request.
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

// GetInfo asks which ways to communicate there are, the best first
// (fi_getinfo). The version says for which interface the caller was written,
// HeaderVersion as a rule. An empty node or service is none. With FlagSource
// they are the local address, else the peer's. Nil hints are no wishes. Where
// nothing fits the error is ErrNoData.
//
// It may be slow: the first call loads the providers, which look for devices.
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

// Dup is an independent copy (fi_dupinfo).
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

// String is all that is known, in many lines, as fi_info -v prints it
// (fi_tostr).
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

// withC calls f with a C structure that has the fields of i, and frees it. It
// fails only where memory does.
func (i *Info) withC(f func(*C.struct_fi_info)) error {
	free, err := i.heldC(f)
	if err == nil {
		free()
	}
	return err
}

// heldC is withC for opening what goes on reading the structure, as the
// domains and endpoints of sockets do: free is called when that is closed.
func (i *Info) heldC(f func(*C.struct_fi_info)) (free func(), err error) {
	c, err := i.dup()
	if err != nil {
		return nil, err
	}
	f(c)
	return func() { C.fi_freeinfo(c) }, nil
}

// dup is a C structure with the fields of i, for the caller to free.
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

// optional is a C string, or NULL for an empty one, and how to free it.
func optional(s string) (*C.char, func()) {
	if s == "" {
		return nil, func() {}
	}
	c := C.CString(s)
	return c, func() { C.free(unsafe.Pointer(c)) }
}
