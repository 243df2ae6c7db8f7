//go:build libfabric

package fi

// #include "shim.h"
import "C"

// Desc is the local descriptor of a memory region (fi_mr_desc), for data transfer calls that use
// the region's memory. The zero Desc means no descriptor. Only domains whose MRMode has MRLocal, or
// MRHMEM for device memory, need descriptors.
//
// In libfabric a descriptor is a void pointer. Desc keeps it as an integer, because sockets stores
// the region's key in it, and Go crashes if it finds a small number in a pointer when a stack
// moves. So the C functions in this package's header files take a descriptor as uintptr_t.
type Desc struct{ p uintptr }

// c returns the descriptor as these C functions take it.
func (d Desc) c() C.uintptr_t { return C.uintptr_t(d.p) }
