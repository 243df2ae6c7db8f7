//go:build libfabric

package fi

import (
	"sync"
	"unsafe"
)

// request is a connection request (fi_cm(3)). All copies of its Info share it. A provider frees the
// handle of the request when the request is accepted or rejected, or when the endpoint that was
// opened with the request is closed (in the last case tcp and net of libfabric 1.17 leak the
// handle). Providers do not detect a second use of the handle, so request tracks its own state:
//
//	          OpenEndpoint             Accept, Close
//	waiting ────────────────► taken ────────────────► ended
//	   └──────────────────────────────────────────────►
//	                      Reject
//
// A nil request means that there is no request.
type request struct {
	mu     sync.Mutex
	handle unsafe.Pointer // libfabric's struct fid; nil: the request has ended
	taken  bool           // an endpoint was opened with the request, or Reject is refusing it
}

// HasRequest reports whether the Info belongs to a connection request that has not ended, that is,
// one that an endpoint opened with the Info can still accept or [PassiveEP.Reject] can still
// refuse.
func (i *Info) HasRequest() bool { return i.request.pending() }

// take reserves the request for one call of OpenEndpoint or Reject. It returns ErrInvalid if there
// is no request or it has ended, and ErrBusy if it is taken already.
func (r *request) take() error {
	if r == nil {
		return ErrInvalid
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.handle == nil:
		return ErrInvalid
	case r.taken:
		return ErrBusy
	}
	r.taken = true
	return nil
}

// untake makes a taken request available again, because no endpoint could be opened with it.
func (r *request) untake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = false
}

// end drops the handle, because the provider has freed it.
func (r *request) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handle = nil
}

// pending reports whether the request has not ended.
func (r *request) pending() bool { return r.fid() != nil }

// fid returns the handle, or nil if the request has ended.
func (r *request) fid() unsafe.Pointer {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.handle
}
