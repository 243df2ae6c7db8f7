package record

import (
	"bytes"
	"math"
	"time"
)

// Reader reads the record of a rank, also while the rank writes it. A Reader may be used by one
// goroutine at a time.
type Reader struct {
	mem      []byte
	ringBits int
	ranks    int
	rings    int       // offset of the rings: 0 has messages, 1 has calls
	next     [2]uint64 // by ring: number of the next event that Read reads
	counters [2][2]int // by ring: offsets of the counters head and tail
	cursors  [2]cursor // by ring; Read and Last use them
}

// NewReader returns a reader for mem, the memory file of a rank of a job with this number of ranks.
// The rank may not have begun its record yet.
func NewReader(mem []byte, ranks, ringBits int) (*Reader, error) {
	if ranks < 1 || ranks > maxRanks || ringBits < MinBits || ringBits > maxBits || len(mem) != Size(ranks, ringBits) {
		return nil, errSize
	}
	return &Reader{
		mem: mem, ringBits: ringBits, ranks: ranks, rings: len(mem) - 2*eventSize<<ringBits,
		counters: [2][2]int{{messagesHeadAt, messagesTailAt}, {callsHeadAt, callsTailAt}},
	}, nil
}

// Begun reports whether the rank has begun its record: it is a weft program that has called Init.
func (r *Reader) Begun() bool {
	return word(r.mem, readyAt).Load() != 0 && word(r.mem, magicAt).Load() == magic
}

// SetDetail selects the level of the recorder.
func (r *Reader) SetDetail(on bool) { setDetail(word(r.mem, detailAt), on) }

// Times are the times of a record.
type Times struct {
	Wall      time.Time     // beginning of the record on the host's clock
	Monotonic time.Duration // the same on the host's monotonic clock
	End       time.Duration // when Finalize was complete, since the beginning; 0: it was not
}

// Times returns the times of the record.
func (r *Reader) Times() Times {
	return Times{
		time.Unix(0, int64(word(r.mem, wallAt).Load())), durationFrom(word(r.mem, monoAt).Load()), durationFrom(word(r.mem, endAt).Load()),
	}
}

func durationFrom(w uint64) time.Duration { return time.Duration(min(w, math.MaxInt64)) }

// OpFigures are the counters of one operation.
type OpFigures struct {
	Name  string        `json:"name"`
	Calls uint64        `json:"calls"`
	Bytes uint64        `json:"bytes"`
	Time  time.Duration `json:"time"` // 0 without detail
	// Background: the operation runs while the program computes.
	Background bool `json:"background,omitempty"`
}

// Ops returns the counters of the operations, by Op. Names that the rank has not written completely
// are empty.
func (r *Reader) Ops() []OpFigures {
	n := min(int(word(r.mem, opsCountAt).Load()&math.MaxInt32), tableMax)
	list := make([]OpFigures, n)
	for i := range list {
		at := opsAt + i*entrySize
		list[i] = OpFigures{
			r.OpName(Op(i)), word(r.mem, at+opCountAt).Load(), word(r.mem, at+opBytesAt).Load(), durationFrom(word(r.mem, at+opTimeAt).Load()),
			word(r.mem, at+opFlagsAt).Load() != 0,
		}
	}
	return list
}

// name returns the name in b, without characters that cannot be printed.
func name(b []byte) string {
	b = b[:nameMax]
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(bytes.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == '\uFFFD' {
			return '?'
		}
		return c
	}, b))
}

// OpName returns the name of an operation; "": the rank has not written it.
func (r *Reader) OpName(op Op) string {
	if int(op) < int(opFirst) {
		return [opFirst]string{OpSent: "sent", OpReceived: "received"}[op]
	}
	return name(r.mem[opsAt+int(op)*entrySize+opNameAt:])
}

// CommName returns the name of a communicator, by Event.Comm; "": it has no entry in the table, or no
// name.
func (r *Reader) CommName(comm uint16) string {
	if comm >= commOther {
		return ""
	}
	return name(r.mem[commsAt+int(comm)*entrySize+commNameAt:])
}

// peerSent are the messages that a rank has sent to one rank while it recorded with detail.
type peerSent struct{ Messages, Bytes uint64 }

// peer returns what the rank has sent to rank i.
func (r *Reader) peer(i int) peerSent {
	at := peersAt + i*peerSize
	return peerSent{word(r.mem, at).Load(), word(r.mem, at+8).Load()}
}

// Sizes returns the number of messages that the rank has sent with detail, by size class.
func (r *Reader) Sizes() (list [Classes]uint64) {
	for i := range list {
		list[i] = word(r.mem, classesAt+8*i).Load()
	}
	return list
}

// inside returns a collective that the rank has entered and not left: its name, the index of its
// communicator, and its number there. ok is false if there is none.
func (r *Reader) inside() (op Op, comm uint16, seq uint32, ok bool) {
	for i := range min(int(word(r.mem, commsCountAt).Load()&math.MaxInt32), commOther) {
		at := commsAt + i*entrySize
		if word(r.mem, at+commDepthAt).Load() != 0 {
			w := word(r.mem, at+commEnteredAt).Load()
			return Op(w >> 32), uint16(i), uint32(w), true
		}
	}
	return 0, 0, 0, false
}

