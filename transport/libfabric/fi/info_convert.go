//go:build libfabric

package fi

// #include "shim.h"
import "C"

import (
	"bytes"
	"math"
	"unsafe"
)

// readInfo converts a C structure to an Info.
func readInfo(c *C.struct_fi_info) *Info {
	i := &Info{
		Caps:       Caps(c.caps),
		Mode:       Mode(c.mode),
		AddrFormat: AddrFormat(c.addr_format),
		SrcAddr:    goBytes(c.src_addr, c.src_addrlen),
		DestAddr:   goBytes(c.dest_addr, c.dest_addrlen),
		NIC:        readNIC(c.nic),
	}
	i.Tx.read(c.tx_attr)
	i.Rx.read(c.rx_attr)
	i.EP.read(c.ep_attr)
	i.Domain.read(c.domain_attr)
	i.Fabric.read(c.fabric_attr)
	return i
}

// write stores the fields of i in c. Strings and addresses are allocated by C, and fi_freeinfo
// frees them with c.
func (i *Info) write(c *C.struct_fi_info) {
	c.caps = C.uint64_t(i.Caps)
	c.mode = C.uint64_t(i.Mode)
	c.addr_format = C.uint32_t(i.AddrFormat)
	setBytes(&c.src_addr, &c.src_addrlen, i.SrcAddr)
	setBytes(&c.dest_addr, &c.dest_addrlen, i.DestAddr)
	c.handle = C.fid_t(i.request.fid())
	i.Tx.write(c.tx_attr)
	i.Rx.write(c.rx_attr)
	i.EP.write(c.ep_attr)
	i.Domain.write(c.domain_attr)
	i.Fabric.write(c.fabric_attr)
}

func (a *TxAttr) read(c *C.struct_fi_tx_attr) {
	if c == nil {
		return
	}
	*a = TxAttr{
		Caps:        Caps(c.caps),
		Mode:        Mode(c.mode),
		OpFlags:     Flags(c.op_flags),
		MsgOrder:    MsgOrder(c.msg_order),
		CompOrder:   CompOrder(c.comp_order),
		InjectSize:  goSize(c.inject_size),
		Size:        goSize(c.size),
		IovLimit:    goSize(c.iov_limit),
		RMAIovLimit: goSize(c.rma_iov_limit),
		TClass:      TClass(c.tclass),
	}
}

func (a *TxAttr) write(c *C.struct_fi_tx_attr) {
	if c == nil {
		return
	}
	c.caps = C.uint64_t(a.Caps)
	c.mode = C.uint64_t(a.Mode)
	c.op_flags = C.uint64_t(a.OpFlags)
	c.msg_order = C.uint64_t(a.MsgOrder)
	c.comp_order = C.uint64_t(a.CompOrder)
	setSize(&c.inject_size, a.InjectSize)
	setSize(&c.size, a.Size)
	setSize(&c.iov_limit, a.IovLimit)
	setSize(&c.rma_iov_limit, a.RMAIovLimit)
	c.tclass = C.uint32_t(a.TClass)
}

func (a *RxAttr) read(c *C.struct_fi_rx_attr) {
	if c == nil {
		return
	}
	*a = RxAttr{
		Caps:              Caps(c.caps),
		Mode:              Mode(c.mode),
		OpFlags:           Flags(c.op_flags),
		MsgOrder:          MsgOrder(c.msg_order),
		CompOrder:         CompOrder(c.comp_order),
		TotalBufferedRecv: goSize(c.total_buffered_recv),
		Size:              goSize(c.size),
		IovLimit:          goSize(c.iov_limit),
	}
}

func (a *RxAttr) write(c *C.struct_fi_rx_attr) {
	if c == nil {
		return
	}
	c.caps = C.uint64_t(a.Caps)
	c.mode = C.uint64_t(a.Mode)
	c.op_flags = C.uint64_t(a.OpFlags)
	c.msg_order = C.uint64_t(a.MsgOrder)
	c.comp_order = C.uint64_t(a.CompOrder)
	setSize(&c.total_buffered_recv, a.TotalBufferedRecv)
	setSize(&c.size, a.Size)
	setSize(&c.iov_limit, a.IovLimit)
}

func (a *EPAttr) read(c *C.struct_fi_ep_attr) {
	if c == nil {
		return
	}
	*a = EPAttr{
		Type:            EPType(c._type),
		Protocol:        Protocol(c.protocol),
		ProtocolVersion: uint32(c.protocol_version),
		MaxMsgSize:      goSize(c.max_msg_size),
		MsgPrefixSize:   goSize(c.msg_prefix_size),
		MaxOrderRAWSize: goSize(c.max_order_raw_size),
		MaxOrderWARSize: goSize(c.max_order_war_size),
		MaxOrderWAWSize: goSize(c.max_order_waw_size),
		MemTagFormat:    uint64(c.mem_tag_format),
		TxCtxCnt:        goSize(c.tx_ctx_cnt),
		RxCtxCnt:        goSize(c.rx_ctx_cnt),
		AuthKey:         goBytes(unsafe.Pointer(c.auth_key), c.auth_key_size),
	}
}

