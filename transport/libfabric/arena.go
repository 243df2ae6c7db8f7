//go:build libfabric

package libfabric

import (
	"runtime"
	"time"

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

	slots    []slot  // as many as the provider has room for operations, at most slotCount
	freeHead int32   // head of the list of free slots; -1: none
	busy     int     // number of slots in use
	messages int     // number of slots in use by messages
	peerBusy []int32 // number of slots in use by peer

	bufs   []recvBuffer
	toPost []int // indices in bufs of the buffers that the next [domain.poll] posts
	spares []int // indices in bufs of multi-receive buffers that are not in use
	lost   []int // indices in bufs of the buffers that [arena.retire] has taken out of use
}

// slot is the state of one operation in flight. libfabric does not access it. It accesses the
// struct fi_context2 and the buffer that the arena has for each slot.
type slot struct {
	op    *transport.Op // the operation whose end an OpDone reports; nil: no OpDone reports the end
	what  operation     // kind of the operation; opNone: the slot is free
	peer  transport.Addr
	next  int32  // in a free slot, the index of the next free one; -1: none
	order uint64 // number of this read or write in the order of posting (domain.rmaStarted)
	size  int32  // number of bytes of a message that are in the arena's buffer
	div   division
	// The fields failures, pause, due and cause are of a message that has failed; see resend.go.
	failures uint8          // how often it has failed, except with FI_ENORX
	pause    time.Duration  // the last pause before it was sent again
	due      time.Time      // the end of that pause
	cause    error          // the last failure
	pin      runtime.Pinner // pins op.Data of a read, a write or a message whose data is not copied
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

func (o operation) isMessage() bool { return o == opSend || o == opControl }

// newArena maps the memory of an arena for messages of up to maxFrame bytes, for a job with this
// number of peers. txSize is the number of operations that the provider has room for; 0: it does
// not say. If multi is set, the receive buffers are multi-receive buffers.
func newArena(maxFrame, peers, txSize int, multi bool) (*arena, error) {
	slots := slotCount
	if txSize > 0 {
		slots = min(slots, txSize)
	}
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
	a := &arena{
		mem: mem, base: fi.AddressOf(mem),
		slots: make([]slot, slots), peerBusy: make([]int32, peers), bufs: make([]recvBuffer, count),
	}
	a.stage = mem[stageAt:recvAt]
	for i := range a.slots {
		a.slots[i].next = int32(i) + 1
	}
	a.slots[slots-1].next = -1
	for i := range a.bufs {
		a.bufs[i].mem = mem[recvAt+i*size:][:size:size]
		if multi && i >= largeBuffers {
			a.spares = append(a.spares, i)
		} else {
			a.toPost = append(a.toPost, i)
		}
	}
	return a, nil
}

// closeRegion closes the registration of the arena.
func (a *arena) closeRegion() {
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

// share bounds the slots of one peer: it may use at most share times as many as are free. So a peer
// whose operations are stuck leaves slots for the others: alone it uses three quarters of them, and
// any number of such peers leave some free.
const share = 3

// acquire takes a [slot] for an operation with peer and returns its index, or -1 if no slot is free for
// that peer. If op is nil, no OpDone will report the end of the operation.
func (a *arena) acquire(what operation, peer transport.Addr, op *transport.Op) int {
	if n := a.peerBusy[peer]; int(n) >= share*(len(a.slots)-a.busy) {
		return -1
	}
	i := a.freeHead
	s := &a.slots[i]
	a.freeHead = s.next
	a.busy++
	a.peerBusy[peer]++
	if what.isMessage() {
		a.messages++
	}
	s.what, s.peer, s.op = what, peer, op
	return int(i)
}

// free ends the use of the [slot] with index i: it unpins the operation's data, if there is any, and
// puts the slot on the list of free slots.
func (a *arena) free(i int) {
	s := &a.slots[i]
	if s.op != nil {
		s.pin.Unpin()
		s.op = nil
	}
	if s.cause != nil {
		s.failures, s.pause, s.cause = 0, 0, nil
	}
	if s.div.parts != 0 {
		s.div = division{}
	}
	if s.what.isMessage() {
		a.messages--
	}
	s.what = opNone
	s.next = a.freeHead
	a.freeHead = int32(i)
	a.busy--
	a.peerBusy[s.peer]--
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
