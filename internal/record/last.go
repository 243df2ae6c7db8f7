package record

import (
	"fmt"
	"strings"
)

// lastShown is the number of messages, and of calls, that LastText names.
const lastShown = 2

// LastText returns in words what the rank did last: the collective in which it is, its last calls, and its
// last messages other than those of collectives, the latest first. Without detail, the calls are
// collectives only. LastText returns "" if the rank has recorded nothing. The rank may run meanwhile,
// so the text is for a person to read and not for decisions. rank names the rank with a number of
// Event.Peer.
func (r *Reader) LastText(rank func(int) string) string {
	if !r.Begun() {
		return ""
	}
	messages, calls := r.Last(64, true)
	ops, comms := r.Ops(), r.Comms()
	var parts []string
	if op, comm, seq, ok := r.inside(); ok && int(op) < len(ops) {
		parts = append(parts, fmt.Sprintf("in %s %d of %s", ops[op].Name, seq, commName(comms, comm)))
	}
	shown := 0
	for i := len(calls) - 1; i >= 0 && shown < lastShown; i-- {
		e := &calls[i]
		if int(e.Op) >= len(ops) || ops[e.Op].Name == "" {
			continue
		}
		text := ops[e.Op].Name
		switch {
		case e.Peer >= 0:
			text += fmt.Sprintf(" (%d B, with rank %d of %s)", e.Bytes, e.Peer, commName(comms, e.Comm))
		case e.Tag >= 0:
			text += fmt.Sprintf(" %d of %s", e.Tag, commName(comms, e.Comm))
		}
		parts = append(parts, text)
		shown++
	}
	shown = 0
	for i := len(messages) - 1; i >= 0 && shown < lastShown; i-- {
		e := &messages[i]
		what := map[Op]string{OpSent: "sent %d B to %s (tag %d)", OpReceived: "received %d B from %s (tag %d)"}[e.Op]
		if e.Protocol&Collective != 0 || what == "" {
			continue
		}
		parts = append(parts, fmt.Sprintf(what, e.Bytes, rank(int(e.Peer)), e.Tag))
		shown++
	}
	return strings.Join(parts, "; ")
}

func commName(names []string, i uint16) string {
	if int(i) < len(names) {
		return names[i]
	}
	return "a communicator"
}
