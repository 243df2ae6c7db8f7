//go:build libfabric

package fi

import (
	"sync"
	"unsafe"
)

// request is a connection request (fi_cm(3)), for all copies of the Info that it
// came with. Providers free their handle of it when it is accepted, rejected, or
// when the endpoint is closed that it was opened with, each in its own way, and
// do not notice a second time (tcp and net of 1.17 leak it in the last case):
//
//	          OpenEndpoint             Accept, Close
//	waiting ────────────────► taken ────────────────► over
//	   └──────────────────────────────────────────────►
//	                      Reject
//
// A nil request is none.
type request struct {
	mu     sync.Mutex
	handle unsafe.Pointer // libfabric's struct fid; nil: it is over
	taken  bool
}

// HasRequest says whether the Info came with a connection request that is still
// to be accepted, by an endpoint opened from it, or to be rejected (fi_cm(3)).
func (i *Info) HasRequest() bool { return i.request.pending() }

// take has an endpoint or Reject answer the request.
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

// giveBack undoes take.
func (r *request) giveBack() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = false
}

// end forgets the handle, which is freed.
func (r *request) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handle = nil
}

// pending says whether the request is not over.
func (r *request) pending() bool { return r.fid() != nil }

// fid is the handle as long as the request is not over.
func (r *request) fid() unsafe.Pointer {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.handle
}