func (a *EPAttr) write(c *C.struct_fi_ep_attr) {
	if c == nil {
		return
	}
	c._type = C.enum_fi_ep_type(a.Type)
	c.protocol = C.uint32_t(a.Protocol)
	c.protocol_version = C.uint32_t(a.ProtocolVersion)
	setSize(&c.max_msg_size, a.MaxMsgSize)
	setSize(&c.msg_prefix_size, a.MsgPrefixSize)
	setSize(&c.max_order_raw_size, a.MaxOrderRAWSize)
	setSize(&c.max_order_war_size, a.MaxOrderWARSize)
	setSize(&c.max_order_waw_size, a.MaxOrderWAWSize)
	c.mem_tag_format = C.uint64_t(a.MemTagFormat)
	setSize(&c.tx_ctx_cnt, a.TxCtxCnt)
	setSize(&c.rx_ctx_cnt, a.RxCtxCnt)
	setKey(&c.auth_key, &c.auth_key_size, a.AuthKey)
}

// authKeyByAV is FI_AV_AUTH_KEY: as the length of a domain's authorisation key it means that
// address vectors hold the keys.
const authKeyByAV = C.size_t(math.MaxUint)

func (a *DomainAttr) read(c *C.struct_fi_domain_attr) {
	if c == nil {
		return
	}
	var rest C.struct_weft_domain_rest
	C.weft_domain_rest_get(c, &rest)
	*a = DomainAttr{
		Name:            goString(c.name),
		Threading:       Threading(c.threading),
		ControlProgress: Progress(c.control_progress),
		DataProgress:    Progress(*C.weft_data_progress(c)),
		ResourceMgmt:    ResourceMgmt(c.resource_mgmt),
		AVType:          AVType(c.av_type),
		MRMode:          MRMode(c.mr_mode),
		MRKeySize:       goSize(c.mr_key_size),
		CQDataSize:      goSize(c.cq_data_size),
		CQCnt:           goSize(c.cq_cnt),
		EPCnt:           goSize(c.ep_cnt),
		TxCtxCnt:        goSize(c.tx_ctx_cnt),
		RxCtxCnt:        goSize(c.rx_ctx_cnt),
		MaxEPTxCtx:      goSize(c.max_ep_tx_ctx),
		MaxEPRxCtx:      goSize(c.max_ep_rx_ctx),
		MaxEPStxCtx:     goSize(c.max_ep_stx_ctx),
		MaxEPSrxCtx:     goSize(c.max_ep_srx_ctx),
		CntrCnt:         goSize(c.cntr_cnt),
		MRIovLimit:      goSize(c.mr_iov_limit),
		Caps:            Caps(c.caps),
		Mode:            Mode(c.mode),
		AuthKeyByAV:     c.auth_key_size == authKeyByAV,
		MaxErrData:      goSize(c.max_err_data),
		MRCnt:           goSize(c.mr_cnt),
		TClass:          TClass(c.tclass),
		MaxEPAuthKey:    goSize(rest.max_ep_auth_key),
		MaxGroupID:      uint32(rest.max_group_id),
		MaxCntrValue:    uint64(rest.max_cntr_value),
		MaxErrCntrValue: uint64(rest.max_err_cntr_value),
		MaxXPUCtxCnt:    goSize(rest.max_xpu_ctx_cnt),
	}
	if !a.AuthKeyByAV {
		a.AuthKey = goBytes(unsafe.Pointer(c.auth_key), c.auth_key_size)
	}
}

