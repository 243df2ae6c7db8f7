package procs

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// Host is the process manager of a host for all groups of a job's ranks. It has a Manager for each
// group that has ranks on this host:
//
//	            ┌─► Manager of group 0 ───┐
//	Do ── Host ─┼─► Manager of group 1 ───┼─► Host ── Config.Emit
//	            └─► …                     ┘
//
// The Manager of a group other than 0 exists from Prepare until Ended or Dismiss.
type Host struct {
	cfg     Config
	closing sync.WaitGroup // goroutines that close the Managers of groups that have ended

	mu         sync.Mutex       // guards the fields below
	groups     map[int]*Manager // by number of the group
	readerGone [2]bool          // OutputClosed has come: [0] for stdout, [1] for stderr
	closed     bool             // Close was called

	inspection  gathering[proto.Inspected] // the answers to Inspect
	measurement gathering[record.Figures]  // the answers to Measure
	captured    gathering[struct{}]        // the answers to Capture
}

// gathering collects the answers of the Managers to a question of gorun, which expects one answer of
// each host. T is the type of an answer's parts.
type gathering[T any] struct {
	n       int          // number of the current question; 0: none has come
	asked   map[int]bool // by number of the group: its Manager has not answered yet
	answers map[int][]T  // by number of the group: the answer of its Manager
}

// begin begins to gather the answers of groups to the question n.
func (g *gathering[T]) begin(n int, groups map[int]*Manager) {
	g.n, g.asked, g.answers = n, make(map[int]bool), make(map[int][]T)
	for group := range groups {
		g.asked[group] = true
	}
}

// answered records that the Manager of a group has answered the question n, or will not. If this was
// the last Manager, answered returns the parts of all answers, and true.
func (g *gathering[T]) answered(n, group int, parts []T) (all []T, last bool) {
	if n != g.n || !g.asked[group] {
		return nil, false
	}
	delete(g.asked, group)
	g.answers[group] = parts
	if len(g.asked) > 0 {
		return nil, false
	}
	for _, k := range slices.Sorted(maps.Keys(g.answers)) {
		all = append(all, g.answers[k]...)
	}
	g.answers = nil
	return all, true
}

// NewHost returns a Host that waits for messages. The caller must call Close.
func NewHost(cfg Config) (*Host, error) {
	cfg.shared = new(shared)
	h := &Host{cfg: cfg, groups: make(map[int]*Manager)}
	_, err := h.open(0)
	return h, err
}

// open makes the Manager of a group. The caller holds mu, or no other goroutine knows h.
func (h *Host) open(group int) (*Manager, error) {
	cfg := h.cfg
	cfg.Emit = func(m proto.Message) { h.emit(group, m) }
	if group > 0 {
		cfg.In = nil // spawned ranks read no input
	}
	c, err := New(cfg)
	if err == nil {
		h.groups[group] = c
	}
	return c, err
}

// Do takes a message from gorun. It does not block. After Close it has no effect.
func (h *Host) Do(m proto.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	switch m := m.(type) {
	case proto.Prepare:
		h.prepare(m)
	case proto.FilePart:
		if c := h.groups[m.Group]; c != nil {
			c.Do(m)
		} else {
			h.cfg.Stored(m)
		}
	case proto.Start:
		h.to(m.Group, m)
		for k, gone := range h.readerGone {
			if gone && m.Group > 0 {
				h.to(m.Group, proto.OutputClosed{Stderr: k == 1})
			}
		}
	case proto.Release:
		h.to(m.Group, m)
	case proto.Watch:
		h.to(m.Group, m)
	case proto.RanksFailed:
		h.to(m.Group, m)
	case proto.Stdin:
		h.to(0, m)
	case proto.Dismiss:
		if m.Group > 0 {
			h.drop(m.Group)
		}
	case proto.Fetch:
		h.cfg.shared.files.fetch(m, h.cfg.Emit)
	case proto.AskTime:
		h.cfg.Emit(proto.Time{Index: m.Index, Now: record.Monotonic()})
	case proto.Capture:
		h.cfg.shared.files.forget(m.File)
		h.captured.begin(m.File, h.groups)
		h.toAll(m)
	case proto.Inspect:
		h.inspection.begin(m.N, h.groups)
		h.toAll(m)
	case proto.Measure:
		h.measurement.begin(m.N, h.groups)
		h.toAll(m)
	case proto.OutputClosed:
		k := 0
		if m.Stderr {
			k = 1
		}
		h.readerGone[k] = true
		h.toAll(m)
	case proto.End:
		if m.Only > 0 {
			h.to(m.Only, m)
		} else {
			h.toAll(m)
		}
	default: // Reply, Signal, Bye
		h.toAll(m)
	}
}

// to passes a message to the Manager of a group, if there is one. The caller holds mu.
func (h *Host) to(group int, m proto.Message) {
	if c := h.groups[group]; c != nil {
		c.Do(m)
	}
}

