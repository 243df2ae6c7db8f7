package trace

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/record"
)

// chromeEvent is an event of a trace in the format of Chrome.
type chromeEvent struct {
	Ph, Name, Cat, ID string
	PID, TID          int
	TS, Dur           json.Number
	Args              map[string]any
}

func (e *chromeEvent) start() time.Duration { return nanoseconds(e.TS) }
func (e *chromeEvent) end() time.Duration   { return nanoseconds(e.TS) + nanoseconds(e.Dur) }

// nanoseconds returns a number of microseconds with three decimal places.
func nanoseconds(n json.Number) time.Duration {
	t, err := strconv.ParseInt(strings.ReplaceAll(cmp.Or(n.String(), "0.000"), ".", ""), 10, 64)
	if err != nil {
		panic(err)
	}
	return time.Duration(t)
}

// checkChrome parses a trace, and checks that calls on one thread do not overlap, and that messages on a
// thread are in order.
func checkChrome(t *testing.T, b []byte) []chromeEvent {
	t.Helper()
	var all struct{ TraceEvents []chromeEvent }
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	require.NoError(t, d.Decode(&all), string(b))
	last := make(map[[2]int]chromeEvent)
	for _, e := range all.TraceEvents {
		if e.Ph != "X" {
			continue
		}
		key := [2]int{e.PID, e.TID}
		if l, ok := last[key]; ok {
			if e.Name == "sent" || e.Name == "received" {
				require.GreaterOrEqual(t, e.start(), l.start())
				if e.TID != chromeMessages {
					require.LessOrEqual(t, e.end(), l.end())
				}
				e.Dur = json.Number(fmt.Sprintf("%d.%03d", (l.end()-e.start())/1000, (l.end()-e.start())%1000))
				if e.TID == chromeMessages {
					e.Dur = "0.000"
				}
			} else {
				require.GreaterOrEqual(t, e.start(), l.end(), "%v overlaps %v", e, l)
			}
		}
		last[key] = e
	}
	return all.TraceEvents
}

// convert converts the events of a rank, the rank 1 of 4, and returns the trace without the metadata.
func convert(t *testing.T, events ...record.Event) (list []chromeEvent) {
	t.Helper()
	var e Encoder
	e.Begin(record.Times{Wall: time.Unix(1, 0), Monotonic: time.Hour}, 0)
	for op, name := range []string{3: "Send", 4: "Recv", 5: "Wait", 6: "Allreduce", 7: "Sendrecv"} {
		e.Op(record.Op(op), name)
	}
	e.Comm(0, "world")
	for i := range events {
		e.Event(&events[i])
	}
	var out bytes.Buffer
	w := NewWriter(&out, Chrome, 4, time.Hour, time.Unix(1, 0))
	res, err := w.Rank(Rank{Number: 1, Size: 4, Name: "rank 1", Host: "node1"}, bytes.NewReader(e.Bytes()))
	require.NoError(t, err)
	require.Equal(t, Result{Begun: true}, res)
	require.NoError(t, w.Close())
	for _, e := range checkChrome(t, out.Bytes()) {
		if e.Ph == "X" || e.Ph == "C" {
			list = append(list, e)
		}
	}
	return list
}

func names(list []chromeEvent) (out []string) {
	for _, e := range list {
		if e.Ph == "X" {
			out = append(out, fmt.Sprintf("%s on %d", e.Name, e.TID))
		}
	}
	return out
}

const (
	us      = time.Microsecond
	opSend  = 3
	opRecv  = 4
	opWait  = 5
	opAll   = 6
	opSdrcv = 7
)

func call(op record.Op, from, to time.Duration, tag int32) record.Event {
	return record.Event{Op: op, Start: from, Duration: to - from, Peer: 2, Tag: tag, Bytes: 8}
}

func msg(op record.Op, at time.Duration, tag int32, seq uint32) record.Event {
	return record.Event{Op: op, Start: at, Peer: 2, Tag: tag, Bytes: 8, Seq: seq}
}

