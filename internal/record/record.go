// Package record holds the recorder of a rank: its last calls and messages, and counters of them.
//
// A rank writes its record to memory that it shares with the process of gorun on its host (the
// agent, or gorun itself). So the record of a rank that hangs, or that was killed, can be read
// without the rank's help, and a rank does no input or output to be traced.
//
//	rank                                         gorun or agent on the host
//	engine ── messages ──► ┌──────────────┐
//	                       │ memory file  │ ──► Reader ──► figures, traces, reports
//	mpi ───── calls ─────► └──────┬───────┘
//	           ▲ detail           │
//	           └──────────────────┴───────────── Reader.SetDetail
//
// A recorder has two levels. Without detail it is the flight recorder, which is always on: it
// records each message and each collective call. To keep a message fast, it does not read the clock
// for each event. The time of an event is then that of the latest reading of the clock before it. With
// detail, for example because the user wants a trace or statistics, it records each call with exact
// times and counts calls, bytes and time.
//
// The memory file:
//
//	┌ header ┬ operations ┬ communicators ┬ size classes ┬ peers ┬ messages (ring) ┬ calls (ring) ┐
//
// A rank is not trusted: a Reader checks every index and name that it reads.
package record

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Op is a number for the name of an operation, such as a call. Each rank numbers the names itself,
// see Recorder.Op. The first numbers are the same on all ranks.
type Op uint8

// The operations of the ring of messages.
const (
	OpNone     Op = iota
	OpSent        // a message of this rank has left, or its RTS has
	OpReceived    // a receive is complete
	opFirst       // first number of other names
)

// Protocol says how a message was transferred.
type Protocol uint8

// The protocols.
const (
	Eager      Protocol = iota // the data was in the message
	Rendezvous                 // the receiver has asked for the data, or has read it from the sender's memory
	Own                        // a message of the rank to itself

	// Collective is a bit that is set, in addition, for the messages of collectives.
	Collective Protocol = 1 << 7
)

// Event is one entry of a ring.
type Event struct {
	Start time.Duration // when the event began, since the beginning of the record
	// How long it took. Zero for a message, and for a call without detail.
	Duration time.Duration
	Op       Op
	Protocol Protocol // of a message
	Comm     uint16   // index in the table of communicators; commOther: not in the table
	// Of a message: world rank of the other rank. Of a call: rank in its communicator, or -1.
	Peer  int32
	Tag   int32 // of a message or a call with a tag; of a collective: its number in the communicator
	Bytes int64
	// Of a message: number of the message among those from its sender to its receiver, modulo 2²⁴.
	Seq uint32
}

// The words of an event in memory, from high bits to low ones:
//
//	0  │ start in ns                                       64 │
//	1  │ comm 16 │ protocol 8 │ op 8 │ microseconds 1 │ duration 31 │
//	2  │ tag                  32 │ peer                     32 │
//	3  │ seq          24 │ bytes                            40 │
//
// A duration of 2³¹ ns or more is in microseconds.
const (
	eventWords = 4
	eventSize  = 8 * eventWords

	durationBits = 31
	microseconds = 1 << durationBits
	bytesBits    = 40
	maxBytes     = 1<<bytesBits - 1
	seqMask      = 1<<24 - 1
)

func durationWord(d time.Duration) uint64 {
	switch ns := uint64(max(d, 0)); {
	case ns < microseconds:
		return ns
	default:
		return microseconds | min(ns/1000, microseconds-1)
	}
}

func durationOf(w uint64) time.Duration {
	d := time.Duration(w & (microseconds - 1))
	if w&microseconds != 0 {
		d *= time.Microsecond
	}
	return d
}

// commOther is the index of communicators that have no entry in the table, because the table was
// full.
const commOther = tableMax - 1

// OtherComm stands for a communicator that is not in the table.
const OtherComm uint16 = commOther

