//go:build libfabric

package fi

import (
	"runtime"
	"sync"
	"unsafe"
)

// livePins holds the pins of open objects. They outlive an object that is
// forgotten without Close, as libfabric goes on using the memory.
var livePins sync.Map // of *runtime.Pinner

// pin keeps memory where it is until unpin. Memory that is not Go's passes.
func pin(memory ...unsafe.Pointer) *runtime.Pinner {
	p := new(runtime.Pinner)
	for _, m := range memory {
		if m != nil {
			p.Pin(m)
		}
	}
	livePins.Store(p, nil)
	return p
}

// unpin ends a pin.
func unpin(p *runtime.Pinner) {
	p.Unpin()
	livePins.Delete(p)
}

// atClose has f run when o, which is open, is closed.
func (o *object) atClose(f func()) {
	objects.Lock()
	defer objects.Unlock()
	o.closed = append(o.closed, f)
}
