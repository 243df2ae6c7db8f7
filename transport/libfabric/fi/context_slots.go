//go:build libfabric

package fi

import (
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// A slot is the memory of one [Context] that libfabric sees: the 64 bytes of a struct fi_context2
// (FI_CONTEXT2), which only the provider reads and writes. Posting calls pass the slot's address as
// the operation's context, and the completion carries it back. The address gives the slot's index,
// and with the index the array chunks gives the Context.
//
// For this computation all slots lie in one range of addresses. The first use reserves the range,
// and parts of it, the chunks, get memory when they are needed. A completion may also carry a
// context that is no slot: null, or an address of another library. Such an address lies outside of
// the range and is never dereferenced.
const (
	slotSize   = 64      // size of a slot: a struct fi_context2
	slotsLimit = 1 << 24 // largest number of slots, for which 1 GiB of addresses is reserved
	chunkSlots = 1 << 10 // slots of a chunk, which get their memory at the same time
)

// slots is the allocator of the process's slots. Index 0 is not used, because it marks a [slot]
// that has no index yet.
var slots struct {
	base atomic.Uintptr // address of slot 0; 0: not reserved yet

	mu       sync.Mutex
	reserved []byte   // the whole range; nil: not reserved yet
	next     uint32   // the first index that was never taken
	limit    uint32   // number of slots in the reserved range
	spare    []uint32 // indices that were freed and are taken first
}

// chunk has one entry for each of chunkSlots consecutive slots: the Context that is in flight with
// the slot, or nil. finishContext reads the entries without a lock.
type chunk [chunkSlots]atomic.Pointer[Context]

var chunks [slotsLimit / chunkSlots]atomic.Pointer[chunk]

// slot is the index of a Context's slot, 0 if the Context has no slot, for example before its first
// operation. It is a Go object of its own, so that a cleanup can free the index when the Context
// has been collected.
type slot struct{ index uint32 }

// take gives s the index of a free slot that has memory, unless s has an index already. It returns
// false if no slot is free or the kernel refuses the memory.
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

// reserveSlots reserves the range of addresses for slotsLimit slots, or for fewer if the kernel
// refuses so many. It returns false if the kernel refuses every range that it tries. The caller
// holds slots.mu.
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

// free makes the index of s available to other contexts.
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

// entryOf returns the entry in chunks of the slot with this index, whose chunk must exist.
func entryOf(index uint32) *atomic.Pointer[Context] {
	return &chunks[index/chunkSlots].Load()[index%chunkSlots]
}

// finishContext handles a completion with the context op and these flags. It returns the Context
// that is in flight with the slot at address op, or nil if there is none. It ends the operation,
// unless the operation is a multi-receive and flags lack FlagMultiRecv. failed says that the
// operation has failed; then no message stays reserved for the Context.
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

// abandon ends all operations in flight on the closed endpoint e and returns the indices of their
// slots. A completion queue may still hold completions with the addresses of these slots. So the
// caller must not free the indices before the endpoint's queues are closed.
func abandon(e *Endpoint) []uint32 {
	var left []uint32
	for i := range chunks {
		chunk := chunks[i].Load()
		if chunk == nil {
			break // chunks are allocated in the order of their indices, so there are no more
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
