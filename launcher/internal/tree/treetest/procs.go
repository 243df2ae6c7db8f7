package treetest

import (
	"maps"
	"slices"
	"sync"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// Procs answers like a process manager, but starts no processes. Its imaginary ranks enter Fences
// fences one after the other, and end when End comes.
type Procs struct {
	Index  int
	Emit   func(proto.Message)
	Fences int
	Puts   func(fence int) map[string]string // what the host puts before a fence; nil: nothing
	Need   []string                          // Prepared.Need: hashes of the files that the host lacks
	Silent bool                              // Procs answers no message
	// Stored gets each FilePart once; may be nil.
	Stored func(proto.FilePart)
	// See gets each message before Procs answers; may be nil. It may emit.
	See func(m proto.Message)

	mu    sync.Mutex // guards the following fields
	got   []proto.Message
	plans map[int]proto.Plan // by group
	input []byte
	ended map[int]bool // by group
}

// Do records a message and answers it.
func (c *Procs) Do(m proto.Message) {
	c.mu.Lock()
	c.got = append(c.got, m)
	c.mu.Unlock()
	if c.See != nil {
		c.See(m)
	}
	if c.Silent {
		return
	}
	switch m := m.(type) {
	case proto.Prepare:
		c.mu.Lock()
		if c.plans == nil {
			c.plans, c.ended = make(map[int]proto.Plan), make(map[int]bool)
		}
		if len(m.Plans) == 1 {
			c.plans[m.Card.Group] = m.Plans[0]
		}
		c.mu.Unlock()
		c.Emit(proto.Prepared{Group: m.Card.Group, Need: slices.Clone(c.Need)})
	case proto.FilePart:
		if c.Stored != nil {
			c.Stored(m)
		}
		if m.Last && len(c.Need) > 0 {
			c.Emit(proto.Staged{Group: m.Group})
		}
	case proto.Start:
		s := proto.Started{Group: m.Group}
		for _, r := range c.RanksOf(m.Group) {
			s.Ranks = append(s.Ranks, proto.StartedRank{Rank: r, PID: r + 1})
		}
		c.Emit(s)
		if len(s.Ranks) == 0 {
			c.EndGroup(m.Group)
		}
		c.fence(m.Group, 1)
	case proto.Release:
		c.fence(m.Group, m.N+1)
	case proto.Stdin:
		c.mu.Lock()
		c.input = append(c.input, m.Data...)
		c.mu.Unlock()
		if len(m.Data) > 0 {
			c.Emit(proto.StdinCredit{Bytes: len(m.Data)})
		}
	case proto.Dismiss:
		c.mu.Lock()
		delete(c.plans, m.Group)
		c.mu.Unlock()
	case proto.End:
		if m.Only > 0 {
			c.EndGroup(m.Only)
		} else {
			c.End()
		}
	}
}

func (c *Procs) fence(group, n int) {
	if n > c.Fences || len(c.RanksOf(group)) == 0 {
		return
	}
	var puts map[string]string
	if c.Puts != nil {
		puts = c.Puts(n)
	}
	c.Emit(proto.Fence{Group: group, N: n, Puts: puts})
}

// End ends the ranks of all groups and emits an Ended for each. It is idempotent.
func (c *Procs) End() {
	c.mu.Lock()
	groups := slices.Sorted(maps.Keys(c.plans))
	c.mu.Unlock()
	for _, g := range groups {
		c.EndGroup(g)
	}
}

// EndGroup ends the ranks of a group and emits Ended. It is idempotent.
func (c *Procs) EndGroup(group int) {
	c.mu.Lock()
	_, known := c.plans[group]
	was := c.ended[group] || !known
	if known {
		c.ended[group] = true
	}
	c.mu.Unlock()
	if was {
		return
	}
	m := proto.Ended{Group: group, Exits: []proto.Exit{}}
	for _, r := range c.RanksOf(group) {
		m.Exits = append(m.Exits, proto.Exit{Rank: r})
	}
	c.Emit(m)
}

// Ranks returns the ranks of group 0 on this host.
func (c *Procs) Ranks() []int { return c.RanksOf(0) }

// RanksOf returns the numbers of the ranks of a group on this host.
func (c *Procs) RanksOf(group int) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []int
	for _, r := range c.plans[group].Ranks {
		list = append(list, r.Rank)
	}
	return list
}

// Got returns all messages so far.
func (c *Procs) Got() []proto.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.got)
}

// Input returns the bytes of all Stdin messages.
func (c *Procs) Input() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.input)
}
