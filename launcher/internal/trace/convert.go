package trace

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/record"
)

const (
	// maxPending is the largest number of messages, and of calls, that a converter holds until it knows
	// which belong together.
	maxPending = 1 << 14
	// maxTracks is the largest number of tracks for calls of a rank. With more calls at the same time, the
	// beginning of some is shown too late.
	maxTracks = 1 << 10
	// recordBits is the number of bits for the number of a message in a record.
	recordBits = 36
	// maxNames is the largest number of names of operations and communicators.
	maxNames = 1 << 16
	// ratePeriod is the time over which a counter is an average.
	ratePeriod = 10 * time.Millisecond
)

// converter converts the events of one rank. Messages come in the order of their times, and calls in the
// order of their ends. When a call comes, all messages that the rank sent or received in it have come, or
// come soon. So the converter holds a call until a later message comes, and a message until a call
// comes that it belongs to:
//
//	messages ──► pending ──────────── too many ──► track for messages
//	                │
//	calls ──► calls ┴─ a later message has come ──► tracks for calls
type converter struct {
	w     *Writer
	sink  sink
	r     Rank
	begun time.Duration // beginning of the first record on the host's monotonic clock
	// records is the number of records so far. A rank has several if it has run several programs. In each of
	// them the numbers of messages begin with 1. The times in the fields below count from the beginning of the
	// first record; shift is the beginning of the current one, and latest the end of the latest event.
	records       int64
	shift, latest time.Duration
	// late means that the spool does not have the beginning of the record; from is the time from which on it has events.
	late bool
	from time.Duration

	ops   [256]string
	comms [256]string // by number; names of communicators with higher numbers are not known

	names int // number of names so far

	pending []record.Event // messages
	calls   []record.Event
	ends    []time.Duration // by track: end of its last call
	// released is the latest time on the track for messages, on gorun's clock.
	released time.Duration
	// count has, by peer, the number of the last message that was sent to it (0) or received from it (1).
	count [2]map[int32]int64
	rates [counters]rate
}

// rate is the state of a counter.
type rate struct {
	period int64 // number of the current period
	bytes  int64 // in the current period
	value  int64 // the latest value that was written
}

// begin starts a record. The trace has its events from the time from on, which is since the beginning of the record.
// begin returns false if the record begins before the end of the one before.
func (v *converter) begin(t record.Times, from time.Duration) bool {
	v.flush() // what there is of the record before
	args := []arg{{name: "host", text: v.r.Host}, {name: "pid", num: int64(v.r.PID)},
		{name: "begun", text: t.Wall.UTC().Format(time.RFC3339Nano)}}
	if v.r.Clock.known {
		args = append(args, arg{name: "clock_offset_ns", num: int64(v.r.Clock.Offset())},
			arg{name: "clock_drift_ppb", num: int64(v.r.Clock.drift() * 1e9)},
			arg{name: "clock_error_ns", num: int64(v.r.Clock.Bound())})
	}
	v.count = [2]map[int32]int64{make(map[int32]int64), make(map[int32]int64)}
	if v.records++; v.records == 1 {
		v.begun = t.Monotonic
		v.released = v.at(from)
		v.sink.rank(&v.r)
	} else {
		v.shift = t.Monotonic - v.begun
		if v.shift < v.latest || v.shift > maxTime {
			return false
		}
		v.ops, v.comms = [256]string{}, [256]string{}
		v.released = max(v.released, v.at(v.shift))
	}
	what := "Init"
	if v.late = from > 0; v.late {
		what = "the trace begins"
	}
	v.from = v.shift + from
	v.sink.note(v.released, what, args)
	return true
}

// at returns the time of gorun's clock for a time since the beginning of the first record.
func (v *converter) at(t time.Duration) time.Duration { return max(v.r.Clock.At(v.begun+t), 0) }

