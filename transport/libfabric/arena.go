//go:build libfabric

package libfabric

import (
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

const (
	// Sizes are in bytes.
	contextSize = 64 // size of a struct fi_context2
	// slotCount is the number of operations that may be in flight, not counting receives and
	// injected messages.
	slotCount = 256
	// slotSize is a frame and copyLimit bytes, rounded up to a multiple of 64.
	slotSize = (frameSize + copyLimit + 63) &^ 63
	// stageSize is the size of [arena.stage]. No message that is larger, frame included, is
	// injected.
	stageSize = 8 << 10
	// Without FI_MULTI_RECV the arena has recvBuffers receive buffers, and each takes one message.
	// With FI_MULTI_RECV it has largeBuffers + spareBuffers receive buffers, and each takes several
	// messages.
	recvBuffers  = 64
	largeBuffers = 4 // number of multi-receive buffers that are in use
	// spareBuffers is the number of multi-receive buffers that are held back, to replace those that
	// [arena.retire] takes out of use.
	spareBuffers = 12
	largeMin     = 512 << 10 // smallest size of a multi-receive buffer
	// largeShare is the number of messages of the largest size for which a multi-receive buffer has
	// room at least.
	largeShare = 8
)

// arena has the memory outside of Go's heap that libfabric may access after a call has returned:
//
//	contexts of slots and receive buffers │ buffers of slots │ stage │ receive buffers
//
// Each operation in flight, except receives and injected messages, has a [slot], with a context and
// a buffer in the arena. The buffer holds the frame and header of a message, a whole short message,
// or the operands of an atomic operation; a read or write does not use it. The stage is the buffer
// in which an injected message is put together.
type arena struct {
	mem   []byte       // the whole mapping
	base  uintptr      // the address of mem
	mr    fi.RawRegion // the registration of mem, if the domain has FI_MR_LOCAL; else zero
	desc  fi.Desc      // the descriptor of mr
	stage []byte       // part of mem

	slots    []slot
	freeHead int32 // head of the list of free slots; -1: none
	busy     int   // number of slots in use

	bufs   []recvBuffer
	toPost []int // indices in bufs of the buffers that the next [domain.poll] posts
	spares int   // number of buffers at the end of bufs that have not been used yet
	lost   int   // number of buffers that [arena.retire] has taken out of use
}

// slot is the state of one operation in flight. libfabric does not access it. It accesses the
// struct fi_context2 and the buffer that the arena has for each slot.
type slot struct {
	op    *transport.Op // the operation whose end an OpDone reports; nil: no OpDone reports the end
	what  operation     // kind of the operation; opNone: the slot is free
	peer  transport.Addr
	next  int32          // in a free slot, the index of the next free one; -1: none
	order uint64         // number of this read or write in the order of posting (domain.rmaStarted)
	pin   runtime.Pinner // pins op.Data of a read, a write or a message whose data is not copied
	// mr is the registration of the data of a message that is not copied, if the domain has
	// FI_MR_LOCAL. Otherwise it is zero.
	mr fi.RawRegion
}

// operation is the kind of operation that uses a slot.
type operation uint8

const (
	opNone operation = iota
	opSend
	opRead
	opWrite
	opAtomic
	opControl // a message of the transport itself: close or acknowledgment
)

func (o operation) String() string {
	return [...]string{"", "send", "read", "write", "atomic", "send"}[o]
}

// recvBuffer is a buffer that is posted for receiving messages. It may be posted again when the
// provider has released it (used) and all messages in it are complete (done >= end), unless retire
// has taken it out of use (lost). A buffer for one message is released by its completion. A
// multi-receive buffer is released by a completion with FI_MULTI_RECV. In net and rxm that may be
// too early: the provider may still read one peer's message into the first half of the buffer when
// another peer's message in the second half is complete. So for providers that put messages into
// the buffer without gaps, recvBuffer also counts bytes.
type recvBuffer struct {
	mem  []byte
	used bool // the provider puts no more messages into the buffer
	done int  // in a multi-receive buffer, total size in bytes of the complete messages since it was posted
	// end is the offset in mem where the last message ends, in a multi-receive buffer that is used,
	// if domain.packed is set. Otherwise it is 0.
	end  int
	lost bool // [arena.retire] has taken the buffer out of use, so it is not posted again
}

// retire takes receive buffer i out of use after a failed receive, because the provider may still
// write to the buffer. It replaces the buffer by a spare one, if a spare one is left. If all
// buffers are out of use, retire returns errBuffers, because no message can be received any more.
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

// closeRegions closes the registration of the arena and those of messages' data.
func (a *arena) closeRegions() {
	for i := range a.slots {
		_ = a.slots[i].mr.Close() // the error is ignored, because closing the domain then fails, too
		a.slots[i].mr = fi.RawRegion{}
	}
	_ = a.mr.Close() // the error is ignored, because closing the domain then fails, too
	a.mr = fi.RawRegion{}
}

// release unmaps the arena's memory and unpins the buffers of operations that have not ended. All
// libfabric objects that use this memory must be closed. a may be nil.
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

// acquire takes a [slot] for an operation with peer and returns its index, or -1 if no slot is
// free. If op is nil, no OpDone will report the end of the operation.
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

// free ends the use of the [slot] with index i: it closes the slot's registration and unpins the
// operation's data, if there are any, and puts the slot on the list of free slots.
func (a *arena) free(i int) {
	s := &a.slots[i]
	if s.mr != (fi.RawRegion{}) {
		_ = s.mr.Close() // the error is ignored, because closing the domain then fails, too
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

// slotBuf returns the arena's buffer for the [slot] with index i.
func (a *arena) slotBuf(i int) []byte {
	at := (slotCount+recvBuffers)*contextSize + i*slotSize
	return a.mem[at : at+slotSize : at+slotSize]
}

// context returns the address of the struct fi_context2 of the [slot] with index i or, if i is
// slotCount or more, of receive buffer i-slotCount.
func (a *arena) context(i int) uintptr { return a.base + uintptr(i)*contextSize }

// index returns the i for which context returns this address. It returns -1 for an address that
// context does not return, for example the null pointer in the completion of an injected message.
func (a *arena) index(context uintptr) int {
	off := context - a.base
	if off >= uintptr(slotCount+len(a.bufs))*contextSize {
		return -1
	}
	return int(off / contextSize)
}
