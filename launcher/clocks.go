package launcher

import (
	"context"
	"sync"
	"time"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/trace"
)

// clocks compares the monotonic clocks of the hosts with gorun's, so that the times of all hosts in a trace
// fit together. It asks each host for its time again and again, one question at a time, because the answer
// that comes fastest tells the most:
//
//	clocks.begin ── AskTime ──► tree ──► host
//	                   ▲                  │
//	clocks.got ────────┴────── Time ◄─────┘
type clocks struct {
	do  func(proto.Message)  // Node.Do
	now func() time.Duration // record.Monotonic, except in tests

	mu    sync.Mutex // guards the fields below
	hosts map[int]*hostClock
	left  int           // number of hosts that have questions left
	done  chan struct{} // closed when left becomes 0; nil: left is 0
}

// hostClock is what clocks knows about a host.
type hostClock struct {
	asked     time.Duration // when the last question was sent
	questions int           // number of questions left, with the one that has no answer yet
	rounds    [][]trace.Exchange
	lost      bool
}

const (
	// The number of questions to a host, at the start of a job and at its end, is in this range. It is smaller
	// if there are many hosts: all hosts together get about allTimeQuestions.
	minTimeQuestions = 16
	maxTimeQuestions = 100
	allTimeQuestions = 10_000
	// timeLimit is how long gorun waits for the answers at the end. Only a host that is about to be lost
	// takes so long.
	timeLimit = 5 * time.Second
)

func newClocks(do func(proto.Message)) *clocks {
	return &clocks{do: do, now: record.Monotonic, hosts: make(map[int]*hostClock)}
}

// begin begins to ask these hosts, which have the given indexes. It does not block.
func (c *clocks) begin(hosts []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, i := range hosts {
		h := c.hosts[i]
		if h == nil {
			h = new(hostClock)
			c.hosts[i] = h
		}
		h.rounds = append(h.rounds[:min(len(h.rounds), 1)], nil) // only the first and the last are of use
		if h.lost || h.questions > 0 {
			continue
		}
		h.questions = min(max(allTimeQuestions/len(hosts), minTimeQuestions), maxTimeQuestions)
		if c.left++; c.left == 1 {
			c.done = make(chan struct{})
		}
		c.ask(i, h)
	}
}

// ask sends a question. The caller holds mu.
func (c *clocks) ask(i int, h *hostClock) {
	h.asked = c.now()
	c.do(proto.AskTime{Index: i})
}

// got takes a message from the tree that is about the clocks of hosts: a Time, or the loss of hosts. It
// does not block.
func (c *clocks) got(m proto.Message) {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m := m.(type) {
	case proto.Time:
		h := c.hosts[m.Index]
		if h == nil || h.questions == 0 {
			return
		}
		last := &h.rounds[len(h.rounds)-1]
		*last = append(*last, trace.Exchange{Asked: h.asked, Answered: now, Remote: m.Now})
		if h.questions--; h.questions > 0 {
			c.ask(m.Index, h)
		} else {
			c.finished()
		}
	case proto.Lost:
		for i, h := range c.hosts {
			if i < m.First || i-m.First >= m.Count {
				continue
			}
			h.lost = true
			if h.questions > 0 {
				h.questions = 0
				c.finished()
			}
		}
	}
}

// finished records that a host has no questions left. The caller holds mu.
func (c *clocks) finished() {
	if c.left--; c.left == 0 {
		close(c.done)
		c.done = nil
	}
}

// wait waits until no host has questions left, until ctx ends, or for timeLimit.
func (c *clocks) wait(ctx context.Context) {
	c.mu.Lock()
	done := c.done
	c.mu.Unlock()
	if done == nil {
		return
	}
	t := time.NewTimer(timeLimit)
	defer t.Stop()
	select {
	case <-done:
	case <-ctx.Done():
	case <-t.C:
	}
}

// clock returns the clock of a host. For gorun's own host, and for a host that has not answered, it returns
// the zero Clock.
func (c *clocks) clock(host int) trace.Clock {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.hosts[host]
	if h == nil || len(h.rounds) == 0 {
		return trace.Clock{}
	}
	clock, _ := trace.NewClock(h.rounds[0], h.rounds[len(h.rounds)-1])
	return clock
}