// waiting returns what the program waits for, or nil.
func (r *Reader) waiting() *Waiting {
	since := word(r.mem, waitAt).Load()
	what, peer := word(r.mem, waitWhatAt).Load(), word(r.mem, waitPeerAt).Load()
	if since == 0 || word(r.mem, waitAt).Load() != since { // the wait has ended, and another one may have begun
		return nil
	}
	w := &Waiting{Since: durationFrom(since), Kind: WaitKind(what >> 24), Peer: int(int32(peer))}
	if w.Kind > WaitProbe || w.Peer >= r.ranks {
		return nil
	}
	if w.Kind != WaitOther {
		w.Comm, w.Collective = r.CommName(uint16(what)), Protocol(what>>16)&Collective != 0
	}
	w.Peer = max(w.Peer, -1)
	return w
}

// Read calls f with the messages and calls that the rank has recorded since the last Read, and that
// the rings still hold. It returns the number of events that the rings have lost since then. ended
// says that the rank has ended; only then Read also reads the last messages. The events are in the
// order of their ends, as far as the rank has recorded each ring in this order.
func (r *Reader) Read(ended bool, f func(Event)) (lost uint64) {
	calls, messages := r.cursor(1, ended), r.cursor(0, ended)
	m, c := messages.next(), calls.next()
	for m != nil || c != nil {
		if c == nil || m != nil && m.Start <= c.Start+c.Duration {
			f(*m)
			m = messages.next()
		} else {
			f(*c)
			c = calls.next()
		}
	}
	return messages.lost + calls.lost
}

// batch is the number of events that a cursor copies at a time.
const batch = 256

// cursor reads the events of a ring up to the one that was the last when the cursor was made.
type cursor struct {
	r      *Reader
	k      int // 0: the ring of messages; 1: that of calls
	ended  bool
	mem    []byte
	to     uint64 // number of the first event that the cursor does not read
	lost   uint64
	copied [batch]Event
	from   int // index in copied of the next event
	n      int // number of events in copied
}

// cursor sets the cursor of a ring to its next event.
func (r *Reader) cursor(k int, ended bool) *cursor {
	c := &r.cursors[k]
	c.r, c.k, c.ended, c.lost, c.from, c.n = r, k, ended, 0, 0, 0
	c.mem = r.mem[r.rings+k*eventSize<<r.ringBits:][:eventSize<<r.ringBits]
	at := r.counters[k][0]
	if ended {
		at = r.counters[k][1]
	}
	if c.to = word(r.mem, at).Load(); c.to < r.next[k] {
		r.next[k] = c.to // a rank does not take events back, so this memory is not what a rank has written
	}
	if most := uint64(r.Room()); c.to-r.next[k] > most {
		c.lost = c.to - r.next[k] - most
		r.next[k] = c.to - most
	}
	return c
}

// next returns the next event; nil: there is none. The event is valid until the next call.
func (c *cursor) next() *Event {
	for c.from == c.n {
		if !c.fill() {
			return nil
		}
	}
	c.from++
	return &c.copied[c.from-1]
}

// fill copies further events, and reports whether there were some. The rank may write over them at the
// same time; fill leaves out those that it may have read too late.
func (c *cursor) fill() bool {
	r := c.r
	from := r.next[c.k]
	if from == c.to {
		return false
	}
	n := min(c.to-from, batch)
	for i := range n {
		c.copied[i] = load(c.mem, r.ringBits, from+i)
	}
	overwritten := uint64(0)
	if !c.ended {
		if now, size := word(r.mem, r.counters[c.k][1]).Load()+1, uint64(1)<<r.ringBits; now > from+size {
			overwritten = min(now-size-from, n)
		}
	}
	c.lost += overwritten
	c.from, c.n = int(overwritten), int(n)
	r.next[c.k] = from + n
	return true
}

// Last returns the last messages and calls that the rings hold, at most n of each, in the order in
// which they were recorded. ended is as in Read.
func (r *Reader) Last(n int, ended bool) (messages, calls []Event) {
	from := r.next
	defer func() { r.next = from }()
	for k, list := range []*[]Event{&messages, &calls} {
		c := r.cursor(k, ended)
		r.next[k] = c.to - min(c.to, uint64(min(n, r.Room())))
		for e := c.next(); e != nil; e = c.next() {
			*list = append(*list, *e)
		}
	}
	return messages, calls
}

// Restart makes Read begin with the first event. The caller needs it when Times shows that another
// program has begun a new record in the rank.
func (r *Reader) Restart() { r.next = [2]uint64{} }

// Skip makes Read leave out the events recorded so far, except for the last ones, which the rank has not published
// yet.
func (r *Reader) Skip() {
	for k := range r.next {
		r.next[k] = word(r.mem, r.counters[k][0]).Load()
	}
}

// Room returns the number of events that each of the two rings has room for.
func (r *Reader) Room() int { return 1<<r.ringBits - 1 }
