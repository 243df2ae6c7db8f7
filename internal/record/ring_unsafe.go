package record

import (
	"sync/atomic"
	"unsafe"
)

// ring is a ring of events with one writer at a time. The writer stores the words of an event, and
// then the number of events in tail. From time to time it stores that number atomically in head. A
// reader that runs at the same time as the writer reads events up to head. A reader of a rank that
// has ended reads up to tail. The place after the last event has no event, because the writer may have
// begun the next one there.
type ring struct {
	events unsafe.Pointer
	mask   uint64
	tail   *uint64 // number of events so far
	head   *atomic.Uint64
}

// newRing returns the ring in mem[at:] that has room for 1<<bits events. head and tail are the
// offsets of its counters in mem.
func newRing(mem []byte, at, bits, head, tail int) ring {
	return ring{
		events: unsafe.Pointer(&mem[at : at+eventSize<<bits][0]), mask: 1<<bits - 1,
		tail: plain(mem, tail), head: word(mem, head),
	}
}

// put appends an event. n is the number of events before it.
//
// Hot path: no allocation, no lock.
func (r *ring) put(n, w0, w1, w2, w3 uint64) {
	e := r.at(n)
	e[0], e[1], e[2], e[3] = w0, w1, w2, w3
	*r.tail = n + 1
}

// fetch stores to event n, which will be appended next, so that its cache line is there by then. Otherwise
// the store of a received event waits for the line, and then a message that answers the received one
// waits, too: other processors see stores in their order. After a message has left there is time for that.
//
// Hot path: no allocation, no lock.
func (r *ring) fetch(n uint64) { r.at(n)[0] = 0 }

// at returns the words of the event number i.
func (r *ring) at(i uint64) *[eventWords]uint64 {
	return (*[eventWords]uint64)(unsafe.Add(r.events, i&r.mask*eventSize)) //nolint:gosec // inside the ring, by the mask
}

// drop takes back the last event, which no reader of a running rank can have seen.
func (r *ring) drop() { *r.tail-- }

// callRing is a ring with several writers at a time: they take numbers of events from tail. So an event
// below tail may not be complete for a moment.
type callRing struct {
	ring
	next *atomic.Uint64 // tail
}

// put appends the event e and returns its number.
//
// Hot path: no allocation, no lock.
func (r *callRing) put(e *Event) (i uint64) {
	i = r.next.Add(1) - 1
	w := r.at(i)
	w[0], w[1] = uint64(e.Start), uint64(e.Comm)<<48|uint64(e.Protocol)<<40|uint64(e.Op)<<32|durationWord(e.Duration)
	w[2], w[3] = uint64(uint32(e.Tag))<<32|uint64(uint32(e.Peer)), uint64(e.Seq&seqMask)<<bytesBits|uint64(min(e.Bytes, maxBytes))
	return i
}

// load returns the event number i of a ring of 1<<bits events, whose memory is mem.
func load(mem []byte, bits int, i uint64) Event {
	at := int(i&(1<<bits-1)) * eventSize
	var w [eventWords]uint64
	for k := range w {
		w[k] = word(mem, at+8*k).Load()
	}
	return Event{
		Start: durationFrom(w[0]), Duration: durationOf(w[1]), Op: Op(w[1] >> 32), Protocol: Protocol(w[1] >> 40), Comm: uint16(w[1] >> 48),
		Peer: int32(uint32(w[2])), Tag: int32(uint32(w[2] >> 32)), Bytes: int64(w[3] & maxBytes), Seq: uint32(w[3] >> bytesBits),
	}
}

// word returns the word at the offset at, for atomic access.
func word(mem []byte, at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&mem[at : at+8][0]))
}

// plain returns the word at the offset at. Only the rank may use it. A word is aligned, so a reader
// in another process sees either the old or the new value.
func plain(mem []byte, at int) *uint64 {
	return (*uint64)(unsafe.Pointer(&mem[at : at+8][0]))
}