// The parts of the memory file. All sizes are in bytes.
const (
	headerSize = 4096
	tableMax   = 256 // entries of the table of operations, and of that of communicators
	nameMax    = 32  // bytes of a name; the rest of a longer name is cut off
	entrySize  = 64
	tableSize  = tableMax * entrySize
	// Classes is the number of size classes of messages. Class 0 has messages without data, and class
	// i those with 2ⁱ⁻¹ to 2ⁱ-1 bytes.
	Classes     = 42
	classesSize = 4096
	peerSize    = 16       // messages and bytes sent to one rank
	pageSize    = 64 << 10 // a multiple of the page size of all systems

	opsAt     = headerSize
	commsAt   = opsAt + tableSize
	classesAt = commsAt + tableSize
	peersAt   = classesAt + classesSize
)

// Class returns the size class of a message with n bytes of data.
func Class(n int) int { return min(bits.Len64(uint64(n)), Classes-1) }

// Limits of the number of events that a ring holds, as powers of two.
const (
	// FlightBits is the size of a ring of the flight recorder.
	FlightBits = 15
	// TraceBits is the size of a ring of a rank that is traced: the reader must be able to follow.
	TraceBits = 19
	// MinBits and maxBits are the sizes of the smallest and the largest ring.
	MinBits  = 4
	maxBits  = 24
	maxRanks = 1 << 22
)

// Size returns the size of the record of one rank, a multiple of the page size. ranks is the number of ranks of the job,
// and ringBits the size of each ring, such as FlightBits.
func Size(ranks, ringBits int) int {
	n := peersAt + ranks*peerSize + 2*eventSize<<ringBits
	return (n + pageSize - 1) / pageSize * pageSize
}

// The words of the header, by offset in bytes. The words that the rank changes often, and those that the
// reader changes, have cache lines of their own.
const (
	magicAt    = 0
	ranksAt    = 8
	rankAt     = 16
	ringBitsAt = 24
	wallAt     = 32 // time of the beginning of the record: ns since 1970, of the host's clock
	monoAt     = 40 // the same time on the host's monotonic clock, in ns
	readyAt    = 48 // 1: the fields above are set
	endAt      = 56 // ns since the beginning of the record at which Finalize was complete; 0: it was not

	messagesHeadAt = 128 // number of events that are certainly complete in the ring of messages
	messagesTailAt = 136 // number of events in the ring of messages
	callsHeadAt    = 192
	callsTailAt    = 200
	opsCountAt     = 208 // entries in the table of operations
	commsCountAt   = 216 // entries in the table of communicators
	nowAt          = 320 // latest reading of the clock
	detailAt       = 384 // 1: record with detail; the reader sets it

	waitAt     = 448 // ns since the beginning of the record at which the rank first slept in its current wait; 0: it does not wait
	waitWhatAt = 456 // WaitKind 8, protocol 8, comm 16
	waitPeerAt = 464 // tag 32, peer 32
)

const magic = 0x7765667472656331 // "weftrec1"

// Recorder writes the record of one rank.
//
// The engine calls the methods of Messages with its own lock held. All other methods may be called
// concurrently.
type Recorder struct {
	Messages Messages

	mem    []byte
	base   time.Time
	detail *atomic.Uint64

	calls callRing

	mu    sync.Mutex // guards the counters of operations, and the following fields
	names map[string]Op
	comms int      // entries of the table of communicators
	freed []uint16 // entries of communicators that were freed, in the order of their ends
}

