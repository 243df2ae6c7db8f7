//go:build libfabric

package fi

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// tostr is libfabric's text for a value of a type (fi_tostr_r).
func tostr[T any](v T, kind C.enum_fi_type) string {
	var buf [2048]C.char
	return C.GoString(C.fi_tostr_r(&buf[0], C.size_t(len(buf)), unsafe.Pointer(&v), kind))
}

// String names the flags of operations; the flags of other calls that share
// their bits have no names of their own (fi_tostr).
func (f Flags) String() string { return tostr(C.uint64_t(f), C.FI_TYPE_OP_FLAGS) }

// CQString names the flags of a completion, which tell what completed.
func (f Flags) CQString() string { return tostr(C.uint64_t(f), C.FI_TYPE_CQ_EVENT_FLAGS) }

// String names the bits (fi_tostr).
func (c Caps) String() string { return tostr(C.uint64_t(c), C.FI_TYPE_CAPS) }

// String names the bits (fi_tostr).
func (m Mode) String() string { return tostr(C.uint64_t(m), C.FI_TYPE_MODE) }

// String names the bits (fi_tostr).
func (m MRMode) String() string { return tostr(C.int(m), C.FI_TYPE_MR_MODE) }

// String names the bits (fi_tostr).
func (a Access) String() string { return tostr(C.uint64_t(a), C.FI_TYPE_CAPS) }

// String names the bits (fi_tostr).
func (o MsgOrder) String() string { return tostr(C.uint64_t(o), C.FI_TYPE_MSG_ORDER) }

// String names the bits.
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

// String names the model (fi_tostr).
func (t Threading) String() string { return tostr(C.int(t), C.FI_TYPE_THREADING) }

// String names the model (fi_tostr).
func (p Progress) String() string { return tostr(C.int(p), C.FI_TYPE_PROGRESS) }

// String names the kind.
func (r ResourceMgmt) String() string {
	return name(int(r), "FI_RM_UNSPEC", "FI_RM_DISABLED", "FI_RM_ENABLED")
}

// String names the type (fi_tostr).
func (t AVType) String() string { return tostr(C.int(t), C.FI_TYPE_AV_TYPE) }

// String names the type (fi_tostr).
func (t EPType) String() string { return tostr(C.int(t), C.FI_TYPE_EP_TYPE) }

// String names the form (fi_tostr).
func (f AddrFormat) String() string { return tostr(C.uint32_t(f), C.FI_TYPE_ADDR_FORMAT) }

// String names the protocol (fi_tostr).
func (p Protocol) String() string { return tostr(C.uint32_t(p), C.FI_TYPE_PROTOCOL) }

// String names the class.
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

// String names the kind.
func (w WaitObj) String() string {
	return name(int(w), "FI_WAIT_NONE", "FI_WAIT_UNSPEC", "FI_WAIT_SET", "FI_WAIT_FD",
		"FI_WAIT_MUTEX_COND", "FI_WAIT_YIELD", "FI_WAIT_POLLFD")
}

// String names the format (fi_tostr).
func (f CQFormat) String() string { return tostr(C.int(f), C.FI_TYPE_CQ_FORMAT) }

// String names the kind (fi_tostr).
func (h HMEMIface) String() string { return tostr(C.int(h), C.FI_TYPE_HMEM_IFACE) }

// String names the operation (fi_tostr).
func (c CollectiveOp) String() string { return tostr(C.int(c), C.FI_TYPE_COLLECTIVE_OP) }

// String names the event (fi_tostr).
func (e EventType) String() string { return tostr(C.int(e), C.FI_TYPE_EQ_EVENT) }

// name is the text of a value that fi_tostr has no texts for.
func name(i int, names ...string) string {
	if i < 0 || i >= len(names) {
		return "Unknown"
	}
	return names[i]
}