func (v *converter) item(it *item) {
	if it.kind >= itemSent {
		it.event.Start += v.shift
		v.latest = max(v.latest, end(&it.event))
	}
	switch it.kind {
	case itemOp:
		v.rename(&v.ops, it)
	case itemComm:
		v.rename(&v.comms, it)
	case itemLost:
		v.flush()
		v.sink.note(v.released, "events are missing", []arg{{name: "events", num: int64(it.number)}})
	case itemCall:
		v.calls = append(v.calls, it.event)
		if len(v.calls) > maxPending {
			v.writeCall(0)
			v.calls = v.calls[1:]
		}
	default:
		v.message(&it.event)
	}
}

// rename sets the name of an operation or a communicator. Sinks keep all names, so a name after the
// first maxNames is left out.
func (v *converter) rename(names *[256]string, it *item) {
	if it.number >= uint64(len(names)) {
		return
	}
	if v.names++; v.names > maxNames {
		it.name = ""
	}
	if names[it.number] != "" {
		v.flush() // the events so far have the old name
	}
	names[it.number] = it.name
}

// message takes a message.
func (v *converter) message(e *record.Event) {
	// All calls that have ended before have got their messages.
	n := 0
	for n < len(v.calls) && end(&v.calls[n]) < e.Start {
		v.writeCall(n)
		n++
	}
	v.calls = slices.Delete(v.calls, 0, n)
	v.pending = append(v.pending, *e)
	if len(v.pending) > maxPending {
		v.release(len(v.pending) / 2)
	}
	c := sentRate
	if e.Op == record.OpReceived {
		c = receivedRate
	}
	v.addToRate(c, e)
}

func end(e *record.Event) time.Duration { return e.Start + e.Duration }

// writeCall writes the call with the index i, with the pending messages that belong to it.
func (v *converter) writeCall(i int) {
	e := &v.calls[i]
	var within []message
	first, _ := slices.BinarySearchFunc(v.pending, e.Start, func(m record.Event, t time.Duration) int { return cmp.Compare(m.Start, t) })
	kept := first
	for k := first; k < len(v.pending); k++ {
		m := &v.pending[k]
		if m.Start > end(e) && kept == k {
			kept = len(v.pending) // nothing has moved
			break
		}
		if m.Start <= end(e) && v.belongs(m, e) {
			within = append(within, v.convert(m))
		} else {
			v.pending[kept] = *m
			kept++
		}
	}
	v.pending = v.pending[:kept]
	t := v.track(e)
	start := max(e.Start, v.ends[t], v.from)
	v.ends[t] = max(start, end(e))
	from, until := v.at(start), v.at(v.ends[t])
	last := from // a host may send anything, but times ascend
	for k := range within {
		within[k].at = min(max(within[k].at, last), until)
		last = within[k].at
	}
	v.sink.call(t, from, until, v.opName(e.Op), v.callArgs(e), within)
}

// belongs reports whether the message m was sent or received by the call e, during which its time is.
func (v *converter) belongs(m, e *record.Event) bool {
	switch {
	case m.Comm != e.Comm:
		return false
	case m.Protocol&record.Collective != 0:
		return isCollective(e) && m.Tag == e.Tag
	case isCollective(e):
		return false
	}
	return e.Tag < 0 || m.Tag == e.Tag || strings.HasPrefix(v.ops[e.Op], "Sendrecv") // its tags are two
}

// isCollective reports whether a call is a collective: it has no peer, but a number in its communicator.
func isCollective(e *record.Event) bool { return e.Peer == noPeer && e.Tag >= 0 }

// Peers of a call that is not about one other rank (package mpi of weft/internal).
const (
	anySource = -1
	procNull  = -2
	noPeer    = -32766
)

// track returns a track that has room for a call that comes now: the one whose last call has ended last.
func (v *converter) track(e *record.Event) track {
	best, first := -1, 0
	for i, until := range v.ends {
		if until <= e.Start && (best < 0 || until > v.ends[best]) {
			best = i
		}
		if until < v.ends[first] {
			first = i
		}
	}
	switch {
	case best >= 0:
		return track(best)
	case len(v.ends) < maxTracks:
		v.ends = append(v.ends, 0)
		return track(len(v.ends) - 1)
	}
	return track(first)
}