// New begins the record of a rank in mem, which has the size that Size returns for the number of
// ranks and ringBits. mem is zero, except for the level, or has the record of an earlier program in the
// same rank.
func New(mem []byte, rank, ranks, ringBits int) (*Recorder, error) {
	if rank < 0 || rank >= ranks || ranks > maxRanks || ringBits < MinBits || ringBits > maxBits || len(mem) != Size(ranks, ringBits) {
		return nil, fmt.Errorf("record of rank %d of %d: memory of %d bytes", rank, ranks, len(mem))
	}
	rings := len(mem) - 2*eventSize<<ringBits
	if word(mem, readyAt).Load() != 0 {
		clear(mem[opsAt:rings])
		for _, at := range []int{readyAt, endAt, messagesHeadAt, messagesTailAt, callsHeadAt, callsTailAt, commsCountAt, nowAt, waitAt} {
			word(mem, at).Store(0)
		}
	}
	base, mono := begin()
	r := &Recorder{mem: mem, base: base, names: make(map[string]Op), detail: word(mem, detailAt)}
	for _, w := range []struct{ at, value int }{
		{magicAt, magic}, {ranksAt, ranks}, {rankAt, rank}, {ringBitsAt, ringBits},
		{wallAt, int(r.base.UnixNano())}, {monoAt, int(mono)}, {opsCountAt, int(opFirst)},
	} {
		word(mem, w.at).Store(uint64(w.value))
	}
	r.Messages = Messages{
		ring: newRing(mem, rings, ringBits, messagesHeadAt, messagesTailAt), base: r.base, detail: r.detail,
		now: word(mem, nowAt), peers: mem[peersAt:rings], classes: mem[classesAt : classesAt+classesSize], header: mem[:headerSize],
	}
	// The level must be known before the first message leaves: see Exact. The first event reads the clock.
	r.Messages.renew()
	r.Messages.readAt = 0
	r.calls = callRing{newRing(mem, rings+eventSize<<ringBits, ringBits, callsHeadAt, callsTailAt), word(mem, callsTailAt)}
	word(mem, readyAt).Store(1)
	return r, nil
}

// begin reads both clocks at the same time. The system may run another process between two readings, so
// begin tries a few times, and takes the closest readings.
func begin() (base time.Time, mono int64) {
	best := time.Duration(math.MaxInt64)
	for range 8 {
		before := Monotonic()
		now := time.Now()
		if took := Monotonic() - before; took < best {
			base, mono, best = now, int64(before+took/2), took
		}
	}
	return base, mono
}

// Detail reports whether the recorder records each call, with exact times. It is false for a nil
// Recorder.
//
// Hot path: no allocation, no lock.
func (r *Recorder) Detail() bool { return r != nil && r.detail.Load() != 0 }

// Level returns the word that is not 0 if the recorder records each call.
func (r *Recorder) Level() *atomic.Uint64 { return r.detail }

// SetDetail sets the level of the recorder, as the reader can do.
func (r *Recorder) SetDetail(on bool) { setDetail(r.detail, on) }

func setDetail(w *atomic.Uint64, on bool) {
	v := uint64(0)
	if on {
		v = 1
	}
	w.Store(v)
}

// Clock returns the time since the beginning of the record.
func (r *Recorder) Clock() time.Duration { return time.Since(r.base) }

// Recent returns the time since the beginning of the record: with detail, the time now, and otherwise
// that of the latest reading of the clock. exact says which of the two.
func (r *Recorder) Recent() (t time.Duration, exact bool) {
	if r.detail.Load() != 0 {
		return r.Clock(), true
	}
	return time.Duration(r.Messages.now.Load()), false
}

// Op returns the number of a name. It assigns a number to a new name; if the table is full, it
// returns OpNone. background says that the operation runs while the program computes, as a
// nonblocking collective does, so that its time is no time in a call.
func (r *Recorder) Op(name string, background bool) Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	op, ok := r.names[name]
	if !ok {
		n := int(opFirst) + len(r.names)
		if n >= tableMax {
			return OpNone
		}
		op = Op(n)
		r.names[name] = op
		at := opsAt + n*entrySize
		putName(r.mem[at+opNameAt:], name)
		if background {
			word(r.mem, at+opFlagsAt).Store(1)
		}
		word(r.mem, opsCountAt).Store(uint64(n + 1))
	}
	return op
}

// The fields of an entry of the table of operations, and of that of communicators.
const (
	opCountAt = 0
	opBytesAt = 8
	opTimeAt  = 16
	opFlagsAt = 24 // 1: the operation runs in the background
	opNameAt  = 32

	commIDAt      = 0
	commNameAt    = 8
	commEnteredAt = 40 // the blocking collective that the rank has entered last
	commDepthAt   = 48 // number of blocking collectives that the rank has entered and not left: one can be a part of another
)

func putName(b []byte, name string) {
	clear(b[:nameMax])
	copy(b[:nameMax], name)
}

