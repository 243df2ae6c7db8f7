//go:build libfabric

package fi

import (
	"runtime"
	"sync"
	"unsafe"
)

// livePins keeps the Pinners of all open objects reachable. So if the program loses an object
// without closing it, the object's memory stays pinned, because libfabric may still access that
// memory.
var livePins sync.Map // the keys are *runtime.Pinner, the values nil

// pin pins the Go object at each of the pointers until unpin is called with the result. It skips
// nil pointers. Pointers to memory outside of Go's heap are allowed and have no effect.
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

// unpin unpins everything that p, the result of pin, has pinned.
func unpin(p *runtime.Pinner) {
	p.Unpin()
	livePins.Delete(p)
}

// atClose makes Close call f after it has closed o. o must be open.
func (o *object) atClose(f func()) {
	objects.Lock()
	defer objects.Unlock()
	o.closed = append(o.closed, f)
}