// TestMessageInCall: a message is within the call that has the same communicator and tag at the time of the
// message, also if the message comes after the call; without such a call it is on the track for messages.
func TestMessageInCall(t *testing.T) {
	other := call(opSend, 30*us, 39*us, 1)
	other.Comm = 1
	all := call(opAll, 50*us, 59*us, 7)
	all.Peer = noPeer
	inAll := msg(record.OpSent, 55*us, 7, 4)
	inAll.Protocol = record.Collective
	anyTag := call(opWait, 60*us, 69*us, -1)
	list := convert(t,
		msg(record.OpSent, 11*us, 1, 1), call(opSend, 10*us, 12*us, 1), // as usual
		call(opSend, 20*us, 22*us, 1), msg(record.OpSent, 21*us, 1, 2), // the message comes late
		msg(record.OpSent, 35*us, 1, 3), other, // another communicator
		inAll, msg(record.OpReceived, 56*us, 7, 1), all, // a collective, and a message that is not of it
		msg(record.OpReceived, 65*us, 9, 2), anyTag,
		msg(record.OpReceived, 75*us, 9, 3), call(opSdrcv, 70*us, 79*us, 1), // its receive has another tag
		msg(record.OpReceived, 85*us, 9, 4), call(opRecv, 80*us, 89*us, 1), // another tag
	)
	require.Equal(t, []string{
		"Send on 1", "sent on 1", "Send on 1", "sent on 1", "Send on 1", "Allreduce on 1", "sent on 1", "Wait on 1", "received on 1",
		"Sendrecv on 1", "received on 1", "Recv on 1", "sent on 0", "received on 0", "received on 0",
	}, names(list))
	require.Equal(t, map[string]any{"communicator": "world", "peer": json.Number("2"), "tag": json.Number("1"), "bytes": json.Number("8")}, list[0].Args)
	require.Equal(t, time.Hour+10*us, list[0].start())
	require.Equal(t, time.Hour+12*us, list[0].end())
}

// TestTracks: calls that overlap are on different tracks, as few as possible.
func TestTracks(t *testing.T) {
	list := convert(t,
		call(opSend, 1*us, 2*us, 1), call(opSend, 2*us, 3*us, 1), // one after the other
		call(opSend, 4*us, 6*us, 1), call(opRecv, 0, 7*us, 1), // overlaps all
		call(opSend, 7*us, 8*us, 1), call(opWait, 6*us, 9*us, 1),
	)
	require.Equal(t, []string{"Send on 1", "Send on 1", "Send on 1", "Recv on 2", "Send on 2", "Wait on 1"}, names(list))
	// With more calls at the same time than there can be tracks, the calls still do not overlap.
	var many []record.Event
	for i := range maxTracks + 10 {
		many = append(many, call(opRecv, 0, time.Duration(i+1)*us, 1))
	}
	tids := make(map[int]bool)
	for _, e := range convert(t, many...) {
		tids[e.TID] = true
	}
	require.Len(t, tids, maxTracks)
}

// TestLate: in a spool that does not begin with the record, a call that began before is cut, and both ends of a message
// have the same flow, also if they begin with different messages.
func TestLate(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out, Chrome, 4, 0, time.Unix(1, 0))
	received := msg(record.OpReceived, 140*us, 1, 1<<23)
	received.Peer = 0
	for i, events := range [][]record.Event{
		{call(opSend, 10*us, 120*us, 1), msg(record.OpSent, 110*us, 1, 1<<23-1), msg(record.OpSent, 130*us, 1, 1<<23)},
		{received},
	} {
		var e Encoder
		e.Begin(record.Times{Wall: time.Unix(1, 0)}, 100*us)
		e.Op(opSend, "Send")
		for i := range events {
			e.Event(&events[i])
		}
		res, err := w.Rank(Rank{Number: 2 * i, Size: 4}, bytes.NewReader(e.Bytes()))
		require.NoError(t, err)
		require.Equal(t, Result{Begun: true}, res)
	}
	require.NoError(t, w.Close())
	begins := 0
	flows := make(map[string]string) // by id: the kinds of its ends
	for _, e := range checkChrome(t, out.Bytes()) {
		switch {
		case e.Ph == "s" || e.Ph == "f":
			flows[e.ID] += e.Ph
		case e.Name == "Send":
			require.Equal(t, 100*us, e.start())
			require.Equal(t, 120*us, e.end())
			require.Equal(t, json.Number("90000"), e.Args["ns before the trace"])
		case e.Name == "the trace begins":
			begins++
		}
	}
	require.Equal(t, 2, begins)
	kinds := slices.Sorted(maps.Values(flows))
	require.Len(t, kinds, 2)
	require.Equal(t, "s", kinds[0])
	require.Len(t, kinds[1], 2)
}

