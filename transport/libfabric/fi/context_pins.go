//go:build libfabric

package fi

import (
	"runtime"
	"unsafe"
)

// pinSet pins memory. It allocates only if it pins more than ever before. A single runtime.Pinner
// keeps memory for only five pointers.
type pinSet struct {
	pinners []*runtime.Pinner // all full, except the last one in use
	count   int
}

const pinnerRoom = 5

// Pin pins the object at p until Unpin.
func (s *pinSet) Pin(p unsafe.Pointer) {
	i := s.count / pinnerRoom
	if i == len(s.pinners) {
		s.pinners = append(s.pinners, new(runtime.Pinner))
	}
	s.pinners[i].Pin(p)
	s.count++
}

// Unpin unpins everything.
func (s *pinSet) Unpin() {
	for i := 0; i*pinnerRoom < s.count; i++ {
		s.pinners[i].Unpin()
	}
	s.count = 0
}
