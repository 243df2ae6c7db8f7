//go:build libfabric

package fi

import (
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Slots are the memory that identifies operations to libfabric. A slot is the 64 bytes that
// FI_CONTEXT2 grants to the provider, and nothing else. Its address gives its index, and the index
// leads to the Context. So all slots lie in one range of addresses, which is reserved at the first
// use and gets memory in chunks. A completion may also carry other contexts (null, or an address of
// another library); they lie outside of the range and are never dereferenced.
const (
	slotSize   = 64      // struct fi_context2
	slotsLimit = 1 << 24 // a reservation of 1 GiB of addresses
	chunkSlots = 1 << 10 // slots that get memory at a time
)

// slots is the state of all slots of the process. Index 0 is not used.
var slots struct {
	base atomic.Uintptr // address of slot 0; 0: not reserved yet

	mu       sync.Mutex
	reserved []byte
	next     uint32   // the first index that was never taken
	limit    uint32   // number of slots in the reserved range
	spare    []uint32 // freed indices
}

// chunk holds the contexts in flight with chunkSlots slots. The handling of a completion finds its
// context here without a lock.
type chunk [chunkSlots]atomic.Pointer[Context]

var chunks [slotsLimit / chunkSlots]atomic.Pointer[chunk]

// slot is the slot of a context. A cleanup of the garbage collector frees it.
type slot struct{ index uint32 }

// take gives s a slot index with memory unless it has one. It returns false if there is no more
// memory.
func (s *slot) take() bool {
	if s.index != 0 {
		return true
	}
	slots.mu.Lock()
	defer slots.mu.Unlock()
	if n := len(slots.spare); n > 0 {
		s.index = slots.spare[n-1]
		slots.spare = slots.spare[:n-1]
		return true
	}
	if slots.reserved == nil && !reserveSlots() {
		return false
	}
	if slots.next == slots.limit {
		return false
	}
	if slots.next%chunkSlots == 0 || slots.next == 1 {
		first := int(slots.next) / chunkSlots * chunkSlots
		memory := slots.reserved[first*slotSize : (first+chunkSlots)*slotSize]
		if syscall.Mprotect(memory, syscall.PROT_READ|syscall.PROT_WRITE) != nil {
			return false
		}
		chunks[first/chunkSlots].Store(new(chunk))
	}
	s.index = slots.next
	slots.next++
	return true
}

// reserveSlots reserves the range of addresses, a smaller one if the process may not have so many.
// The caller holds slots.mu.
func reserveSlots() bool {
	for n := slotsLimit; n >= chunkSlots; n /= 8 {
		memory, err := syscall.Mmap(-1, 0, n*slotSize, syscall.PROT_NONE,
			syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
		if err == nil {
			slots.reserved, slots.limit, slots.next = memory, uint32(n), 1
			slots.base.Store(uintptr(unsafe.Pointer(unsafe.SliceData(memory))))
			return true
		}
	}
	return false
}

// free returns the slot index.
func (s *slot) free() {
	if s.index != 0 {
		freeSlots([]uint32{s.index})
		s.index = 0
	}
}

func freeSlots(indexes []uint32) {
	slots.mu.Lock()
	defer slots.mu.Unlock()
	slots.spare = append(slots.spare, indexes...)
}

// address returns the address of the slot's memory. The slot must have an index.
func (s *slot) address() uintptr { return slots.base.Load() + uintptr(s.index)*slotSize }

// entryOf returns where the context in flight with a slot is stored.
func entryOf(index uint32) *atomic.Pointer[Context] {
	return &chunks[index/chunkSlots].Load()[index%chunkSlots]
}

// finishContext returns the context in flight that a completion with these flags names, nil if it
// is not one of this package. It ends the operation, unless the operation is a receive for several
// messages that continues.
func finishContext(op uintptr, flags Flags, failed bool) *Context {
	offset := op - slots.base.Load()
	if offset%slotSize != 0 || offset/slotSize >= slotsLimit {
		return nil
	}
	index := uint32(offset / slotSize)
	chunk := chunks[index/chunkSlots].Load()
	if chunk == nil {
		return nil
	}
	c := chunk[index%chunkSlots].Load()
	if c != nil && (!c.multi.Load() || flags&FlagMultiRecv != 0) {
		if failed {
			c.claimed.Store(nil)
		}
		c.end(index)
	}
	return c
}

// abandon ends all operations in flight on a closed endpoint and returns their slots. Completions
// that were queued before may still name the slots, so the caller must not free the slots before
// the queues are closed.
func abandon(e *Endpoint) []uint32 {
	var left []uint32
	for i := range chunks {
		chunk := chunks[i].Load()
		if chunk == nil {
			break // chunks are allocated in order
		}
		for j := range chunk {
			c := chunk[j].Load()
			if c == nil || c.owner.Load() != e || !chunk[j].CompareAndSwap(c, nil) {
				continue
			}
			left = append(left, c.slot.index)
			c.slot.index = 0
			c.pins.Unpin()
			c.owner.Store(nil)
		}
	}
	return left
}