// TestPending: a converter holds a bounded number of messages and calls, and writes the others in order.
func TestPending(t *testing.T) {
	var events []record.Event
	for i := range 5 * maxPending {
		events = append(events, msg(record.OpSent, time.Duration(i)*us, 1, uint32(i+1)))
	}
	for i := range 2 * maxPending {
		events = append(events, call(opWait, time.Duration(5*maxPending+i)*us, time.Duration(5*maxPending+i)*us, 2))
	}
	events = append(events, call(opSend, 0, 8*maxPending*us, 1)) // would have all messages
	v := &converter{w: &Writer{ranks: 4}, sink: &chrome{out: newOutput(io.Discard)}, r: Rank{Size: 4}}
	v.begin(record.Times{}, 0)
	for i := range events {
		k := itemCall
		if events[i].Op == record.OpSent {
			k = itemSent
		}
		v.item(&item{kind: k, event: events[i]})
		require.LessOrEqual(t, len(v.pending), maxPending)
		require.LessOrEqual(t, len(v.calls), maxPending)
	}
	count := make(map[string]int)
	for _, name := range names(convert(t, events...)) {
		count[name]++
	}
	require.Equal(t, 5*maxPending, count["sent on 0"]+count["sent on 2"])
	require.Greater(t, count["sent on 0"], 3*maxPending)
	require.Equal(t, 2*maxPending, count["Wait on 1"])
	require.Equal(t, 1, count["Send on 2"])
}

// TestFlows: both ends of a message have the same flow, also if the number of messages exceeds what the
// record has room for, and if messages are received in another order.
func TestFlows(t *testing.T) {
	const wrap = 1<<seqBits - 2
	sender := &converter{w: &Writer{ranks: 4}, r: Rank{Number: 1, Size: 4}, count: [2]map[int32]int64{{2: wrap}, {}}}
	receiver := &converter{w: &Writer{ranks: 4}, r: Rank{Number: 2, Size: 4}, count: [2]map[int32]int64{{}, {1: wrap}}}
	var sent []uint64
	for i := range 4 {
		e := msg(record.OpSent, us, 1, uint32(wrap+1+i)&(1<<seqBits-1))
		sent = append(sent, sender.convert(&e).flow)
	}
	for _, i := range []int{1, 0, 3, 2} {
		e := msg(record.OpReceived, us, 1, uint32(wrap+1+i)&(1<<seqBits-1))
		e.Peer = 1
		require.Equal(t, sent[i], receiver.convert(&e).flow)
	}
	again := msg(record.OpSent, us, 1, 1) // the number 1 comes again after the wrap, but not the flow
	fresh := &converter{w: &Writer{ranks: 4}, r: Rank{Number: 1, Size: 4}, count: [2]map[int32]int64{{}, {}}}
	require.NotContains(t, sent, fresh.convert(&again).flow)
	back := msg(record.OpSent, us, 1, wrap+1)
	back.Peer = 1
	require.NotContains(t, sent, receiver.convert(&back).flow)
}

// TestSecondProgram: if a rank runs two programs, the events of both are in the trace, on the same tracks, and
// their messages have different flows.
func TestSecondProgram(t *testing.T) {
	var e Encoder
	for i := range 2 {
		e.Begin(record.Times{Wall: time.Unix(1, 0), Monotonic: time.Hour + time.Duration(i)*time.Minute}, 0)
		e.Op(opSend, []string{"first", "second"}[i])
		e.Comm(0, "world")
		m, c := msg(record.OpSent, 2*us, 1, 1), call(opSend, us, 3*us, 1)
		e.Event(&m)
		e.Event(&c)
	}
	var out bytes.Buffer
	w := NewWriter(&out, Chrome, 4, time.Hour, time.Unix(1, 0))
	res, err := w.Rank(Rank{Number: 1, Size: 4}, bytes.NewReader(e.Bytes()))
	require.NoError(t, err)
	require.Equal(t, Result{Begun: true}, res)
	require.NoError(t, w.Close())
	var calls []chromeEvent
	flows := make(map[string]bool)
	begun := 0
	for _, e := range checkChrome(t, out.Bytes()) {
		switch {
		case e.Ph == "s":
			flows[e.ID] = true
		case e.Ph == "i" && e.Name == "Init":
			begun++
		case e.Ph == "X" && e.TID == chromeCalls:
			calls = append(calls, e)
		}
	}
	require.Equal(t, []string{"first on 1", "sent on 1", "second on 1", "sent on 1"}, names(calls))
	require.Equal(t, time.Hour+time.Minute+us, calls[2].start())
	require.Len(t, flows, 2)
	require.Equal(t, 2, begun)
}

