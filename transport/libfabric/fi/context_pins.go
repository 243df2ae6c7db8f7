//go:build libfabric

package fi

import (
	"runtime"
	"unsafe"
)

// pinSet pins memory, and allocates nothing for as much as it has pinned before.
// A runtime.Pinner alone does so up to its fifth pointer.
type pinSet struct {
	pinners []*runtime.Pinner // each full but for the last in use
	count   int
}

const pinnerRoom = 5

// Pin keeps the object at p where it is until Unpin.
func (s *pinSet) Pin(p unsafe.Pointer) {
	i := s.count / pinnerRoom
	if i == len(s.pinners) {
		s.pinners = append(s.pinners, new(runtime.Pinner))
	}
	s.pinners[i].Pin(p)
	s.count++
}

// Unpin lets go of everything.
func (s *pinSet) Unpin() {
	for i := 0; i*pinnerRoom < s.count; i++ {
		s.pinners[i].Unpin()
	}
	s.count = 0
}