func (h *Host) toAll(m proto.Message) {
	for _, c := range h.groups {
		c.Do(m)
	}
}

// prepare handles Prepare. The caller holds mu.
func (h *Host) prepare(m proto.Prepare) {
	group := m.Card.Group
	if group > 0 && h.groups[group] == nil {
		if _, err := h.open(group); err != nil {
			h.cfg.Emit(proto.Prepared{Group: group, Failed: []proto.HostError{{Index: h.cfg.Index, Cause: err.Error()}}})
			return
		}
	}
	h.to(group, m)
}

// drop forgets the Manager of a group, and closes it in the background. The caller holds mu.
func (h *Host) drop(group int) {
	if c := h.groups[group]; c != nil {
		delete(h.groups, group)
		h.closing.Go(c.Close) // ends when the Manager has freed what it uses; Host.Close waits for it
		h.inspected(h.inspection.n, group)
		h.measured(h.measurement.n, group, nil)
		h.complete(h.captured.n, group)
	}
}

// emit takes a message from the Manager of a group. It joins the answers to Inspect, Measure and Capture,
// because gorun expects one of each host.
func (h *Host) emit(group int, m proto.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch m := m.(type) {
	case proto.Inspected:
		h.inspected(m.N, group, m)
		return
	case proto.Measured:
		h.measured(m.N, group, m.Figures)
		return
	case proto.Captured:
		h.complete(m.File, group)
		return
	case proto.State:
		if h.groups[group] == nil {
			return // after Ended of its group a State says nothing new
		}
	}
	h.cfg.Emit(m)
	if _, ok := m.(proto.Ended); ok && group > 0 {
		delete(h.inspection.answers, group) // after Ended, gorun and the agents no longer know these ranks
		delete(h.measurement.answers, group)
		h.drop(group)
	}
}

// inspected handles the answer of a Manager to Inspect. When all have answered, it emits Inspected. The
// caller holds mu.
func (h *Host) inspected(n, group int, parts ...proto.Inspected) {
	all, ok := h.inspection.answered(n, group, parts)
	if !ok {
		return
	}
	m := proto.Inspected{N: n, Index: h.cfg.Index}
	for _, p := range all {
		m.Groups, m.Last = append(m.Groups, p.Groups...), append(m.Last, p.Last...)
	}
	h.cfg.Emit(m)
}

// measured does the same for Measure.
func (h *Host) measured(n, group int, figures []record.Figures) {
	if all, ok := h.measurement.answered(n, group, figures); ok {
		h.cfg.Emit(proto.Measured{N: n, Index: h.cfg.Index, Figures: all})
	}
}

// complete does the same for Capture.
func (h *Host) complete(file, group int) {
	if _, ok := h.captured.answered(file, group, nil); ok {
		h.cfg.Emit(proto.Captured{File: file, Index: h.cfg.Index})
	}
}

// Close kills the ranks of all groups, frees what the Managers use, and waits until this is done.
func (h *Host) Close() {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	h.closed = true
	groups := h.groups
	h.groups = make(map[int]*Manager)
	h.mu.Unlock()
	for _, c := range groups {
		h.closing.Go(c.Close)
	}
	h.closing.Wait()
	h.cfg.shared.files.close()
}

// shared is what the Managers of a process share, because it concerns the process as a whole.
type shared struct {
	files rankFiles // of the ranks of all Managers, because gorun reads them when the groups have ended

	mu       sync.Mutex // guards the fields below
	running  int        // number of Managers whose ranks run
	reserved int        // number of descriptors that the ranks of all Managers need
	// others are the descendants of this process that do not belong to ranks. They are recorded
	// when the first ranks start. nil: no ranks have started.
	others *others
	kills  *oomCount // nil: no ranks have started
	forgot time.Time // when forgetKills has done its work last
}

// join records that a Manager is about to start ranks.
func (s *shared) join() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running++
	if s.kills == nil {
		s.others, s.kills = newOthers(), newOOMCount("/proc", "/sys/fs/cgroup")
	}
}

// leave records that the ranks of a Manager have ended. last means that no ranks of other Managers
// run.
func (s *shared) leave() (last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	return s.running <= 0
}

// notRanks returns others.
func (s *shared) notRanks() *others {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.others
}

// memoryReason does what oomCount.reason does.
func (s *shared) memoryReason() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kills == nil {
		return ""
	}
	return s.kills.reason()
}

// forgetKills does what oomCount.forget does, at most once in a while: each Manager calls it.
func (s *shared) forgetKills(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kills == nil || now.Sub(s.forgot) < reapEvery*3/4 {
		return
	}
	s.forgot = now
	s.kills.forget()
}

// reserve adds n to the number of descriptors that ranks need, and returns the sum.
func (s *shared) reserve(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved += n
	return s.reserved
}

// free takes back what reserve has done.
func (s *shared) free(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserved -= n
}
