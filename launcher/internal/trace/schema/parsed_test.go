package schema

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// parsed is a trace, and what check has found in it.
type parsed struct {
	packets   []message
	processes map[int]string // names of the ranks' processes, by pid
	flows     map[uint64]*flow
	calls     map[string]int // number of calls, by callKey
	inCalls   int            // number of messages within calls
	tracks    int            // number of tracks for calls and messages
}

// flow is what check knows about a flow.
type flow struct {
	begins, ends int
	what         [2]string // the message at both ends
}

// track is the state of a track while check reads its events.
type track struct {
	pid   int // 0: a counter
	name  string
	at    uint64
	depth int
}

// sequence holds the interned texts of a sequence of packets.
type sequence struct{ events, names, texts map[uint64]string }

// check checks the rules of traces: see checkTracks. Each flow begins once and ends once.
func (p *parsed) check(t *testing.T) {
	t.Helper()
	p.checkTracks(t)
	for id, f := range p.flows {
		require.Equal(t, [2]int{1, 1}, [2]int{f.begins, f.ends}, "flow %d: %v", id, f.what)
		require.Equal(t, f.what[0], f.what[1])
	}
}

// checkTracks checks that identifiers exist before they are used, that the times of a track ascend, and that each
// slice has an end.
func (p *parsed) checkTracks(t *testing.T) {
	t.Helper()
	tracks := make(map[uint64]*track)
	uuids := make(map[uint64]int) // by id of the track of a process: its pid
	tids := make(map[int64]bool)
	sequences := make(map[uint64]*sequence)
	for _, m := range p.packets {
		seq := m.uint("trusted_packet_sequence_id")
		require.NotZero(t, seq)
		flags := m.uint("sequence_flags")
		if flags&1 != 0 {
			sequences[seq] = &sequence{make(map[uint64]string), make(map[uint64]string), make(map[uint64]string)}
		}
		s := sequences[seq]
		if m.has("interned_data") {
			d := m.message("interned_data")
			intern(t, s.events, d.messages("event_names"), "name")
			intern(t, s.names, d.messages("debug_annotation_names"), "name")
			intern(t, s.texts, d.messages("debug_annotation_string_values"), "str")
		}
		switch {
		case m.has("track_descriptor"):
			p.describe(t, m.message("track_descriptor"), tracks, uuids, tids)
		case m.has("track_event"):
			require.NotZero(t, flags&2, "the event needs interned texts")
			p.event(t, m, s, tracks)
		default:
			require.True(t, m.has("clock_snapshot"))
		}
	}
	for _, tr := range tracks {
		require.Zero(t, tr.depth, "a slice of %s of process %d has no end", tr.name, tr.pid)
		if tr.pid > 0 {
			p.tracks++
		}
	}
}

func intern(t *testing.T, texts map[uint64]string, list []message, key string) {
	t.Helper()
	for _, m := range list {
		require.NotContains(t, texts, m.uint("iid"))
		texts[m.uint("iid")] = m.string(key)
	}
}

func (p *parsed) describe(t *testing.T, d message, tracks map[uint64]*track, uuids map[uint64]int, tids map[int64]bool) {
	t.Helper()
	id := d.uint("uuid")
	require.NotContains(t, tracks, id)
	require.NotContains(t, uuids, id)
	switch {
	case id == 0:
		require.Equal(t, "PROCESS_ORDERING_EXPLICIT", d.enum("process_ordering"))
	case d.has("process"):
		pid := int(d.message("process").int("pid"))
		require.NotContains(t, p.processes, pid)
		p.processes[pid], uuids[id] = d.message("process").string("process_name"), pid
	case d.has("thread"):
		th := d.message("thread")
		require.Contains(t, p.processes, int(th.int("pid")))
		require.False(t, tids[th.int("tid")])
		tids[th.int("tid")] = true
		tracks[id] = &track{pid: int(th.int("pid")), name: th.string("thread_name")}
	default:
		require.True(t, d.has("counter"))
		require.Contains(t, uuids, d.uint("parent_uuid"))
		tracks[id] = &track{name: d.string("name")}
	}
}

func (p *parsed) event(t *testing.T, m message, s *sequence, tracks map[uint64]*track) {
	t.Helper()
	e, at := m.message("track_event"), m.uint("timestamp")
	tr := tracks[e.uint("track_uuid")]
	require.NotNil(t, tr)
	require.GreaterOrEqual(t, at, tr.at, "%s of process %d", tr.name, tr.pid)
	tr.at = at
	name := ""
	if e.has("name_iid") {
		name = s.events[e.uint("name_iid")]
		require.NotEmpty(t, name)
	}
	args := arguments(t, e, s)
	switch e.enum("type") {
	case "TYPE_SLICE_BEGIN":
		tr.depth++
		for _, key := range []string{"tag", "number"} {
			if v, ok := args[key]; ok {
				p.calls[fmt.Sprint(tr.pid-1, " ", name, " ", key, " ", v)]++
			}
		}
	case "TYPE_SLICE_END":
		tr.depth--
		require.GreaterOrEqual(t, tr.depth, 0)
	case "TYPE_INSTANT":
		begins, ends := e.uints("flow_ids"), e.uints("terminating_flow_ids")
		require.Equal(t, name == "sent", len(begins) == 1, name)
		require.Equal(t, name == "received", len(ends) == 1, name)
		for _, id := range begins {
			p.flow(id).begins++
			p.flow(id).what[0] = fmt.Sprint(tr.pid-1, " to ", args["peer"], args["tag"], args["number"], args["bytes"])
		}
		for _, id := range ends {
			p.flow(id).ends++
			p.flow(id).what[1] = fmt.Sprint(args["peer"], " to ", tr.pid-1, args["tag"], args["number"], args["bytes"])
		}
		if tr.depth > 0 {
			require.Len(t, append(begins, ends...), 1)
			p.inCalls++
		}
	default:
		require.Equal(t, "TYPE_COUNTER", e.enum("type"))
		require.Zero(t, tr.pid)
		require.GreaterOrEqual(t, e.int("counter_value"), int64(0))
	}
}

func (p *parsed) flow(id uint64) *flow {
	if p.flows[id] == nil {
		p.flows[id] = new(flow)
	}
	return p.flows[id]
}

func arguments(t *testing.T, e message, s *sequence) map[string]any {
	t.Helper()
	args := make(map[string]any)
	for _, a := range e.messages("debug_annotations") {
		name := s.names[a.uint("name_iid")]
		require.NotEmpty(t, name)
		if a.has("string_value_iid") {
			args[name] = s.texts[a.uint("string_value_iid")]
		} else {
			require.True(t, a.has("int_value"))
			args[name] = a.int("int_value")
		}
	}
	return args
}

// text returns the trace as lines, one for each packet.
func (p *parsed) text() string {
	var b strings.Builder
	for _, m := range p.packets {
		// The text format of protocol buffers has random spaces.
		fields := strings.Fields(fmt.Sprint(m.Interface()))
		b.WriteString(strings.Join(slices.DeleteFunc(fields, func(s string) bool { return s == "" }), " ") + "\n")
	}
	return b.String()
}
