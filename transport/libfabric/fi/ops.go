//go:build libfabric

package fi

// #include "shim.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// FID identifies an open object in events and errors. Two FIDs are equal if they identify the same
// object.
type FID struct{ p unsafe.Pointer } //nolint:revive // fid is libfabric's own word

// String returns the address of the object.
func (f FID) String() string { return fmt.Sprintf("fid:%p", f.p) }

// FID returns the identity of the object, the zero FID if the object is closed.
func (o *object) FID() FID { return FID{o.pointer()} }

// Command is a command of Control (fi_control(3)).
type Command int

// The commands. The comment of each says what the argument points to. For most commands the objects
// that support them also have a method.
const (
	ControlGetFIDFlag Command = C.FI_GETFIDFLAG  // uint64
	ControlSetFIDFlag Command = C.FI_SETFIDFLAG  // uint64
	ControlGetOpsFlag Command = C.FI_GETOPSFLAG  // uint64, in which FlagTransmit or FlagRecv selects the direction
	ControlSetOpsFlag Command = C.FI_SETOPSFLAG  // uint64, in which FlagTransmit or FlagRecv selects the direction
	ControlAlias      Command = C.FI_ALIAS       // struct fi_alias
	ControlGetWait    Command = C.FI_GETWAIT     // the type depends on the wait object
	ControlEnable     Command = C.FI_ENABLE      // no argument: nil
	ControlBacklog    Command = C.FI_BACKLOG     // int32
	ControlGetRawMR   Command = C.FI_GET_RAW_MR  // struct fi_mr_raw_attr
	ControlMapRawMR   Command = C.FI_MAP_RAW_MR  // struct fi_mr_map_raw
	ControlUnmapKey   Command = C.FI_UNMAP_KEY   // uint64
	ControlQueueWork  Command = C.FI_QUEUE_WORK  // struct fi_deferred_work
	ControlCancelWork Command = C.FI_CANCEL_WORK // struct fi_deferred_work
	ControlFlushWork  Command = C.FI_FLUSH_WORK  // no argument: nil
	ControlRefresh    Command = C.FI_REFRESH     // struct fi_mr_modify
	ControlDup        Command = C.FI_DUP         // struct fid *
	ControlGetWaitObj Command = C.FI_GETWAITOBJ  // int32, which becomes a WaitObj
	ControlGetVal     Command = C.FI_GET_VAL     // struct fi_fid_var
	ControlSetVal     Command = C.FI_SET_VAL     // struct fi_fid_var
	ControlExportFID  Command = C.FI_EXPORT_FID  // struct fi_fid_export
)

// Control runs a command that only some objects or providers support (fi_control). arg points to
// the command's argument, which must not contain pointers to Go memory that is not pinned.
func (o *object) Control(command Command, arg unsafe.Pointer) error {
	const function = "fi_control"
	if !o.isOpen() {
		return closedError(function)
	}
	return check(function, C.fi_control(o.fid, C.int(command), arg))
}

// GetVal stores the value with the number name in *val (fi_get_val). The provider defines the
// numbers and the types of the values.
func (o *object) GetVal(name int, val unsafe.Pointer) error {
	const function = "fi_get_val"
	if !o.isOpen() {
		return closedError(function)
	}
	return check(function, C.fi_get_val(o.fid, C.int(name), val))
}

// SetVal sets the value with the number name to *val (fi_set_val). The provider defines the numbers
// and the types of the values.
func (o *object) SetVal(name int, val unsafe.Pointer) error {
	const function = "fi_set_val"
	if !o.isOpen() {
		return closedError(function)
	}
	return check(function, C.fi_set_val(o.fid, C.int(name), val))
}

// OpenOps returns a table of C functions of an extension of the provider (fi_open_ops). The
// provider defines the layout of the table.
func (o *object) OpenOps(name string, flags Flags) (unsafe.Pointer, error) {
	const function = "fi_open_ops"
	if !o.isOpen() {
		return nil, closedError(function)
	}
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	var ops unsafe.Pointer
	if err := check(function, C.fi_open_ops(o.fid, c, C.uint64_t(flags), &ops, nil)); err != nil {
		return nil, err
	}
	return ops, nil
}

// OpsHMEMOverride is a name that the method SetOps takes. Its table is a struct
// fi_hmem_override_ops: functions that copy from and to device memory (fi_domain(3)).
const OpsHMEMOverride = "hmem_override_ops"

// SetOps makes a provider call the C functions in the table ops instead of its own (fi_set_ops).
// name says which functions these are, for example OpsHMEMOverride. The table must be C memory and
// stay valid while the object is open.
func (o *object) SetOps(name string, flags Flags, ops unsafe.Pointer) error {
	const function = "fi_set_ops"
	if !o.isOpen() {
		return closedError(function)
	}
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return check(function, C.fi_set_ops(o.fid, c, C.uint64_t(flags), ops, nil))
}
