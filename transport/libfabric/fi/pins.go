//go:build libfabric

package fi

import (
	"runtime"
	"sync"
	"unsafe"
)

// livePins holds the pins of open objects. If the program drops an object without Close, its pins
// stay, because libfabric still uses the memory.
var livePins sync.Map // keys: *runtime.Pinner

// pin pins memory until unpin. Memory outside of Go's heap is allowed.
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

// atClose makes Close of o, which is open, call f.
func (o *object) atClose(f func()) {
	objects.Lock()
	defer objects.Unlock()
	o.closed = append(o.closed, f)
}
