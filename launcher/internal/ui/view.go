package ui

import (
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/live"
)

// view turns snapshots into events.
type view struct {
	last    *live.Snapshot // the last snapshot; nil: there was none
	before  *live.Snapshot // the last snapshot with ranks, for rates; nil: there is none that is recent
	names   []string       // of the ranks in the last layout
	updates int            // number of updates since the last layout
	seen    tracker
	when    schedule
}

// layout is the event with what changes rarely. hostOf has, by rank, the index of its host.
type layout struct {
	Job    string   `json:"job"`
	Name   string   `json:"name"`
	Hosts  []string `json:"hosts"`
	Names  []string `json:"names"`
	HostOf []int    `json:"hostOf"`
}

// state is the event that follows each snapshot.
type state struct {
	Phase   string   `json:"phase"`
	Seconds float64  `json:"seconds"` // since the start of gorun
	Silent  []string `json:"silent,omitempty"`
	Rows    []row    `json:"rows"`
	Total   [3]int64 `json:"total"` // calls, messages and bytes per second
	Stall   []note   `json:"stall,omitempty"`
}

// row is the state of a rank, as an array to keep the event short: its class, what it does, the part of
// the time in weft in percent, and calls, messages and bytes per second.
type row [6]any

// The classes of ranks, which the page shows by colours.
const (
	classRunning   = iota // computes, or exchanges messages
	classInside           // is in a collective, or waits in another call
	classFinalized        // has completed Finalize
	classEnded
	classFailed
	classOutside // is no weft program, or has not called Init
)

// note is a line about a stall.
type note struct {
	Text string `json:"text"`
	Age  string `json:"age,omitempty"` // how long this has been so
}

// matrix is the event with the bytes that ranks have sent to each other.
type matrix struct {
	Ranks int    `json:"ranks"`
	Names string `json:"names"` // of the ranks, such as "0 to 7, 1.0 to 1.3"
	Block int    `json:"block"` // each cell stands for so many ranks in each direction
	Size  int    `json:"size"`  // cells in each direction
	Cells []byte `json:"-"`
	Text  string `json:"cells"` // base64 of a byte for each cell, by rows: its logarithm, from 0 to 255
	Max   uint64 `json:"max"`   // the value of 255
	Most  string `json:"most"`  // the pair of ranks with most bytes
}

// update publishes what a snapshot says. peers says that the snapshot has the messages to each rank.
func (p *Page) update(s *live.Snapshot, peers bool) {
	if len(s.Ranks) == 0 && p.last != nil && (s.Job == "" || s.Job == p.last.Job) {
		// No rank runs any more: show the ranks as they were.
		kept := *p.last
		kept.Phase, kept.At, kept.Silent = s.Phase, s.At, nil
		s, p.before = &kept, nil
		p.seen, p.when = tracker{}, schedule{} // ranks that do not run do not stall
	}
	l := layoutOf(s)
	changed := p.last == nil || s.Job != p.last.Job || !slices.Equal(s.Hosts, p.last.Hosts) || !slices.Equal(l.Names, p.names)
	if p.last != nil && s.Job != p.last.Job {
		p.before, p.seen, p.when = nil, tracker{}, schedule{}
	}
	if changed {
		p.names, p.updates = l.Names, 0
	}
	p.seen.note(s)
	e := stateOf(s, p.before)
	var m *matrix
	if peers && len(s.Ranks) > 0 {
		m = matrixOf(s)
	}
	quiet, all := p.seen.quiet(s, p.stallTime)
	begin := p.when.due(len(quiet), s.At)

	p.mu.Lock()
	if len(quiet) > 0 {
		e.Stall = p.seen.notes(s, quiet, all, &p.inspection)
	} else {
		p.inspection = Inspection{} // it must not explain a later stall
	}
	if changed {
		p.history = nil
		p.board.put(kindLayout, l)
	}
	if p.history = append(p.history, e.Total); len(p.history) > maxHistory {
		p.history = slices.Clone(p.history[len(p.history)-maxHistory:])
	}
	p.board.put(kindState, e)
	if m != nil {
		p.board.put(kindMatrix, m)
	}
	begin = begin && !p.inspecting && p.stopped.Err() == nil
	p.inspecting = p.inspecting || begin
	p.mu.Unlock()
	if begin {
		p.running.Go(func() { // ends when the ranks have answered, or End is called, which waits for it
			p.inspect(p.stopped)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.inspecting = false
		})
	}
	p.last = s
	if len(s.Ranks) > 0 {
		p.before = s
	}
	p.updates++
}

