package ui

import (
	"fmt"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/launcher/internal/live"
)

// tracker knows since when the figures of each rank have not changed.
type tracker struct {
	ranks []tracked // by rank
}

type tracked struct {
	mark
	at      time.Time // when the mark was first seen
	atLeast bool      // no other mark was seen before, so the rank may have had it for longer
}

// mark is what of a rank's figures changes when the rank communicates.
type mark struct {
	known           bool // the rank runs, and has figures
	calls, messages uint64
	in              bool
	inside          record.Inside
}

func markOf(r *live.Rank) (m mark) {
	f := r.Figures
	if r.State != "running" || f == nil || f.Finalized {
		return mark{}
	}
	m = mark{known: true, messages: f.Messages}
	for _, o := range f.Ops {
		m.calls += o.Calls
	}
	if f.Inside != nil {
		m.in, m.inside = true, *f.Inside
	}
	return m
}

// note records the figures of a snapshot.
func (t *tracker) note(s *live.Snapshot) {
	for len(t.ranks) < len(s.Ranks) {
		t.ranks = append(t.ranks, tracked{})
	}
	for i := range s.Ranks {
		if m := markOf(&s.Ranks[i]); m != t.ranks[i].mark || t.ranks[i].at.IsZero() {
			t.ranks[i] = tracked{m, s.At, t.ranks[i].at.IsZero()}
		}
	}
}

// quiet returns the ranks that run and whose figures have not changed for at least the time d. all says
// that no other rank runs.
func (t *tracker) quiet(s *live.Snapshot, d time.Duration) (ranks []int, all bool) {
	all = true
	for i := range s.Ranks {
		switch r := &t.ranks[i]; {
		case !r.known:
		case s.At.Sub(r.at) >= d:
			ranks = append(ranks, i)
		default:
			all = false
		}
	}
	return ranks, all && len(ranks) > 0
}

// notes says in words why ranks are quiet, as far as the last inspection shows it. all is a result of
// quiet.
func (t *tracker) notes(s *live.Snapshot, quiet []int, all bool, found *Inspection) (list []note) {
	shortest := func(of func(m *mark) bool) string {
		d, atLeast := time.Duration(-1), false
		for _, i := range quiet {
			if r := &t.ranks[i]; of(&r.mark) && (d < 0 || s.At.Sub(r.at) < d) {
				d, atLeast = s.At.Sub(r.at), r.atLeast
			}
		}
		if d < 0 {
			return ""
		}
		return age(d, atLeast)
	}
	for i := range found.Late {
		l := &found.Late[i]
		since := shortest(func(m *mark) bool { return m.in && m.inside.Comm == l.Comm && m.inside.Seq == l.Seq })
		if since == "" && !l.unnamed() {
			continue // the collective has ended since the inspection
		}
		if since == "" { // the figures do not show nonblocking collectives
			since = shortest(func(*mark) bool { return true })
		}
		list = append(list, note{l.text(), since})
	}
	for _, d := range found.Deadlocks {
		list = append(list, note{Text: d})
	}
	if all && len(list) == 0 && len(found.Lines) > 0 {
		list = append(list, note{"no rank has called weft", shortest(func(*mark) bool { return true })})
	}
	return list
}

// unnamed reports whether Op is the name of a call that waits for a nonblocking collective, such as
// Request.Wait, so that the name of the collective is not known.
func (l *Late) unnamed() bool { return strings.HasPrefix(l.Op, "Request.") }

// text returns a sentence without its end, which is the time since when ranks wait.
func (l *Late) text() string {
	name := l.Op
	if l.unnamed() {
		name = "collective"
	}
	if l.Seq > 0 {
		name = fmt.Sprintf("%s %d", name, l.Seq)
	}
	name += " of " + l.Comm
	if l.Group > 0 {
		name += fmt.Sprintf(" of group %d", l.Group)
	}
	var parts []string
	if l.Ranks != "" {
		parts = append(parts, fmt.Sprintf("%s %s not entered %s", l.Ranks, has(l.Ranks), name))
	}
	if l.Silent != "" {
		parts = append(parts, fmt.Sprintf("%s %s not answered, and perhaps not entered %s", l.Silent, has(l.Silent), name))
	}
	return strings.Join(parts, "; ") + "; the others wait there"
}

// has returns the verb for ranks, such as "ranks 3-5, 7".
func has(ranks string) string {
	if strings.HasPrefix(ranks, "ranks ") {
		return "have"
	}
	return "has"
}

// schedule says when a stall makes gorun inspect the ranks: at once, and then again after pauses that
// grow, because each inspection interrupts ranks that compute.
type schedule struct {
	quiet int           // number of quiet ranks at the last inspection
	next  time.Time     // when the next inspection is due
	pause time.Duration // pause after that
}

// The pauses between two inspections because of a stall.
const (
	firstPause = 5 * time.Second
	lastPause  = time.Minute
)

// due reports whether an inspection is due. quiet is the number of quiet ranks now.
func (c *schedule) due(quiet int, now time.Time) bool {
	if quiet == 0 {
		*c = schedule{}
		return false
	}
	if now.Before(c.next) {
		return false
	}
	if quiet != c.quiet {
		c.pause = firstPause
	}
	c.quiet, c.next = quiet, now.Add(c.pause)
	c.pause = min(2*c.pause, lastPause)
	return true
}
