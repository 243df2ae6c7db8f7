package trace

import (
	"fmt"
	"time"
)

// The numbers of fields in Perfetto's schema (protos/perfetto/trace, perfetto.dev/docs/reference). Their
// names are those of the messages and fields there.
const (
	tracePacket = 1

	packetClockSnapshot   = 6
	packetTimestamp       = 8
	packetSequence        = 10 // trusted_packet_sequence_id
	packetTrackEvent      = 11
	packetInternedData    = 12
	packetSequenceFlags   = 13
	packetTrackDescriptor = 60

	snapshotClocks = 1
	clockID        = 1
	clockTimestamp = 2

	trackUUID            = 1
	trackName            = 2
	trackProcess         = 3
	trackThread          = 4
	trackParent          = 5 // parent_uuid
	trackCounter         = 8
	trackOrder           = 12 // sibling_order_rank
	trackProcessOrdering = 19
	trackThreadOrdering  = 20
	processPID           = 1
	processName          = 6
	threadPID            = 1
	threadTID            = 2
	threadName           = 5
	counterUnit          = 3

	eventAnnotations   = 4 // debug_annotations
	eventType          = 9
	eventName          = 10 // name_iid
	eventTrack         = 11
	eventCounter       = 30 // counter_value
	eventFlow          = 47 // flow_ids
	eventTerminateFlow = 48 // terminating_flow_ids

	annotationName = 1 // name_iid
	annotationInt  = 4
	annotationText = 17 // string_value_iid

	internedEventNames      = 2
	internedAnnotationNames = 3
	internedStrings         = 29 // debug_annotation_string_values
	internedID              = 1
	internedText            = 2
)

// Values of enumerations in Perfetto's schema.
const (
	clockRealtime  = 1
	clockMonotonic = 3
	clockBoottime  = 6

	typeSliceBegin = 1
	typeSliceEnd   = 2
	typeInstant    = 3
	typeCounter    = 4

	orderingExplicit = 1 // of processes and threads
	unitBytes        = 3

	stateCleared = 1 // SEQ_INCREMENTAL_STATE_CLEARED
	stateNeeded  = 2 // SEQ_NEEDS_INCREMENTAL_STATE
)

// perfetto writes a trace in the format of Perfetto. Each rank is a sequence of packets of its own, in
// which names are interned.
type perfetto struct {
	out      *output
	sequence uint64 // number of the sequence of the rank
	process  uint64 // id of the track of the rank
	pid      int64  // of the rank in the trace
	cleared  bool   // the first packet of the sequence is written
	tracks   map[uint64]bool
	interned [3]map[string]uint64 // by kind: numbers of the texts

	packet, event, inner, names []byte // buffers
}

// The kinds of interned texts.
const (
	eventNames = iota
	annotationNames
	annotationTexts
)

// The ids of the tracks of a rank, relative to that of the rank itself.
const (
	callsTrack    = 1
	messagesTrack = callsTrack + maxTracks
	countersTrack = messagesTrack + 1
	tracksPerRank = countersTrack + counters
)

func (p *perfetto) begin(at time.Duration, wall time.Time) {
	p.event = p.event[:0]
	for _, c := range [][2]uint64{{clockBoottime, uint64(at)}, {clockMonotonic, uint64(at)}, {clockRealtime, uint64(wall.UnixNano())}} {
		p.inner = appendUint(appendUint(p.inner[:0], clockID, c[0]), clockTimestamp, c[1])
		p.event = appendBytes(p.event, snapshotClocks, p.inner)
	}
	p.packet = appendUint(p.packet[:0], packetTimestamp, uint64(at))
	p.packet = appendUint(p.packet, packetSequence, 1)
	p.put(appendBytes(p.packet, packetClockSnapshot, p.event))
	// The track with the id 0 has settings for all.
	p.event = appendUint(p.event[:0], trackUUID, 0)
	p.event = appendUint(p.event, trackProcessOrdering, orderingExplicit)
	p.event = appendUint(p.event, trackThreadOrdering, orderingExplicit)
	p.put(appendBytes(appendUint(p.packet[:0], packetSequence, 1), packetTrackDescriptor, p.event))
}

func (p *perfetto) put(packet []byte) {
	p.packet = packet
	p.inner = appendBytes(p.inner[:0], tracePacket, packet)
	p.out.write(p.inner)
}

func (p *perfetto) rank(r *Rank) {
	p.sequence, p.process, p.cleared = uint64(r.Number)+2, uint64(r.Number+1)*uint64(tracksPerRank), false
	p.tracks = make(map[uint64]bool)
	for k := range p.interned {
		p.interned[k] = make(map[string]uint64)
	}
	// Viewers take two processes with one pid for the same one, and pids of different hosts can be equal.
	p.pid = int64(r.Number) + 1
	p.inner = appendInt(p.inner[:0], processPID, p.pid)
	p.inner = appendBytes(p.inner, processName, fmt.Sprintf("%s (%s)", r.Name, r.Host))
	p.event = appendUint(p.event[:0], trackUUID, p.process)
	p.event = appendBytes(p.event, trackProcess, p.inner)
	p.event = appendInt(p.event, trackOrder, int64(r.Number))
	p.put(appendBytes(p.head(), packetTrackDescriptor, p.event))
}

