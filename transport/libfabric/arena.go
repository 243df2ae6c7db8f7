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
	// recvBuffers is how many receive buffers there are: large ones where each
	// takes many messages, else one per message.
	recvBuffers  = 64
	largeBuffers = 4
	spareBuffers = 12        // in place of large ones that are lost
	largeMin     = 512 << 10 // bytes of a large one
	largeShare   = 8         // and it takes this many of the largest messages at least
)

// arena is the memory outside of Go's heap that libfabric works on:
//
//	contexts: one per slot and receive buffer │ slots │ stage │ receive buffers
//
// A slot is an operation in flight: its context, and a buffer for the frame and
// header of a message, for a short message whole, or for the operands of an
// atomic. The stage is where injected messages are put together.
type arena struct {
	mem   []byte
	base  uintptr
	mr    fi.RawRegion // all of it, under FI_MR_LOCAL
	desc  fi.Desc      // of that
	stage []byte

	slots []slot
	free  int32 // head of the list of free slots; -1: none
	busy  int   // slots in use

	bufs   []recvBuffer
	spent  []int // buffers to be posted at the next Read
	spares int   // buffers at the end of bufs that have not been posted yet
	lost   int
}

// slot is Go's side of one.
type slot struct {
	op    *transport.Op // nil: nobody waits for it
	what  operation
	peer  transport.Addr
	next  int32
	order uint64         // of a read or write among all
	pin   runtime.Pinner // of the user's buffer
	mr    fi.RawRegion   // of the data of a message, under FI_MR_LOCAL
}

// operation is what a slot is in flight for.
type operation uint8

const (
	opNone operation = iota
	opSend
	opRead
	opWrite
	opAtomic
	opControl // our own message
)

func (o operation) String() string {
	return [...]string{"", "send", "read", "write", "atomic", "send"}[o]
}

// recvBuffer is memory for messages. One that takes several is used up when the
// provider says so, which in net and rxm may be before an earlier message in it
// has come whole: into its first half one peer's bytes may still be read while
// another peer's message in the second half is complete. There, where messages
// are packed, bytes are counted too.
type recvBuffer struct {
	mem  []byte
	used bool
	done int  // bytes of messages that have come
	end  int  // of the last message in it, when used
	lost bool // a message in it broke off; it is not used again
}

// lose takes buffer i out of use, because a message in it broke off and what
// the provider still writes to it is not known, and puts a spare in its place.
// When all are lost no message can come any more.
func (a *arena) lose(i int) error {
	if b := &a.bufs[i]; !b.lost {
		b.lost = true
		a.lost++
		if a.spares > 0 {
			a.spent = append(a.spent, len(a.bufs)-a.spares)
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
			a.spent = append(a.spent, i)
		}
	}
	return a, nil
}

// closeRegions withdraws what is registered.
func (a *arena) closeRegions() {
	for i := range a.slots {
		_ = a.slots[i].mr.Close() // the domain's close tells if it is still in use
		a.slots[i].mr = fi.RawRegion{}
	}
	_ = a.mr.Close() // as above
	a.mr = fi.RawRegion{}
}

// release gives the memory back, when libfabric has nothing more of it.
func (a *arena) release() {
	if a == nil || a.mem == nil {
		return
	}
	for i := range a.slots {
		a.slots[i].pin.Unpin()
		a.slots[i].op = nil
	}
	_ = unix.Munmap(a.mem) // it is ours, whole
	a.mem, a.stage = nil, nil
	for i := range a.bufs {
		a.bufs[i].mem = nil
	}
}

// take finds a slot for an operation; -1: none is free.
func (a *arena) take(what operation, peer transport.Addr, op *transport.Op) int {
	i := a.free
	if i < 0 {
		return -1
	}
	s := &a.slots[i]
	a.free = s.next
	a.busy++
	s.what, s.peer, s.op = what, peer, op
	return int(i)
}

// put frees a slot.
func (a *arena) put(i int) {
	s := &a.slots[i]
	if s.mr != (fi.RawRegion{}) {
		_ = s.mr.Close() // the domain's close tells if it is still in use
		s.mr = fi.RawRegion{}
	}
	if s.op != nil {
		s.pin.Unpin()
		s.op = nil
	}
	s.what = opNone
	s.next = a.free
	a.free = int32(i)
	a.busy--
}

// buf is a slot's buffer.
func (a *arena) buf(i int) []byte {
	at := (slotCount+recvBuffers)*contextSize + i*slotSize
	return a.mem[at : at+slotSize : at+slotSize]
}

// address is where a part of the arena lies.
func (a *arena) address(b []byte) uintptr { return fi.AddressOf(b) }

// context names slot i, or receive buffer i-slotCount, to libfabric.
func (a *arena) context(i int) uintptr { return a.base + uintptr(i)*contextSize }

// index is the inverse of context; -1 for what is none of ours, as the null of
// injected messages.
func (a *arena) index(context uintptr) int {
	off := context - a.base
	if off >= uintptr(slotCount+len(a.bufs))*contextSize {
		return -1
	}
	return int(off / contextSize)
}