func (a *DomainAttr) write(c *C.struct_fi_domain_attr) {
	if c == nil {
		return
	}
	if a.Domain != nil && a.Domain.isOpen() {
		c.domain = a.Domain.c()
	}
	setString(&c.name, a.Name)
	c.threading = C.enum_fi_threading(a.Threading)
	c.control_progress = C.enum_fi_progress(a.ControlProgress)
	*C.weft_data_progress(c) = C.enum_fi_progress(a.DataProgress)
	c.resource_mgmt = C.enum_fi_resource_mgmt(a.ResourceMgmt)
	c.av_type = C.enum_fi_av_type(a.AVType)
	c.mr_mode = C.int(a.MRMode)
	setSize(&c.mr_key_size, a.MRKeySize)
	setSize(&c.cq_data_size, a.CQDataSize)
	setSize(&c.cq_cnt, a.CQCnt)
	setSize(&c.ep_cnt, a.EPCnt)
	setSize(&c.tx_ctx_cnt, a.TxCtxCnt)
	setSize(&c.rx_ctx_cnt, a.RxCtxCnt)
	setSize(&c.max_ep_tx_ctx, a.MaxEPTxCtx)
	setSize(&c.max_ep_rx_ctx, a.MaxEPRxCtx)
	setSize(&c.max_ep_stx_ctx, a.MaxEPStxCtx)
	setSize(&c.max_ep_srx_ctx, a.MaxEPSrxCtx)
	setSize(&c.cntr_cnt, a.CntrCnt)
	setSize(&c.mr_iov_limit, a.MRIovLimit)
	c.caps = C.uint64_t(a.Caps)
	c.mode = C.uint64_t(a.Mode)
	if c.auth_key_size == authKeyByAV {
		c.auth_key_size = 0 // authKeyByAV is not a length that setKey could read
	}
	setKey(&c.auth_key, &c.auth_key_size, a.AuthKey)
	if a.AuthKeyByAV {
		setKey(&c.auth_key, &c.auth_key_size, nil)
		c.auth_key_size = authKeyByAV
	}
	setSize(&c.max_err_data, a.MaxErrData)
	setSize(&c.mr_cnt, a.MRCnt)
	c.tclass = C.uint32_t(a.TClass)
	var rest C.struct_weft_domain_rest
	C.weft_domain_rest_get(c, &rest)
	setSize(&rest.max_ep_auth_key, a.MaxEPAuthKey)
	setSize(&rest.max_xpu_ctx_cnt, a.MaxXPUCtxCnt)
	rest.max_group_id = C.uint32_t(a.MaxGroupID)
	rest.max_cntr_value = C.uint64_t(a.MaxCntrValue)
	rest.max_err_cntr_value = C.uint64_t(a.MaxErrCntrValue)
	C.weft_domain_rest_set(c, &rest)
}

func (a *FabricAttr) read(c *C.struct_fi_fabric_attr) {
	if c == nil {
		return
	}
	*a = FabricAttr{
		Name:        goString(c.name),
		ProvName:    goString(c.prov_name),
		ProvVersion: Version(c.prov_version),
		APIVersion:  Version(c.api_version),
	}
}

func (a *FabricAttr) write(c *C.struct_fi_fabric_attr) {
	if c == nil {
		return
	}
	if a.Fabric != nil && a.Fabric.isOpen() {
		c.fabric = a.Fabric.c()
	}
	setString(&c.name, a.Name)
	setString(&c.prov_name, a.ProvName)
	c.prov_version = C.uint32_t(a.ProvVersion)
	c.api_version = C.uint32_t(a.APIVersion)
}

// goSize converts n to an int. A value above math.MaxInt becomes math.MaxInt.
func goSize(n C.size_t) int { return int(min(uint64(n), math.MaxInt)) }

// setSize sets *p to n, or to SIZE_MAX if n is math.MaxInt. If goSize(*p) is n already, it changes
// nothing.
func setSize(p *C.size_t, n int) {
	if n == goSize(*p) {
		return
	}
	*p = C.size_t(n)
	if n == math.MaxInt {
		*p = math.MaxUint
	}
}

func goString(s *C.char) string {
	if s == nil {
		return ""
	}
	return C.GoString(s)
}

// setString frees *p, a C string or NULL, and sets it to a new C string with the text s, or to NULL
// if s is empty. If *p has that text already, it changes nothing.
func setString(p **C.char, s string) {
	if goString(*p) == s {
		return
	}
	C.free(unsafe.Pointer(*p))
	*p = nil
	if s != "" {
		*p = C.CString(s)
	}
}

func goBytes(p unsafe.Pointer, n C.size_t) []byte {
	if p == nil || n == 0 {
		return nil
	}
	return bytes.Clone(unsafe.Slice((*byte)(p), n))
}

// setBytes frees the *n bytes of C memory at *p, and sets *p and *n to a copy of b in C memory. If
// the bytes are equal already, it changes nothing.
func setBytes(p *unsafe.Pointer, n *C.size_t, b []byte) {
	if bytes.Equal(goBytes(*p, *n), b) {
		return
	}
	C.free(*p)
	*p, *n = nil, C.size_t(len(b))
	if len(b) > 0 {
		*p = C.CBytes(b)
	}
}

func setKey(p **C.uint8_t, n *C.size_t, b []byte) {
	m := unsafe.Pointer(*p)
	setBytes(&m, n, b)
	*p = (*C.uint8_t)(m)
}
