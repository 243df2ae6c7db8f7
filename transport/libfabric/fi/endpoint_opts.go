//go:build libfabric

package fi

// #include "shim_ep.h"
import "C"

import (
	"math"
	"unsafe"
)

// Name returns the endpoint's address in the AddrFormat of its Info (fi_getname). Peers insert it
// into their address vectors.
func (e *Endpoint) Name() ([]byte, error) {
	const function = "fi_getname"
	if !e.isOpen() {
		return nil, closedError(function)
	}
	return getAddr(function, func(addr unsafe.Pointer, n *C.size_t) C.int { return C.fi_getname(e.fid, addr, n) })
}

// SetName sets the endpoint's address (fi_setname). Call it before Enable.
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

// Option is an option of an endpoint (fi_endpoint(3), FI_OPT_ENDPOINT). A size is in bytes. A
// switch is 0 or 1. For an option that the library or provider does not know, calls return
// ErrNotSupported, or with some providers ErrInvalid.
type Option int

// The options.
const (
	// OptMinMultiRecv is the free space below which the provider releases a multi-receive buffer.
	OptMinMultiRecv          Option = C.FI_OPT_MIN_MULTI_RECV
	OptCMDataSize            Option = C.FI_OPT_CM_DATA_SIZE   // largest private data of Connect and Accept; read only
	OptBufferedMin           Option = C.FI_OPT_BUFFERED_MIN   // smallest part of a message that a buffered receive delivers
	OptBufferedLimit         Option = C.FI_OPT_BUFFERED_LIMIT // larger messages must be claimed (FlagClaim)
	OptSendBufSize           Option = C.FI_OPT_SEND_BUF_SIZE
	OptRecvBufSize           Option = C.FI_OPT_RECV_BUF_SIZE
	OptTxSize                Option = C.FI_OPT_TX_SIZE
	OptRxSize                Option = C.FI_OPT_RX_SIZE
	OptHMEMP2P               Option = C.FI_OPT_FI_HMEM_P2P               // one of the HMEMP2P constants below
	OptCUDAAPIPermitted      Option = C.WEFT_OPT_CUDA_API_PERMITTED      // a switch: whether the provider may call the CUDA API
	OptSharedMemoryPermitted Option = C.WEFT_OPT_SHARED_MEMORY_PERMITTED // a switch: whether the provider may use shared memory
	OptMaxMsgSize            Option = C.WEFT_OPT_MAX_MSG_SIZE
	OptMaxTaggedSize         Option = C.WEFT_OPT_MAX_TAGGED_SIZE
	OptMaxRMASize            Option = C.WEFT_OPT_MAX_RMA_SIZE
	OptMaxAtomicSize         Option = C.WEFT_OPT_MAX_ATOMIC_SIZE
	OptInjectMsgSize         Option = C.WEFT_OPT_INJECT_MSG_SIZE
	OptInjectTaggedSize      Option = C.WEFT_OPT_INJECT_TAGGED_SIZE
	OptInjectRMASize         Option = C.WEFT_OPT_INJECT_RMA_SIZE
	OptInjectAtomicSize      Option = C.WEFT_OPT_INJECT_ATOMIC_SIZE
	OptFirewallAddr          Option = C.WEFT_OPT_FIREWALL_ADDR // a switch, see fi_endpoint(3); only 2.x
)

// The values of OptHMEMP2P: how the provider transfers device memory.
const (
	// Directly between the device and the network adapter, if the provider chooses to.
	HMEMP2PEnabled = C.FI_HMEM_P2P_ENABLED
	// Directly between the device and the network adapter. If that is impossible, operations fail.
	HMEMP2PRequired = C.FI_HMEM_P2P_REQUIRED
	// Directly between the device and the network adapter, if that is possible.
	HMEMP2PPreferred = C.FI_HMEM_P2P_PREFERRED
	HMEMP2PDisabled  = C.FI_HMEM_P2P_DISABLED // not directly, but by a copy in host memory
)

// width returns the size of the C type of the option's value, in bytes.
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
	if o == OptMinMultiRecv && e.lateMinMultiRecv && e.minMultiRecv >= 0 {
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

// SetOpt sets an option (fi_setopt). Most options must be set before Enable. For a switch, every
// positive v means 1.
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
		if o == OptMinMultiRecv && e.lateMinMultiRecv && e.isOpen() {
			e.minMultiRecv = v
			return nil
		}
		*(*C.size_t)(p) = C.size_t(v)
	}
	return e.SetOptBytes(o, value[:o.width()])
}

// GetOptBytes stores the value of an option in value, in libfabric's representation, and returns
// the size of the option's value in bytes (fi_getopt). The numbers of providers' own options
// (FI_PROV_SPECIFIC) are negative.
func (e *Endpoint) GetOptBytes(o Option, value []byte) (int, error) {
	const function = "fi_getopt"
	if !e.isOpen() {
		return 0, closedError(function)
	}
	if o == OptMinMultiRecv && e.lateMinMultiRecv {
		// Before Enable, shm of libfabric before 1.19 would dereference a null pointer.
		return 0, &Error{function, ErrOpBadState}
	}
	size := C.size_t(len(value))
	err := check(function, C.fi_getopt(e.fid, C.FI_OPT_ENDPOINT, C.int(o),
		unsafe.Pointer(unsafe.SliceData(value)), &size))
	return int(size), err
}

// SetOptBytes sets an option to value, which is in libfabric's representation (fi_setopt).
func (e *Endpoint) SetOptBytes(o Option, value []byte) error {
	const function = "fi_setopt"
	if !e.isOpen() {
		return closedError(function)
	}
	if o == OptMinMultiRecv && e.lateMinMultiRecv {
		return &Error{function, ErrOpBadState}
	}
	return check(function, C.fi_setopt(e.fid, C.FI_OPT_ENDPOINT, C.int(o),
		unsafe.Pointer(unsafe.SliceData(value)), C.size_t(len(value))))
}
