//go:build libfabric

package fi

import (
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// The memory that libfabric knows operations by, and the way back from there to
// the contexts.
//
// A slot has the 64 bytes that FI_CONTEXT2 gives to providers and nothing else:
// its index, which leads to the context, follows from its address. For that all
// slots lie in one range of addresses, reserved at the first use and given
// memory by and by. Whatever else a completion may carry as its context (null,
// an address of another library) is outside of the range and never followed.
const (
	slotSize   = 64      // struct fi_context2
	slotsLimit = 1 << 24 // a reservation of 1 GiB of addresses
	chunkSlots = 1 << 10 // how many are given memory at a time
)

// slots is what the process has of them. Slot 0 is no slot.
var slots struct {
	base atomic.Uintptr // of slot 0; 0: not reserved yet

	mu       sync.Mutex
	reserved []byte
	next     uint32 // the first that was never taken
	limit    uint32 // how many have addresses
	spare    []uint32
}

// chunk holds the contexts in flight of chunkSlots slots. Completions find them
// here, without a lock.
type chunk [chunkSlots]atomic.Pointer[Context]

var chunks [slotsLimit / chunkSlots]atomic.Pointer[chunk]

// slot is a context's place. The garbage collector frees it by its cleanup.
type slot struct{ index uint32 }

// take gives s memory unless it has it; false: there is none.
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

// reserveSlots reserves the range of addresses, a smaller one where the process
// may not have so many. It is called with slots.mu.
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

// free gives the memory back.
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

// address is that of the slot's memory, which it has.
func (s *slot) address() uintptr { return slots.base.Load() + uintptr(s.index)*slotSize }

// entryOf is where the context in flight with a slot is found.
func entryOf(index uint32) *atomic.Pointer[Context] {
	return &chunks[index/chunkSlots].Load()[index%chunkSlots]
}

// reported is the context in flight that a completion with these flags names,
// nil if it is none of ours. The operation ends unless it is a receive for
// several messages that goes on.
func reported(op uintptr, flags Flags, failed bool) *Context {
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
			c.aside.Store(nil)
		}
		c.end(index)
	}
	return c
}

// abandon ends everything in flight on an endpoint that has been closed, and
// returns the slots. Completions that were queued before may still name them,
// so they are not used again before the queues are gone.
func abandon(e *Endpoint) []uint32 {
	var left []uint32
	for i := range chunks {
		chunk := chunks[i].Load()
		if chunk == nil {
			break // they are made in order
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