// TestCounters: a counter has the average of each period with messages, and 0 afterwards.
func TestCounters(t *testing.T) {
	const p = ratePeriod
	var values []string
	for _, e := range convert(t, msg(record.OpSent, p/2, 1, 1), msg(record.OpSent, p-1, 1, 2), msg(record.OpSent, p, 1, 3), msg(record.OpSent, 7*p, 1, 4)) {
		if e.Name == counterNames[sentRate] && e.Ph == "C" {
			values = append(values, fmt.Sprint(e.start()-time.Hour, " ", e.Args["bytes/s"]))
		}
	}
	require.Equal(t, []string{"0s 1600", "10ms 800", "20ms 0", "70ms 800", "80ms 0"}, values)
}

// TestCut: a spool that ends too early, or is not one, makes a trace of what there is, and Result says
// what is wrong.
func TestCut(t *testing.T) {
	var e Encoder
	e.Begin(record.Times{Wall: time.Unix(1, 0)}, 0)
	begun := bytes.Clone(e.Bytes())
	e.Lost(4)
	v := call(opSend, us, 2*us, 1)
	e.Event(&v)
	good := e.Bytes()
	failed := errors.New("its host is lost")
	for name, test := range map[string]struct {
		in   io.Reader
		want Result
		cut  error
		n    int // number of calls in the trace
	}{
		"empty":      {bytes.NewReader(nil), Result{}, nil, 0},
		"good":       {bytes.NewReader(good), Result{Begun: true, Overrun: 4}, nil, 1},
		"cut":        {bytes.NewReader(good[:len(good)-1]), Result{Begun: true, Overrun: 4}, io.ErrUnexpectedEOF, 0},
		"failed":     {io.MultiReader(bytes.NewReader(good), iotest.ErrReader(failed)), Result{Begun: true, Overrun: 4}, failed, 1},
		"full disk":  {bytes.NewReader(append(bytes.Clone(begun), Cut(9, "full")...)), Result{Begun: true, Unwritten: 9, Reason: "full"}, nil, 0},
		"only full":  {bytes.NewReader(Cut(9, "full")), Result{Unwritten: 9, Reason: "full"}, nil, 0},
		"no begin":   {bytes.NewReader(good[len(begun):]), Result{}, errSpool, 0},
		"two begins": {bytes.NewReader(append(bytes.Clone(good), begun...)), Result{Begun: true, Overrun: 4}, errSpool, 1}, // at the same time
		"nonsense":   {strings.NewReader("nonsense"), Result{}, errSpool, 0},
	} {
		var out bytes.Buffer
		w := NewWriter(&out, Chrome, 1, 0, time.Unix(1, 0))
		res, err := w.Rank(Rank{Size: 4}, test.in)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		require.ErrorIs(t, res.Cut, test.cut, name)
		res.Cut = nil
		require.Equal(t, test.want, res, name)
		n := 0
		for _, e := range checkChrome(t, out.Bytes()) {
			if e.Ph == "X" {
				n++
			}
		}
		require.Equal(t, test.n, n, name)
	}
}

// TestFullFile: the error of a write ends the conversion.
func TestFullFile(t *testing.T) {
	var e Encoder
	e.Begin(record.Times{Wall: time.Unix(1, 0)}, 0)
	for i := range 100000 {
		v := call(opSend, time.Duration(i)*us, time.Duration(i+1)*us, 1)
		e.Event(&v)
	}
	failed := errors.New("no space")
	for _, f := range []Format{Perfetto, Chrome} {
		w := NewWriter(writerFunc(func([]byte) (int, error) { return 0, failed }), f, 1, 0, time.Unix(1, 0))
		_, err := w.Rank(Rank{Size: 4}, bytes.NewReader(e.Bytes()))
		require.ErrorIs(t, err, failed)
		require.ErrorIs(t, w.Close(), failed)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
