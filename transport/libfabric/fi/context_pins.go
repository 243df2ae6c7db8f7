//go:build libfabric

package fi

import (
	"runtime"
	"unsafe"
)

// pinSet pins any number of objects. It allocates only when it pins more of them at a time than
// ever before: it reuses its runtime.Pinners, each of which has room for pinnerRoom pointers and
// would allocate for more.
type pinSet struct {
	pinners []*runtime.Pinner // filled from the first one on, each with up to pinnerRoom pointers
	count   int               // number of pointers that are pinned now
}

// pinnerRoom is the number of pointers that a runtime.Pinner can hold without allocating.
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
