// Package local holds what transports do alike within one rank: its messages to
// itself, and the completions that await its next Read.
package local

import "github.com/weft-hpc/weft/transport"

// Completions is a domain's way into the slices that its user gives to Read.
// What finds no room there waits for a later Read. The zero value is empty; the
// domain's user serialises calls.
//
//	Emit ─── room, and none waits ──► Out ──► the user
//	  └───── otherwise ──► later ── Begin ─────┘
type Completions struct {
	// Out is the user's slice during a Read, filled up to its length and with
	// room up to its capacity; nil outside of a Read. Messages are appended to
	// it, where it is not Full: then none wait but by Later, since Begin.
	Out   []transport.Completion
	later []transport.Completion // what found no room, from at
	at    int
}

// Begin begins a Read into out with what waits, as far as there is room for it.
//
// Hot path: no allocation.
func (c *Completions) Begin(out []transport.Completion) {
	c.Out = out[:0:len(out)]
	if len(c.later) > 0 {
		c.drain()
	}
}

// End ends the Read and says how many completions it has given.
func (c *Completions) End() int {
	n := len(c.Out)
	c.Out = nil
	return n
}

// Room is how many completions Out still takes.
func (c *Completions) Room() int { return cap(c.Out) - len(c.Out) }

// Full says whether Out takes no more, as always outside of a Read.
func (c *Completions) Full() bool { return len(c.Out) == cap(c.Out) }

// Pending says whether completions wait for a Read.
func (c *Completions) Pending() bool { return len(c.later) > 0 }

// Emit reports x in this Read and answers true, or has it wait for a later one.
// x must not hold a message, which would not last until then.
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

// Later has x wait for the next Read: it must not take the place of a message,
// whose bytes are there only in this one.
func (c *Completions) Later(x transport.Completion) { c.later = append(c.later, x) }

// drain gives the user what waits, the oldest first.
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
