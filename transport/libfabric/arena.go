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
	contextSize = 64                                 // size of a struct fi_context2
	slotCount   = 256                                // how many operations may be in flight, except receives
	slotSize    = (frameSize + copyLimit + 63) &^ 63 // a frame and a copied message, up to the next multiple of 64
	stageSize   = 8 << 10                            // largest message with its frame that is injected
	// Without FI_MULTI_RECV there are recvBuffers receive buffers, and each takes one message.
	// With it there are largeBuffers large ones, and each takes many messages.
	recvBuffers  = 64
	largeBuffers = 4
	spareBuffers = 12        // more large ones, which replace those that retire takes out of use
	largeMin     = 512 << 10 // smallest size of a large one
	largeShare   = 8         // a large one has room for at least this many messages of the largest size
)

// arena is the memory outside of Go's heap that libfabric reads and writes:
//
//	contexts: one per slot and receive buffer │ slots │ stage │ receive buffers
//
// Each operation in flight, except receives and injected messages, has a [slot], with a context and
// a buffer in the arena. The buffer holds the frame and header of a message, a whole short message,
// or the operands of an atomic operation. The stage is the buffer in which an injected message is
// put together.
type arena struct {
	mem   []byte
	base  uintptr
	mr    fi.RawRegion // the registration of mem, if the domain has FI_MR_LOCAL
	desc  fi.Desc      // the descriptor of mr
	stage []byte

	slots    []slot
	freeHead int32 // head of the list of free slots; -1: none
	busy     int   // number of slots in use

	bufs   []recvBuffer
	toPost []int // indices in bufs of the buffers that the next poll posts
	spares int   // how many buffers at the end of bufs have not been posted yet
	lost   int   // how many buffers retire has taken out of use
}

// slot describes one operation in flight. The arena has a struct fi_context2 and a buffer for each
// slot, which libfabric accesses; this structure is in Go's heap and has everything else.
type slot struct {
	op    *transport.Op // the user's operation; nil: the user needs no completion
	what  operation
	peer  transport.Addr
	next  int32          // the next slot in the list of free slots; -1: none
	order uint64         // value of domain.rmaStarted when this read or write was posted
	pin   runtime.Pinner // pins the user's buffer
	mr    fi.RawRegion   // the registration of a message's data, if the domain has FI_MR_LOCAL
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
// provider has released it (used) and all messages in it have arrived (done >= end). A buffer for
// one message is released by its completion. A multi-receive buffer is released when a completion
// has FI_MULTI_RECV. In net and rxm that may be too early: bytes of one peer's message may still be
// read into the first half of the buffer while another peer's message in the second half is
// complete. So for providers that put messages into the buffer without gaps, recvBuffer also counts
// bytes.
type recvBuffer struct {
	mem  []byte
	used bool // the provider puts no more messages into the buffer
	done int  // bytes of the messages that have arrived
	end  int  // if used and domain.packed, the offset in mem where the last message ends; else 0
	lost bool // a receive into the buffer failed, and it is not posted again
}

// retire takes receive buffer i out of use after a failed receive, because the provider may still
// write to the buffer. It replaces the buffer by a spare one if there is one. If no buffer is left,
// retire returns errBuffers, because no message can be received any more.
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
		_ = a.slots[i].mr.Close() // not handled, because after a failure closing the domain fails, too
		a.slots[i].mr = fi.RawRegion{}
	}
	_ = a.mr.Close() // not handled, because after a failure closing the domain fails, too
	a.mr = fi.RawRegion{}
}

// release unmaps the arena's memory and unpins users' buffers. The caller must have closed all
// libfabric objects that use the memory.
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
// free. If op is nil, the user needs no completion.
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

// free ends the use of the [slot] with index i: it closes the slot's registration, unpins the
// user's buffer and puts the slot on the list of free slots.
func (a *arena) free(i int) {
	s := &a.slots[i]
	if s.mr != (fi.RawRegion{}) {
		_ = s.mr.Close() // not handled, because after a failure closing the domain fails, too
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

// index returns the i for which context returns this address. It returns -1 for a context that is
// not in the arena, for example the null pointer in the completion of an injected message.
func (a *arena) index(context uintptr) int {
	off := context - a.base
	if off >= uintptr(slotCount+len(a.bufs))*contextSize {
		return -1
	}
	return int(off / contextSize)
}
