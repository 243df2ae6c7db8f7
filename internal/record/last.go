package record

import (
	"cmp"
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
	commName := func(i uint16) string { return cmp.Or(r.CommName(i), "a communicator") }
	var parts []string
	if op, comm, seq, ok := r.inside(); ok {
		parts = append(parts, fmt.Sprintf("in %s %d of %s", cmp.Or(r.OpName(op), "a collective"), seq, commName(comm)))
	}
	shown := 0
	for i := len(calls) - 1; i >= 0 && shown < lastShown; i-- {
		e := &calls[i]
		text := r.OpName(e.Op)
		if text == "" {
			continue
		}
		switch {
		case e.Peer >= 0:
			text += fmt.Sprintf(" (%d B, with rank %d of %s)", e.Bytes, e.Peer, commName(e.Comm))
		case e.Tag >= 0:
			text += fmt.Sprintf(" %d of %s", e.Tag, commName(e.Comm))
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
