// Package local implements what all transports do within one rank: messages of a rank to
// itself, and completions that wait for its next Read.
package local

import "github.com/weft-hpc/weft/transport"

// Completions collects a domain's completions for the slices that the caller passes to Read.
// Completions for which a slice has no room wait for a later Read. The zero value is empty.
// The caller serialises calls.
//
//	Emit ─── room, and none waits ──► Out ──► the caller
//	  └───── otherwise ──► later ── Begin ─────┘
type Completions struct {
	// Out is the caller's slice during a Read, filled up to its length and with
	// room up to its capacity. Outside of a Read it is nil. The domain appends messages to
	// Out directly if it is not Full. This keeps the order: while Out has room, the only
	// completions that wait are those of Later since Begin.
	Out   []transport.Completion
	later []transport.Completion // the completions that wait, from index at
	at    int
}

// Begin begins a Read into out. It first moves completions that wait to out, as far as out has
// room.
//
// Hot path: no allocation.
func (c *Completions) Begin(out []transport.Completion) {
	c.Out = out[:0:len(out)]
	if len(c.later) > 0 {
		c.drain()
	}
}

// End ends the Read and returns the number of its completions.
func (c *Completions) End() int {
	n := len(c.Out)
	c.Out = nil
	return n
}

// Room returns how many more completions fit into Out.
func (c *Completions) Room() int { return cap(c.Out) - len(c.Out) }

// Full reports whether Out has no room. Outside of a Read it is always full.
func (c *Completions) Full() bool { return len(c.Out) == cap(c.Out) }

// Pending reports whether completions wait for a later Read.
func (c *Completions) Pending() bool { return len(c.later) > 0 }

// Emit reports x in this Read and returns true; if there is no room, x waits for a later Read
// and Emit returns false. x must not be a message, whose bytes are valid only in this Read.
//
// Hot path: no allocation while there is room.
func (c *Completions) Emit(x transport.Completion) bool {
	if c.Full() || c.Pending() {
		c.Later(x)
		return false
	}
	c.Out = append(c.Out, x)
	return true
}

// Later makes x wait for the next Read. So x does not take the place of a message in this Read,
// whose bytes are valid only now.
func (c *Completions) Later(x transport.Completion) { c.later = append(c.later, x) }

// drain moves completions that wait to Out, the oldest first.
func (c *Completions) drain() {
	for !c.Full() && c.at < len(c.later) {
		c.Out = append(c.Out, c.later[c.at])
		c.later[c.at] = transport.Completion{}
		c.at++
	}
	if c.at == len(c.later) {
		c.later, c.at = c.later[:0], 0
	}
}