// head begins a packet of the rank's sequence.
func (p *perfetto) head() []byte {
	flags := uint64(stateNeeded)
	if !p.cleared {
		p.cleared, flags = true, stateNeeded|stateCleared
	}
	b := appendUint(p.packet[:0], packetSequence, p.sequence)
	return appendUint(b, packetSequenceFlags, flags)
}

// thread returns the id of a track of the rank for calls or messages. number is its number among the
// tracks of the rank. At its first call for a track, thread describes it.
func (p *perfetto) thread(number uint64, name string) uint64 {
	id := p.process + number
	if !p.tracks[id] {
		p.tracks[id] = true
		p.inner = appendInt(p.inner[:0], threadPID, p.pid)
		p.inner = appendInt(p.inner, threadTID, int64(id))
		p.inner = appendBytes(p.inner, threadName, name)
		p.event = appendUint(p.event[:0], trackUUID, id)
		p.event = appendBytes(p.event, trackThread, p.inner)
		p.event = appendUint(p.event, trackOrder, number)
		p.put(appendBytes(p.head(), packetTrackDescriptor, p.event))
	}
	return id
}

// counterTrack is thread for a counter.
func (p *perfetto) counterTrack(c counter) uint64 {
	id := p.process + countersTrack + uint64(c)
	if !p.tracks[id] {
		p.tracks[id] = true
		p.event = appendUint(p.event[:0], trackUUID, id)
		p.event = appendBytes(p.event, trackName, counterNames[c])
		p.event = appendUint(p.event, trackParent, p.process)
		p.inner = appendUint(p.inner[:0], counterUnit, unitBytes)
		p.event = appendBytes(p.event, trackCounter, p.inner)
		p.put(appendBytes(p.head(), packetTrackDescriptor, p.event))
	}
	return id
}

// begins begins an event. name is empty for an event without a name.
func (p *perfetto) begins(kind, track uint64, name string) {
	p.names = p.names[:0]
	p.event = appendUint(p.event[:0], eventType, kind)
	p.event = appendUint(p.event, eventTrack, track)
	if name != "" {
		p.event = appendUint(p.event, eventName, p.intern(eventNames, name))
	}
}

func (p *perfetto) annotate(args []arg) {
	for i := range args {
		a := &args[i]
		name := p.intern(annotationNames, a.name)
		if a.text != "" {
			text := p.intern(annotationTexts, a.text)
			p.inner = appendUint(appendUint(p.inner[:0], annotationName, name), annotationText, text)
		} else {
			p.inner = appendInt(appendUint(p.inner[:0], annotationName, name), annotationInt, a.num)
		}
		p.event = appendBytes(p.event, eventAnnotations, p.inner)
	}
}

// intern returns the number of a text. It adds a new text to names, which putEvent puts into the packet.
func (p *perfetto) intern(kind int, text string) uint64 {
	n, ok := p.interned[kind][text]
	if !ok {
		n = uint64(len(p.interned[kind]) + 1)
		p.interned[kind][text] = n
		p.inner = appendBytes(appendUint(p.inner[:0], internedID, n), internedText, text)
		p.names = appendBytes(p.names, [...]int{internedEventNames, internedAnnotationNames, internedStrings}[kind], p.inner)
	}
	return n
}

// putEvent writes the event that begins has begun.
func (p *perfetto) putEvent(at time.Duration) {
	b := appendUint(p.head(), packetTimestamp, uint64(at))
	if len(p.names) > 0 {
		b = appendBytes(b, packetInternedData, p.names)
	}
	p.put(appendBytes(b, packetTrackEvent, p.event))
}

func (p *perfetto) call(t track, start, end time.Duration, name string, args []arg, within []message) {
	text := "calls"
	if t > 0 {
		text = fmt.Sprintf("calls %d", t+1)
	}
	id := p.thread(callsTrack+uint64(t), text)
	p.begins(typeSliceBegin, id, name)
	p.annotate(args)
	p.putEvent(start)
	for i := range within {
		p.putMessage(id, &within[i])
	}
	p.begins(typeSliceEnd, id, "")
	p.putEvent(end)
}

func (p *perfetto) message(m *message) { p.putMessage(p.thread(messagesTrack, "messages"), m) }

// putMessage writes a message on a track.
func (p *perfetto) putMessage(track uint64, m *message) {
	p.begins(typeInstant, track, m.name())
	p.annotate(m.args)
	field := eventTerminateFlow
	if m.sent {
		field = eventFlow
	}
	p.event = appendFixed64(p.event, field, m.flow)
	p.putEvent(m.at)
}

func (p *perfetto) note(at time.Duration, text string, args []arg) {
	p.begins(typeInstant, p.thread(messagesTrack, "messages"), text)
	p.annotate(args)
	p.putEvent(at)
}

func (p *perfetto) counter(c counter, at time.Duration, value int64) {
	p.begins(typeCounter, p.counterTrack(c), "")
	p.event = appendInt(p.event, eventCounter, value)
	p.putEvent(at)
}

func (p *perfetto) end() {}
