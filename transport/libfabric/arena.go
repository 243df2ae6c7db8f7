//go:build libfabric

package libfabric

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

const (
	contextSize = 64 // struct fi_context2
	slotCount   = 256
	slotSize    = (frameSize + copyLimit + 63) &^ 63
	stageSize   = 8 << 10
	// Without FI_MULTI_RECV there are recvBuffers receive buffers, and each takes one message.
	// With it there are largeBuffers large ones, and each takes many messages.
	recvBuffers  = 64
	largeBuffers = 4
	spareBuffers = 12        // replace large ones that are retired
	largeMin     = 512 << 10 // bytes of a large one
	largeShare   = 8         // a large one has room for at least this many messages of the largest size
)

// arena is the memory outside of Go's heap that libfabric reads and writes:
//
//	contexts: one per slot and receive buffer │ slots │ stage │ receive buffers
//
// Each operation in flight has a slot: a context and a buffer. The buffer holds the frame and header
// of a message, a whole short message, or the operands of an atomic operation. Injected messages are
// assembled in the stage.
type arena struct {
	mem   []byte
	base  uintptr
	mr    fi.RawRegion // the registration of mem, under FI_MR_LOCAL
	desc  fi.Desc      // the descriptor of mr
	stage []byte

	slots    []slot
	freeHead int32 // head of the list of free slots; -1: none
	busy     int   // slots in use

	bufs   []recvBuffer
	toPost []int // indices of buffers that the next Read posts
	spares int   // buffers at the end of bufs that have not been posted yet
	lost   int
}

// slot is the part of a slot in Go's heap.
type slot struct {
	op    *transport.Op // nil: the user needs no completion
	what  operation
	peer  transport.Addr
	next  int32
	order uint64         // rmaStarted when this read or write was posted
	pin   runtime.Pinner // pins the user's buffer
	mr    fi.RawRegion   // the registration of a message's data, under FI_MR_LOCAL
}

// operation is the kind of operation that a slot is used for.
type operation uint8

const (
	opNone operation = iota
	opSend
	opRead
	opWrite
	opAtomic
	opControl // a message of this transport: close or acknowledgment
)

func (o operation) String() string {
	return [...]string{"", "send", "read", "write", "atomic", "send"}[o]
}

// recvBuffer is memory for messages. A multi-receive buffer is used up when the provider says so.
// In net and rxm that may be before an earlier message in the buffer has arrived completely: one
// peer's bytes may still be read into the first half of the buffer while another peer's message in
// the second half is complete. So for providers that pack messages without gaps, recvBuffer also
// counts bytes.
type recvBuffer struct {
	mem  []byte
	used bool
	done int  // bytes of messages that have arrived
	end  int  // end offset of the last message in it, if used
	lost bool // a receive in it failed; it is not used again
}

// retire takes buffer i out of use after a failed receive, because the provider may still write to
// it, and replaces it by a spare one. If no buffer is left, it returns errBuffers, because no
// message can be received any more.
func (a *arena) retire(i int) error {
	if b := &a.bufs[i]; !b.lost {
		b.lost = true
		a.lost++
		if a.spares > 0 {
			a.toPost = append(a.toPost, len(a.bufs)-a.spares)
			a.spares--
		}
	}
	if a.lost == len(a.bufs) {
		return errBuffers
	}
	return nil
}

func newArena(maxFrame int, multi bool) (*arena, error) {
	count, size := recvBuffers, (maxFrame+63)&^63
	if multi {
		count, size = largeBuffers+spareBuffers, max(largeMin, largeShare*size)
	}
	slotsAt := (slotCount + recvBuffers) * contextSize
	stageAt := slotsAt + slotCount*slotSize
	recvAt := stageAt + stageSize
	mem, err := fi.OffHeap(recvAt + count*size)
	if err != nil {
		return nil, err
	}
	a := &arena{mem: mem, base: fi.AddressOf(mem), slots: make([]slot, slotCount), bufs: make([]recvBuffer, count)}
	a.stage = mem[stageAt:recvAt]
	for i := range a.slots {
		a.slots[i].next = int32(i) + 1
	}
	a.slots[slotCount-1].next = -1
	if multi {
		a.spares = spareBuffers
	}
	for i := range a.bufs {
		a.bufs[i].mem = mem[recvAt+i*size:][:size:size]
		if i < count-a.spares {
			a.toPost = append(a.toPost, i)
		}
	}
	return a, nil
}

// closeRegions closes the memory registrations of the arena and its slots.
func (a *arena) closeRegions() {
	for i := range a.slots {
		_ = a.slots[i].mr.Close() // if this fails, closing the domain fails, too
		a.slots[i].mr = fi.RawRegion{}
	}
	_ = a.mr.Close() // if this fails, closing the domain fails, too
	a.mr = fi.RawRegion{}
}

// release unmaps the memory. The caller must have closed all libfabric objects that use it.
func (a *arena) release() {
	if a == nil || a.mem == nil {
		return
	}
	for i := range a.slots {
		a.slots[i].pin.Unpin()
		a.slots[i].op = nil
	}
	_ = unix.Munmap(a.mem) // cannot fail: it is a whole mapping
	a.mem, a.stage = nil, nil
	for i := range a.bufs {
		a.bufs[i].mem = nil
	}
}

// acquire returns the index of a slot for an operation, or -1 if no slot is free.
func (a *arena) acquire(what operation, peer transport.Addr, op *transport.Op) int {
	i := a.freeHead
	if i < 0 {
		return -1
	}
	s := &a.slots[i]
	a.freeHead = s.next
	a.busy++
	s.what, s.peer, s.op = what, peer, op
	return int(i)
}

// free closes the registration of slot i, unpins its user data and returns it to the free list.
func (a *arena) free(i int) {
	s := &a.slots[i]
	if s.mr != (fi.RawRegion{}) {
		_ = s.mr.Close() // if this fails, closing the domain fails, too
		s.mr = fi.RawRegion{}
	}
	if s.op != nil {
		s.pin.Unpin()
		s.op = nil
	}
	s.what = opNone
	s.next = a.freeHead
	a.freeHead = int32(i)
	a.busy--
}

// slotBuf returns the buffer of slot i.
func (a *arena) slotBuf(i int) []byte {
	at := (slotCount+recvBuffers)*contextSize + i*slotSize
	return a.mem[at : at+slotSize : at+slotSize]
}

// context returns the context pointer of slot i, or of receive buffer i-slotCount.
func (a *arena) context(i int) uintptr { return a.base + uintptr(i)*contextSize }

// index is the inverse of context. It returns -1 for a context that is not in the arena, for
// example the null pointer of injected messages.
func (a *arena) index(context uintptr) int {
	off := context - a.base
	if off >= uintptr(slotCount+len(a.bufs))*contextSize {
		return -1
	}
	return int(off / contextSize)
}