// Comm adds a communicator to the table and returns its index.
func (r *Recorder) Comm(id uint64, name string) uint16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.comms
	switch {
	case i < commOther:
		r.comms++
	case len(r.freed) > 0:
		i = int(r.freed[0])
		r.freed = r.freed[1:]
	default:
		return commOther
	}
	at := commsAt + i*entrySize
	word(r.mem, at+commIDAt).Store(id)
	word(r.mem, at+commDepthAt).Store(0)
	putName(r.mem[at+commNameAt:], name)
	word(r.mem, commsCountAt).Store(uint64(r.comms))
	return uint16(i)
}

// FreeComm gives the entry of a communicator back. As long as other entries are free, the name stays, so
// that a reader still finds it.
func (r *Recorder) FreeComm(i uint16) {
	if i != commOther {
		r.mu.Lock()
		r.freed = append(r.freed, i)
		r.mu.Unlock()
	}
}

// Enter records that the rank enters a blocking collective: the number seq in a communicator. Leave records
// its end. The calls of Enter and Leave for a communicator are ordered by its collectives.
//
// Hot path: no allocation, no lock.
func (r *Recorder) Enter(op Op, comm uint16, seq uint32) {
	if comm != commOther {
		at := commsAt + int(comm)*entrySize
		depth := plain(r.mem, at+commDepthAt)
		if *depth == 0 { // otherwise the collective is a part of the one that has entered
			*plain(r.mem, at+commEnteredAt) = uint64(op)<<32 | uint64(seq)
		}
		*depth++
	}
}

// Leave records the end of the collective e that Enter has recorded; otherwise it is Call.
//
// Hot path: no allocation, and no lock without detail.
func (r *Recorder) Leave(e *Event, exact bool) {
	r.Drop(e.Comm)
	r.Call(e, exact)
}

// Drop takes back an Enter.
func (r *Recorder) Drop(comm uint16) {
	if comm != commOther {
		*plain(r.mem, commsAt+int(comm)*entrySize+commDepthAt)--
	}
}

// Call records a call that has ended now. If exact is set, e.Start is the time of a reading of the clock,
// and Call computes e.Duration. Otherwise the call has no duration. With detail, Call also counts the call.
//
// Hot path: no allocation, and no lock without detail.
func (r *Recorder) Call(e *Event, exact bool) {
	if exact || r.detail.Load() != 0 {
		r.count(e, exact)
		return
	}
	if i := r.calls.put(e); i&(clockEvery-1) == 0 {
		r.Messages.Read()                               // a rank may call collectives in shared memory only, and so send no message
		r.calls.head.Store(max(i, r.calls.head.Load())) // a reader of a running rank needs it only with detail
	}
}

// count records a call with detail.
func (r *Recorder) count(e *Event, exact bool) {
	if exact {
		e.Duration = r.Clock() - e.Start
	}
	r.mu.Lock()
	r.calls.head.Store(r.calls.put(e) + 1)
	at := opsAt + int(e.Op)*entrySize
	*plain(r.mem, at+opCountAt)++
	*plain(r.mem, at+opBytesAt) += uint64(e.Bytes)
	*plain(r.mem, at+opTimeAt) += uint64(e.Duration)
	r.mu.Unlock()
}

// End records that the rank has completed Finalize.
func (r *Recorder) End() {
	word(r.mem, endAt).Store(uint64(max(r.Clock(), 1)))
}

// Messages records the messages of a rank. The engine's lock guards it, except for Read.
type Messages struct {
	ring
	readAt  uint64 // number of events at which the recorder reads the clock next
	stamp   uint64 // time of the next event, if the recorder does not read the clock before it
	exact   bool   // detail, at the last reading
	base    time.Time
	detail  *atomic.Uint64
	now     *atomic.Uint64 // latest reading of the clock, since base
	peers   []byte
	classes []byte
	header  []byte
}

// clockEvery is the number of messages, a power of two, after which the flight recorder reads the
// clock, and makes the events before visible to the reader.
const clockEvery = 32

// Read reads the clock. It may be called concurrently.
func (m *Messages) Read() { m.now.Store(uint64(time.Since(m.base))) }

