//go:build libfabric

package fi

// #include "shim_av.h"
import "C"

import "unsafe"

// InsertAuthKey inserts an authorisation key, in the provider's form (fi_av_insert_auth_key). The
// vector's domain must have DomainAttr.AuthKeyByAV. In calls with FlagAuthKey the returned Addr
// means all peers with that key. InsertAuthKey needs libfabric 2.x.
func (v *AV) InsertAuthKey(key []byte, flags Flags) (Addr, error) {
	const function = "fi_av_insert_auth_key"
	if !v.isOpen() {
		return AddrNotAvail, closedError(function)
	}
	if C.WEFT_AV_AUTH_KEY == 0 {
		return AddrNotAvail, unsupported(function)
	}
	in := newAddrBuf(key)
	defer in.free()
	a := C.fi_addr_t(AddrNotAvail)
	rc := C.weft_av_insert_auth_key(v.c(), in.p, C.size_t(len(key)), &a, C.uint64_t(flags))
	return Addr(a), check(function, rc)
}

// LookupAuthKey returns the authorisation key for which InsertAuthKey returned a, or with which the
// address a was inserted (fi_av_lookup_auth_key). LookupAuthKey needs libfabric 2.x.
func (v *AV) LookupAuthKey(a Addr) ([]byte, error) {
	const function = "fi_av_lookup_auth_key"
	if !v.isOpen() {
		return nil, closedError(function)
	}
	if C.WEFT_AV_AUTH_KEY == 0 {
		return nil, unsupported(function)
	}
	return growBuffer(function, func(buf unsafe.Pointer, size *C.size_t) C.int {
		return C.weft_av_lookup_auth_key(v.c(), C.fi_addr_t(a), buf, size)
	})
}

// RemoveAuthKey removes the authorisation key for which InsertAuthKey returned a from the vector
// (fi_av_remove with FI_AUTH_KEY). It returns ErrBusy while an enabled endpoint uses the key.
// RemoveAuthKey needs libfabric 2.x.
func (v *AV) RemoveAuthKey(a Addr) error {
	const function = "fi_av_remove"
	if !v.isOpen() {
		return closedError(function)
	}
	if C.WEFT_AV_AUTH_KEY == 0 {
		return unsupported(function)
	}
	addr := C.fi_addr_t(a)
	return check(function, C.fi_av_remove(v.c(), &addr, 1, C.uint64_t(FlagAuthKey)))
}