func layoutOf(s *live.Snapshot) layout {
	l := layout{Job: s.Job, Name: s.Name, Hosts: append([]string{}, s.Hosts...), Names: []string{}, HostOf: []int{}}
	at := make(map[string]int)
	for i, h := range s.Hosts {
		at[h] = i
	}
	for i := range s.Ranks {
		l.Names = append(l.Names, s.Ranks[i].Name)
		l.HostOf = append(l.HostOf, at[s.Ranks[i].Host])
	}
	return l
}

func stateOf(s, before *live.Snapshot) *state {
	e := &state{Phase: s.Phase, Seconds: math.Round(10*s.At.Sub(s.Begun).Seconds()) / 10, Silent: s.Silent, Rows: make([]row, len(s.Ranks))}
	if s.Begun.IsZero() {
		e.Seconds = 0
	}
	for i, r := range live.Rows(before, s) {
		inWeft := min(int(math.Round(100*r.InCalls)), 100)
		calls, messages, bytes := int64(math.Round(r.Calls)), int64(math.Round(r.Messages)), int64(math.Round(r.Bytes))
		e.Rows[i] = row{classOf(r.Rank), r.Doing(), inWeft, calls, messages, bytes}
		e.Total[0] += calls
		e.Total[1] += messages
		e.Total[2] += bytes
	}
	return e
}

func classOf(r *live.Rank) int {
	switch f := r.Figures; {
	case r.State == "failed":
		return classFailed
	case r.State != "running":
		return classEnded
	case f == nil:
		return classOutside
	case f.Finalized:
		return classFinalized
	case f.Inside != nil || f.Waiting != nil:
		return classInside
	}
	return classRunning
}

// maxCells is the largest number of cells of a matrix in each direction. With more ranks, a cell stands
// for several.
const maxCells = 128

// matrixOf returns the messages between the ranks of each group.
func matrixOf(s *live.Snapshot) *matrix {
	m := &matrix{Block: 1, Ranks: len(s.Ranks)}
	first := make([]int, len(s.Ranks)) // by rank: the first rank of its group
	var names []string                 // of the ranks of each group
	for i := range s.Ranks {
		if first[i] = i; i > 0 && groupOf(s.Ranks[i].Name) == groupOf(s.Ranks[i-1].Name) {
			first[i] = first[i-1]
		}
		if i == len(s.Ranks)-1 || groupOf(s.Ranks[i].Name) != groupOf(s.Ranks[i+1].Name) {
			name := s.Ranks[first[i]].Name
			if first[i] < i {
				name += " to " + s.Ranks[i].Name
			}
			names = append(names, name)
		}
	}
	m.Names = strings.Join(names, ", ")
	m.Block = max(1, (m.Ranks+maxCells-1)/maxCells)
	m.Size = (m.Ranks + m.Block - 1) / m.Block
	bytes := make([]uint64, m.Size*m.Size)
	most, from, to := uint64(0), 0, 0
	for i := range s.Ranks {
		f := s.Ranks[i].Figures
		if f == nil {
			continue
		}
		for _, p := range f.Peers {
			peer := first[i] + p.Rank
			if p.Rank < 0 || peer >= m.Ranks || first[peer] != first[i] {
				continue
			}
			cell := &bytes[i/m.Block*m.Size+peer/m.Block]
			*cell += p.Bytes
			m.Max = max(m.Max, *cell)
			if p.Bytes > most {
				most, from, to = p.Bytes, i, peer
			}
		}
	}
	if most > 0 {
		m.Most = fmt.Sprintf("rank %s to rank %s", s.Ranks[from].Name, s.Ranks[to].Name)
	}
	m.Cells = make([]byte, len(bytes))
	for i, b := range bytes {
		if b > 0 {
			m.Cells[i] = byte(max(1, math.Round(255*math.Log1p(float64(b))/math.Log1p(float64(m.Max)))))
		}
	}
	m.Text = base64.StdEncoding.EncodeToString(m.Cells)
	return m
}

// groupOf returns the group of a rank with this name: "" of "3", "1" of "1.3".
func groupOf(name string) string {
	group, _, spawned := strings.Cut(name, ".")
	if !spawned {
		return ""
	}
	return group
}

// age returns a time for a user.
func age(d time.Duration, atLeast bool) string {
	text := fmt.Sprintf("for %v", d.Truncate(time.Second))
	if atLeast {
		text = fmt.Sprintf("for at least %v", d.Truncate(time.Second))
	}
	return text
}
