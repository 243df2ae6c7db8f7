// Package trace makes a trace of a job, which the user opens in a trace viewer, from the events that
// its ranks have recorded (package record of weft/internal).
//
//	rank ── ring ──► Encoder ── spool ──► tree of agents ──► Writer.Rank ──► file
//	                 on the rank's host                      gorun
//
// Each rank is a process of the trace. Its calls are slices on its tracks. Calls of several
// goroutines overlap, and a track must not have overlapping slices; so a rank has as many tracks for
// calls as it had calls at the same time. A message is a slice without duration within the call that
// has sent or received it, or, if that is not known, on a track for messages. A flow, which viewers
// show as an arrow, connects both ends of a message.
//
// Writer needs memory for one rank at a time, regardless of the number of events.
package trace

import (
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/weft-hpc/weft/internal/record"
)

// Format is a format of traces.
type Format string

// The formats.
const (
	Perfetto Format = "perfetto" // the protocol buffers of perfetto.dev
	Chrome   Format = "chrome"   // the JSON of chrome://tracing
)

// Rank describes a rank to Writer.Rank.
type Rank struct {
	Number int    // in the whole job
	First  int    // number in the job of rank 0 of its group
	Size   int    // number of ranks of its group
	Name   string // such as "rank 3"
	Host   string
	PID    int
	Clock  Clock // of the host
}

// sink writes the parts of a trace in a format. Times are on gorun's monotonic clock. The calls and
// messages of one track come in the order of their times, those of several tracks in any order.
type sink interface {
	// begin begins the trace. wall is the time at the time at.
	begin(at time.Duration, wall time.Time)
	// rank begins a rank. Later calls are about this rank.
	rank(r *Rank)
	// call writes a call, and the messages within it.
	call(t track, start, end time.Duration, name string, args []arg, within []message)
	// message writes a message on the track for messages.
	message(m *message)
	// note writes that something has happened, on the track for messages.
	note(at time.Duration, text string, args []arg)
	// counter writes the value that a counter has from at on.
	counter(c counter, at time.Duration, value int64)
	// end ends the trace.
	end()
}

// track is the number of a track for calls.
type track int

// counter is the number of a counter of a rank.
type counter int

const (
	sentRate counter = iota
	receivedRate
	counters
)

var counterNames = [counters]string{"sent bytes/s", "received bytes/s"}

// message is one end of a message.
type message struct {
	at   time.Duration
	sent bool   // it was sent; false: received
	flow uint64 // the same at both ends, and at no other message
	args []arg
}

func (m *message) name() string {
	if m.sent {
		return "sent"
	}
	return "received"
}

// arg is a detail that the viewer shows for a slice.
type arg struct {
	name string
	text string // if it is "", the value is number
	num  int64
}

// Writer writes a trace.
type Writer struct {
	out   *output
	sink  sink
	ranks uint64 // number of ranks of the job
}

// NewWriter returns a Writer to w, for a job with this number of ranks. wall is the time at the time at
// of gorun's monotonic clock. The caller must call Close.
func NewWriter(w io.Writer, f Format, ranks int, at time.Duration, wall time.Time) *Writer {
	t := &Writer{out: newOutput(w), ranks: uint64(ranks)}
	if f == Chrome {
		t.sink = &chrome{out: t.out}
	} else {
		t.sink = &perfetto{out: t.out}
	}
	t.sink.begin(at, wall)
	return t
}

// Close ends the trace, and returns the first error of a write. It does not close the writer below.
func (t *Writer) Close() error {
	t.sink.end()
	return t.out.flush()
}

// Result says what Writer.Rank has found in a spool.
type Result struct {
	Begun bool // the rank has begun its record: it is a weft program that has called Init
	// Why the spool ends too early; nil: it does not. It is the error of the reader, or says that the spool
	// is not valid.
	Cut error
	// Overrun is the number of events that the rank recorded faster than its host could read them.
	Overrun uint64
	// Unwritten is the number of events that the rank's host could not write to its disk, and Reason says why.
	Unwritten uint64
	Reason    string
}

// Rank adds the events of a rank to the trace. in is its spool. The error is that of a write.
func (t *Writer) Rank(r Rank, in io.Reader) (res Result, err error) {
	d := newDecoder(in, r.Size)
	v := &converter{w: t, sink: t.sink, r: r}
	var it item
	for {
		err := d.next(&it)
		switch {
		case errors.Is(err, io.EOF):
		case err != nil:
			res.Cut = err
		case it.kind == itemBegin:
			res.Begun = true
			if !v.begin(it.times, it.from) {
				res.Cut = fmt.Errorf("%w: a record begins before the end of the one before", errSpool)
			}
		case it.kind == itemCut:
			res.Unwritten, res.Reason = it.number, it.name
			continue
		case !res.Begun:
			res.Cut = fmt.Errorf("%w: it has no beginning", errSpool)
		default:
			if it.kind == itemLost {
				res.Overrun += min(it.number, math.MaxInt64-res.Overrun)
			}
			v.item(&it)
		}
		if err != nil || res.Cut != nil {
			break
		}
		if t.out.err != nil {
			return res, t.out.err
		}
	}
	if res.Begun {
		v.end()
	}
	return res, t.out.err
}

// protocolOf returns the name of a message's protocol.
func protocolOf(p record.Protocol) string {
	names := []string{record.Eager: "eager", record.Rendezvous: "rendezvous", record.Own: "own"}
	if p &^= record.Collective; int(p) < len(names) {
		return names[p]
	}
	return "unknown"
}