// Idle reads the clock, and makes the events so far visible to the reader. The engine calls it before it
// sleeps. With detail, the first event after the sleep has a time of its own.
func (m *Messages) Idle() {
	if m.renew(); m.exact {
		m.readAt = *m.tail
	}
}

// WaitKind is what a goroutine of the program waits for in a call.
type WaitKind uint8

// The kinds of events for which a call waits.
const (
	WaitOther WaitKind = iota // none of the following, or any of several requests
	WaitSend                  // the completion of a send
	WaitRecv                  // the completion of a receive
	WaitProbe                 // a message for a probe
)

// Waits records that the program waits, and for what. The engine calls it before the rank sleeps, after
// Idle, which reads the clock. WaitEnds ends the wait. comm, peer, tag and p are those of the message; peer and
// tag may be -1 for any, and comm may be OtherComm.
func (m *Messages) Waits(kind WaitKind, comm uint16, peer, tag int32, p Protocol) {
	*plain(m.header, waitWhatAt) = uint64(kind)<<24 | uint64(p)<<16 | uint64(comm)
	*plain(m.header, waitPeerAt) = uint64(uint32(tag))<<32 | uint64(uint32(peer))
	word(m.header, waitAt).Store(max(m.stamp, 1))
}

// WaitEnds records that the program does not wait any more.
func (m *Messages) WaitEnds() { word(m.header, waitAt).Store(0) }

// renew reads the clock and the level for the next events, and makes the events before visible.
func (m *Messages) renew() {
	m.stamp = uint64(time.Since(m.base))
	m.now.Store(m.stamp)
	n := *m.tail
	m.head.Store(n)
	m.exact = m.detail.Load() != 0
	if m.readAt = n + clockEvery; m.exact {
		m.readAt = n + 1
	}
}

// Exact reports whether the next event gets a time of its own.
//
// Hot path: no allocation, no lock.
func (m *Messages) Exact() bool { return m.exact }

// Sent records a message of this rank to the rank peer. With detail, it also counts the message.
//
// Hot path: no allocation, no lock.
func (m *Messages) Sent(comm uint16, peer, tag int32, n int, p Protocol, seq uint32) {
	at := *m.tail
	if at >= m.readAt {
		m.renew()
	}
	m.put(at, m.stamp, uint64(comm)<<48|uint64(p)<<40|uint64(OpSent)<<32, uint64(uint32(tag))<<32|uint64(uint32(peer)), uint64(seq)<<bytesBits|uint64(n))
	m.fetch(at + 1)
	if m.exact {
		m.count(peer, n)
	}
}

// Unsent takes back the last Sent, of a message of n bytes to the rank peer: the message has not left. No
// other event was recorded since then, so no reader of a running rank can have seen the event.
func (m *Messages) Unsent(peer int32, n int) {
	m.drop()
	if m.exact {
		m.uncount(peer, n)
		m.readAt = *m.tail // the next event has a time of its own
	}
}

// Received records a message that a receive of this rank has got from the rank peer.
//
// Hot path: no allocation, no lock.
func (m *Messages) Received(comm uint16, peer, tag int32, n int, p Protocol, seq uint32) {
	at := *m.tail
	if at >= m.readAt {
		m.renew()
	}
	m.put(at, m.stamp, uint64(comm)<<48|uint64(p)<<40|uint64(OpReceived)<<32, uint64(uint32(tag))<<32|uint64(uint32(peer)), uint64(seq)<<bytesBits|uint64(n))
}

// count adds a message to the counters of its receiver and of its size class.
func (m *Messages) count(peer int32, n int) {
	*plain(m.classes, 8*Class(n))++
	at := int(peer) * peerSize
	*plain(m.peers, at)++
	*plain(m.peers, at+8) += uint64(n)
}

// uncount takes back what count has done.
func (m *Messages) uncount(peer int32, n int) {
	*plain(m.classes, 8*Class(n))--
	at := int(peer) * peerSize
	*plain(m.peers, at)--
	*plain(m.peers, at+8) -= uint64(n)
}

var errSize = errors.New("the record of a rank is not valid")
