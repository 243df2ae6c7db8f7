//go:build libfabric

package fi

// #include "shim.h"
import "C"

// Desc is the local descriptor of a memory region (fi_mr_desc), for the data
// transfer calls that use the region's memory. The zero Desc is none, which is
// enough unless the domain's MRMode has MRLocal, or MRHMEM for device memory.
//
// It is libfabric's void pointer, kept as an integer: sockets puts the region's
// key there, and a small number in a pointer is fatal to Go when a stack moves.
// Functions of the shim therefore take a descriptor as uintptr_t.
type Desc struct{ p uintptr }

// c is the descriptor as the shim takes it.
func (d Desc) c() C.uintptr_t { return C.uintptr_t(d.p) }