// release writes the first n pending messages to the track for messages.
func (v *converter) release(n int) {
	for i := range v.pending[:n] {
		m := v.convert(&v.pending[i])
		m.at = max(m.at, v.released)
		v.released = m.at
		v.sink.message(&m)
	}
	v.pending = slices.Delete(v.pending, 0, n)
}

// flush writes all that the converter holds.
func (v *converter) flush() {
	for i := range v.calls {
		v.writeCall(i)
	}
	v.calls = v.calls[:0]
	v.release(len(v.pending))
}

// end ends the rank.
func (v *converter) end() {
	v.flush()
	for c := range v.rates {
		v.endPeriod(counter(c), -1)
	}
}

// addToRate adds a message to a counter.
func (v *converter) addToRate(c counter, e *record.Event) {
	r := &v.rates[c]
	if p := int64(e.Start / ratePeriod); p != r.period {
		v.endPeriod(c, p)
	}
	r.bytes += e.Bytes
}

// endPeriod writes the value of a counter in its current period. next is the number of the next period
// with messages; -1: there is none.
func (v *converter) endPeriod(c counter, next int64) {
	r := &v.rates[c]
	write := func(period, value int64) {
		if value != r.value {
			r.value = value
			v.sink.counter(c, v.at(time.Duration(period)*ratePeriod), value)
		}
	}
	write(r.period, r.bytes*int64(time.Second/ratePeriod))
	if next != r.period+1 {
		write(r.period+1, 0)
	}
	r.period, r.bytes = next, 0
}

// convert returns a message as the sink takes it.
func (v *converter) convert(e *record.Event) message {
	m := message{at: v.at(e.Start), sent: e.Op == record.OpSent}
	me, peer, way := uint64(v.r.Number), uint64(v.r.First)+uint64(e.Peer), 0
	from, to := peer, me
	if m.sent {
		from, to = me, peer
	} else {
		way = 1
	}
	// The number of the message, of which the record has seqBits bits. Messages can arrive in another
	// order than that of their numbers.
	count := int64(e.Seq) // if the spool is late: both ends must find the same number, but do not begin with the same message
	if !v.late {
		var ok bool
		if count, ok = v.count[way][e.Peer]; !ok {
			count = (v.records - 1) << recordBits
		}
		count += int64(int32((e.Seq-uint32(count))<<(32-seqBits)) >> (32 - seqBits))
		v.count[way][e.Peer] = count
	}
	m.flow = (uint64(count)*v.w.ranks+from)*v.w.ranks + to + 1

	number := "tag"
	if e.Protocol&record.Collective != 0 {
		number = "number"
	}
	m.args = []arg{{name: "communicator", text: v.commName(e.Comm)}, {name: "peer", num: int64(e.Peer)},
		{name: number, num: int64(e.Tag)}, {name: "bytes", num: e.Bytes}, {name: "protocol", text: protocolOf(e.Protocol)}}
	return m
}

func (v *converter) callArgs(e *record.Event) []arg {
	args := []arg{{name: "communicator", text: v.commName(e.Comm)}}
	if e.Start < v.from {
		args = append(args, arg{name: "ns before the trace", num: int64(v.from - e.Start)})
	}
	switch {
	case e.Peer >= 0:
		args = append(args, arg{name: "peer", num: int64(e.Peer)})
	case e.Peer == anySource:
		args = append(args, arg{name: "peer", text: "any"})
	case e.Peer == procNull:
		args = append(args, arg{name: "peer", text: "none"})
	}
	switch {
	case isCollective(e):
		args = append(args, arg{name: "number", num: int64(e.Tag)})
	case e.Tag >= 0:
		args = append(args, arg{name: "tag", num: int64(e.Tag)})
	}
	return append(args, arg{name: "bytes", num: e.Bytes})
}

func (v *converter) opName(op record.Op) string {
	if s := v.ops[op]; s != "" {
		return s
	}
	return fmt.Sprintf("call %d", op)
}

func (v *converter) commName(i uint16) string {
	if int(i) < len(v.comms) && v.comms[i] != "" {
		return v.comms[i]
	}
	return fmt.Sprintf("communicator %d", i)
}
