package treetest

import (
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
	plan  proto.Plan
	input []byte
	ended bool
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
		if len(m.Plans) == 1 {
			c.plan = m.Plans[0]
		}
		c.mu.Unlock()
		c.Emit(proto.Prepared{Need: slices.Clone(c.Need)})
	case proto.FilePart:
		if c.Stored != nil {
			c.Stored(m)
		}
		if m.Last && len(c.Need) > 0 {
			c.Emit(proto.Staged{})
		}
	case proto.Start:
		s := proto.Started{}
		for _, r := range c.Ranks() {
			s.Ranks = append(s.Ranks, proto.StartedRank{Rank: r, PID: r + 1})
		}
		c.Emit(s)
		if len(s.Ranks) == 0 {
			c.End()
		}
		c.fence(1)
	case proto.Release:
		c.fence(m.N + 1)
	case proto.Stdin:
		c.mu.Lock()
		c.input = append(c.input, m.Data...)
		c.mu.Unlock()
		if len(m.Data) > 0 {
			c.Emit(proto.StdinCredit{Bytes: len(m.Data)})
		}
	case proto.End:
		c.End()
	}
}

func (c *Procs) fence(n int) {
	if n > c.Fences || len(c.Ranks()) == 0 {
		return
	}
	var puts map[string]string
	if c.Puts != nil {
		puts = c.Puts(n)
	}
	c.Emit(proto.Fence{N: n, Puts: puts})
}

// End ends the ranks and emits Ended. It is idempotent.
func (c *Procs) End() {
	c.mu.Lock()
	was := c.ended
	c.ended = true
	c.mu.Unlock()
	if was {
		return
	}
	m := proto.Ended{Exits: []proto.Exit{}}
	for _, r := range c.Ranks() {
		m.Exits = append(m.Exits, proto.Exit{Rank: r})
	}
	c.Emit(m)
}

// Ranks returns the ranks of the process manager's plan.
func (c *Procs) Ranks() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []int
	for _, r := range c.plan.Ranks {
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
