//go:build libfabric

package fi

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// tostr returns libfabric's text for v (fi_tostr_r). kind is libfabric's number for the type of v.
func tostr[T any](v T, kind C.enum_fi_type) string {
	var buf [2048]C.char
	return C.GoString(C.fi_tostr_r(&buf[0], C.size_t(len(buf)), unsafe.Pointer(&v), kind))
}

// String returns the names that the set bits have as flags of operations (fi_tostr). Flags of other
// calls use some of the same bits, and get the same names.
func (f Flags) String() string { return tostr(C.uint64_t(f), C.FI_TYPE_OP_FLAGS) }

// CQString returns the names that the set bits have as flags of a completion (fi_tostr). Those
// flags say what kind of operation has completed.
func (f Flags) CQString() string { return tostr(C.uint64_t(f), C.FI_TYPE_CQ_EVENT_FLAGS) }

// String returns the names of the bits that are set (fi_tostr).
func (c Caps) String() string { return tostr(C.uint64_t(c), C.FI_TYPE_CAPS) }

// String returns the names of the bits that are set (fi_tostr).
func (m Mode) String() string { return tostr(C.uint64_t(m), C.FI_TYPE_MODE) }

// String returns the names of the bits that are set (fi_tostr).
func (m MRMode) String() string { return tostr(C.int(m), C.FI_TYPE_MR_MODE) }

// String returns the names of the bits that are set (fi_tostr).
func (a Access) String() string { return tostr(C.uint64_t(a), C.FI_TYPE_CAPS) }

// String returns the names of the bits that are set (fi_tostr).
func (o MsgOrder) String() string { return tostr(C.uint64_t(o), C.FI_TYPE_MSG_ORDER) }

// String returns the names of the bits that are set.
func (o CompOrder) String() string {
	s := "FI_ORDER_NONE"
	if o&CompOrderStrict == CompOrderStrict {
		s = "FI_ORDER_STRICT"
	}
	if o&CompOrderData != 0 {
		s += ", FI_ORDER_DATA"
	}
	return s
}

// String returns the name of the model (fi_tostr).
func (t Threading) String() string { return tostr(C.int(t), C.FI_TYPE_THREADING) }

// String returns the name of the model (fi_tostr).
func (p Progress) String() string { return tostr(C.int(p), C.FI_TYPE_PROGRESS) }

// String returns the name of the kind.
func (r ResourceMgmt) String() string {
	return name(int(r), "FI_RM_UNSPEC", "FI_RM_DISABLED", "FI_RM_ENABLED")
}

// String returns the name of the type (fi_tostr).
func (t AVType) String() string { return tostr(C.int(t), C.FI_TYPE_AV_TYPE) }

// String returns the name of the type (fi_tostr).
func (t EPType) String() string { return tostr(C.int(t), C.FI_TYPE_EP_TYPE) }

// String returns the name of the format (fi_tostr).
func (f AddrFormat) String() string { return tostr(C.uint32_t(f), C.FI_TYPE_ADDR_FORMAT) }

// String returns the name of the protocol (fi_tostr).
func (p Protocol) String() string { return tostr(C.uint32_t(p), C.FI_TYPE_PROTOCOL) }

// String returns the name of the class.
func (t TClass) String() string {
	if t&C.FI_TC_DSCP != 0 {
		return fmt.Sprintf("FI_TC_DSCP(%d)", t.DSCP())
	}
	if t == TClassUnspec {
		return "FI_TC_UNSPEC"
	}
	return name(int(t)-int(TClassBestEffort), "FI_TC_BEST_EFFORT", "FI_TC_LOW_LATENCY",
		"FI_TC_DEDICATED_ACCESS", "FI_TC_BULK_DATA", "FI_TC_SCAVENGER", "FI_TC_NETWORK_CTRL")
}

// String returns the name of the kind.
func (w WaitObj) String() string {
	return name(int(w), "FI_WAIT_NONE", "FI_WAIT_UNSPEC", "FI_WAIT_SET", "FI_WAIT_FD",
		"FI_WAIT_MUTEX_COND", "FI_WAIT_YIELD", "FI_WAIT_POLLFD")
}

// String returns the name of the format (fi_tostr).
func (f CQFormat) String() string { return tostr(C.int(f), C.FI_TYPE_CQ_FORMAT) }

// String returns the name of the kind (fi_tostr).
func (h HMEMIface) String() string { return tostr(C.int(h), C.FI_TYPE_HMEM_IFACE) }

// String returns the name of the operation (fi_tostr).
func (c CollectiveOp) String() string { return tostr(C.int(c), C.FI_TYPE_COLLECTIVE_OP) }

// String returns the name of the event (fi_tostr).
func (e EventType) String() string { return tostr(C.int(e), C.FI_TYPE_EQ_EVENT) }

// name returns the i-th of names, or "Unknown". It is for types for which fi_tostr has no texts.
func name(i int, names ...string) string {
	if i < 0 || i >= len(names) {
		return "Unknown"
	}
	return names[i]
}
