//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"math"
	"unsafe"
)

// Name is the endpoint's address, in the AddrFormat of its Info (fi_getname):
// what peers insert into their address vectors.
func (e *Endpoint) Name() ([]byte, error) {
	const function = "fi_getname"
	if !e.isOpen() {
		return nil, closedError(function)
	}
	return getAddr(function, func(addr unsafe.Pointer, n *C.size_t) C.int { return C.fi_getname(e.fid, addr, n) })
}

// SetName sets the endpoint's address (fi_setname), before it is enabled.
func (e *Endpoint) SetName(addr []byte) error {
	const function = "fi_setname"
	if !e.isOpen() {
		return closedError(function)
	}
	if len(addr) == 0 {
		return &Error{function, ErrInvalid}
	}
	return check(function, C.fi_setname(e.fid, unsafe.Pointer(unsafe.SliceData(addr)), C.size_t(len(addr))))
}

// Option is an option of an endpoint (fi_endpoint(3), FI_OPT_ENDPOINT). Sizes
// are bytes, switches 0 or 1. One that the library or the provider does not know
// is ErrNotSupported, or ErrInvalid with some providers.
type Option int

// The options.
const (
	OptMinMultiRecv          Option = C.FI_OPT_MIN_MULTI_RECV            // with less space left a buffer for several messages is given back
	OptCMDataSize            Option = C.FI_OPT_CM_DATA_SIZE              // what Connect and Accept may carry; read only
	OptBufferedMin           Option = C.FI_OPT_BUFFERED_MIN              // what a buffered receive hands over at least
	OptBufferedLimit         Option = C.FI_OPT_BUFFERED_LIMIT            // from when on the rest must be claimed
	OptSendBufSize           Option = C.FI_OPT_SEND_BUF_SIZE             //
	OptRecvBufSize           Option = C.FI_OPT_RECV_BUF_SIZE             //
	OptTxSize                Option = C.FI_OPT_TX_SIZE                   //
	OptRxSize                Option = C.FI_OPT_RX_SIZE                   //
	OptHMEMP2P               Option = C.FI_OPT_FI_HMEM_P2P               // one of HMEMP2PEnabled and so on
	OptCUDAAPIPermitted      Option = C.WEFT_OPT_CUDA_API_PERMITTED      // switch
	OptSharedMemoryPermitted Option = C.WEFT_OPT_SHARED_MEMORY_PERMITTED // switch
	OptMaxMsgSize            Option = C.WEFT_OPT_MAX_MSG_SIZE
	OptMaxTaggedSize         Option = C.WEFT_OPT_MAX_TAGGED_SIZE
	OptMaxRMASize            Option = C.WEFT_OPT_MAX_RMA_SIZE
	OptMaxAtomicSize         Option = C.WEFT_OPT_MAX_ATOMIC_SIZE
	OptInjectMsgSize         Option = C.WEFT_OPT_INJECT_MSG_SIZE
	OptInjectTaggedSize      Option = C.WEFT_OPT_INJECT_TAGGED_SIZE
	OptInjectRMASize         Option = C.WEFT_OPT_INJECT_RMA_SIZE
	OptInjectAtomicSize      Option = C.WEFT_OPT_INJECT_ATOMIC_SIZE
	OptFirewallAddr          Option = C.WEFT_OPT_FIREWALL_ADDR // switch
)

// The values of OptHMEMP2P: how device memory is reached.
const (
	HMEMP2PEnabled   = C.FI_HMEM_P2P_ENABLED   // directly, if the provider likes
	HMEMP2PRequired  = C.FI_HMEM_P2P_REQUIRED  // directly or not at all
	HMEMP2PPreferred = C.FI_HMEM_P2P_PREFERRED // directly if it can be
	HMEMP2PDisabled  = C.FI_HMEM_P2P_DISABLED  // by a copy
)

// width is how many bytes libfabric has for the option's value.
func (o Option) width() int {
	switch o {
	case OptHMEMP2P:
		return C.sizeof_int
	case OptCUDAAPIPermitted, OptSharedMemoryPermitted, OptFirewallAddr:
		return 1
	default:
		return C.sizeof_size_t
	}
}

// GetOpt reads an option (fi_getopt). A size without limit is math.MaxInt.
func (e *Endpoint) GetOpt(o Option) (int, error) {
	if o == OptMinMultiRecv && e.late && e.minMultiRecv >= 0 {
		return e.minMultiRecv, nil
	}
	var value [8]byte
	n, err := e.GetOptBytes(o, value[:o.width()])
	if err != nil {
		return 0, err
	}
	switch p := unsafe.Pointer(&value); n {
	case 1:
		return int(value[0]), nil
	case C.sizeof_int:
		return int(*(*C.int)(p)), nil
	default:
		return int(min(*(*C.size_t)(p), math.MaxInt)), nil
	}
}

// SetOpt sets an option (fi_setopt), most of them before the endpoint is enabled.
func (e *Endpoint) SetOpt(o Option, v int) error {
	var value [8]byte
	switch p := unsafe.Pointer(&value); o.width() {
	case 1:
		value[0] = byte(min(max(v, 0), 1))
	case C.sizeof_int:
		*(*C.int)(p) = C.int(v)
	default:
		if v < 0 {
			return &Error{"fi_setopt", ErrInvalid}
		}
		if o == OptMinMultiRecv && e.late && e.isOpen() {
			e.minMultiRecv = v
			return nil
		}
		*(*C.size_t)(p) = C.size_t(v)
	}
	return e.SetOptBytes(o, value[:o.width()])
}

// GetOptBytes reads an option as libfabric has it into value, and returns how
// many bytes it has. Options of providers (FI_PROV_SPECIFIC) are negative.
func (e *Endpoint) GetOptBytes(o Option, value []byte) (int, error) {
	const function = "fi_getopt"
	if !e.isOpen() {
		return 0, closedError(function)
	}
	if o == OptMinMultiRecv && e.late {
		return 0, &Error{function, ErrOpBadState} // shm would follow a null pointer
	}
	size := C.size_t(len(value))
	err := check(function, C.fi_getopt(e.fid, C.FI_OPT_ENDPOINT, C.int(o),
		unsafe.Pointer(unsafe.SliceData(value)), &size))
	return int(size), err
}

// SetOptBytes sets an option as libfabric has it.
func (e *Endpoint) SetOptBytes(o Option, value []byte) error {
	const function = "fi_setopt"
	if !e.isOpen() {
		return closedError(function)
	}
	if o == OptMinMultiRecv && e.late {
		return &Error{function, ErrOpBadState}
	}
	return check(function, C.fi_setopt(e.fid, C.FI_OPT_ENDPOINT, C.int(o),
		unsafe.Pointer(unsafe.SliceData(value)), C.size_t(len(value))))
}
