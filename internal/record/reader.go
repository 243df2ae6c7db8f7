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
	rings    int // offset of the rings
	next     [2]uint64
	messages [2]int // offsets of the counters head and tail
	calls    [2]int
}

// NewReader returns a reader for mem, the memory file of a rank of a job with this number of ranks.
// The rank may not have begun its record yet.
func NewReader(mem []byte, ranks, ringBits int) (*Reader, error) {
	if ranks < 1 || ranks > maxRanks || ringBits < MinBits || ringBits > maxBits || len(mem) != Size(ranks, ringBits) {
		return nil, errSize
	}
	return &Reader{
		mem: mem, ringBits: ringBits, ranks: ranks, rings: len(mem) - 2*eventSize<<ringBits,
		messages: [2]int{messagesHeadAt, messagesTailAt}, calls: [2]int{callsHeadAt, callsTailAt},
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
			name(r.mem[at+opNameAt:]), word(r.mem, at+opCountAt).Load(), word(r.mem, at+opBytesAt).Load(), durationFrom(word(r.mem, at+opTimeAt).Load()),
			word(r.mem, at+opFlagsAt).Load() != 0,
		}
	}
	for i, s := range []string{OpNone: "", OpSent: "sent", OpReceived: "received"} {
		if i < n {
			list[i].Name = s
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

// Comms returns the names of the communicators, by Event.Comm.
func (r *Reader) Comms() []string {
	n := min(int(word(r.mem, commsCountAt).Load()&math.MaxInt32), commOther)
	list := make([]string, n)
	for i := range list {
		list[i] = name(r.mem[commsAt+i*entrySize+commNameAt:])
	}
	return list
}

// Peer are the messages that a rank has sent to one rank while it recorded with detail.
type Peer struct{ Messages, Bytes uint64 }

// Peers returns what the rank has sent to each rank.
func (r *Reader) Peers() []Peer {
	list := make([]Peer, r.ranks)
	for i := range list {
		list[i] = r.peer(i)
	}
	return list
}

func (r *Reader) peer(i int) Peer {
	at := peersAt + i*peerSize
	return Peer{word(r.mem, at).Load(), word(r.mem, at+8).Load()}
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
	for i := range r.Comms() {
		at := commsAt + i*entrySize
		if word(r.mem, at+commDepthAt).Load() != 0 {
			w := word(r.mem, at+commEnteredAt).Load()
			return Op(w >> 32), uint16(i), uint32(w), true
		}
	}
	return 0, 0, 0, false
}

// Read calls f with the messages and calls that the rank has recorded since the last Read, and that
// the rings still hold. It returns the number of events that the rings have lost since then. ended
// says that the rank has ended; only then Read also reads the last messages. Messages and calls
// are in the order of their ends, each kind for itself.
func (r *Reader) Read(ended bool, f func(Event)) (lost uint64) {
	for k, counters := range [2][2]int{r.messages, r.calls} {
		lost += r.read(k, counters, ended, f)
	}
	return lost
}

// read does what Read does, for the ring of messages (k = 0) or of calls (k = 1).
func (r *Reader) read(k int, counters [2]int, ended bool, f func(Event)) (lost uint64) {
	head := func() uint64 {
		if ended {
			return word(r.mem, counters[1]).Load()
		}
		return word(r.mem, counters[0]).Load()
	}
	size := uint64(1) << r.ringBits
	mem := r.mem[r.rings+k*eventSize<<r.ringBits:][:eventSize<<r.ringBits]
	to := head()
	if to < r.next[k] { // a rank does not take events back, so this memory is not what a rank has written
		r.next[k] = to
		return 0
	}
	from := r.next[k]
	if to-from > size {
		lost += to - from - size
		from = to - size
	}
	const batch = 256
	var copied [batch]Event
	for from < to {
		n := min(to-from, batch)
		for i := range n {
			copied[i] = load(mem, r.ringBits, from+i)
		}
		// While these events were copied, the rank may have written over the first of them.
		overwritten := uint64(0)
		if !ended {
			if now := word(r.mem, counters[1]).Load() + 1; now > from+size {
				overwritten = min(now-size-from, n)
			}
		}
		lost += overwritten
		for i := overwritten; i < n; i++ {
			f(copied[i])
		}
		from += n
	}
	r.next[k] = to
	return lost
}

// Last returns the last messages and calls that the rings hold, at most n of each, in the order in
// which they were recorded. ended is as in Read.
func (r *Reader) Last(n int, ended bool) (messages, calls []Event) {
	from := r.next
	defer func() { r.next = from }()
	for k, counters := range [2][2]int{r.messages, r.calls} {
		to := word(r.mem, counters[0]).Load()
		if ended {
			to = word(r.mem, counters[1]).Load()
		}
		r.next[k] = to - min(to, uint64(n), 1<<r.ringBits)
		list := &messages
		if k == 1 {
			list = &calls
		}
		r.read(k, counters, ended, func(e Event) { *list = append(*list, e) })
	}
	return messages, calls
}
