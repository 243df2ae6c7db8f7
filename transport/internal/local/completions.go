// Package local implements two parts that several transports need within one rank: messages of a
// rank to itself, and completions that wait for the rank's next Read.
package local

import "github.com/weft-hpc/weft/transport"

// Completions puts a domain's completions in the slice that the engine passes to
// CompletionQueue.Read. A completion for which the slice has no room waits for a later Read. The
// zero value is empty. The domain serialises calls.
//
//	Emit ─── Out has room, and no completion waits ──► Out ──► the engine
//	  └───── otherwise ──► later ── next Begin ─────────┘
type Completions struct {
	// Out is the engine's slice during a Read: its length is the number of completions so far,
	// and its capacity is the length of the engine's slice. Outside of a Read it is nil. A domain
	// that never passes messages to Later appends them to Out directly if it is not Full; another
	// domain calls Message. So a message may overtake completions that wait, but no message. A
	// domain delivers no message from a peer after it has emitted the peer's end.
	Out      []transport.Completion
	later    []transport.Completion // later[at:] are the completions that wait
	at       int
	messages int // number of messages (RecvDone) in later[at:]
}

// Begin begins a Read into out, and moves completions that wait to out. If no message waits, these
// completions fill at most half of out, rounded up. The other half is for messages that arrive in
// this Read: a caller that posts another operation whenever one completes could otherwise fill
// every Read with completions. If messages wait, the completions may fill all of out, because a
// message that arrives in this Read must not overtake those that wait.
//
// Hot path: no allocation.
func (c *Completions) Begin(out []transport.Completion) {
	c.Out = out[:0:len(out)]
	if len(c.later) == 0 {
		return
	}
	n := (len(out) + 1) / 2
	if c.messages > 0 {
		n = len(out)
	}
	c.drain(n)
}

// End ends the Read and returns the number of completions that the Read has put in the engine's
// slice.
func (c *Completions) End() int {
	n := len(c.Out)
	c.Out = nil
	return n
}

// Room returns how many more completions fit into Out.
func (c *Completions) Room() int { return cap(c.Out) - len(c.Out) }

// Full reports whether Out has no room. Outside of a Read, Full returns true.
func (c *Completions) Full() bool { return len(c.Out) == cap(c.Out) }

// Pending reports whether completions wait for a later Read.
func (c *Completions) Pending() bool { return len(c.later) > 0 }

// Emit appends x to Out and returns true. If Out has no room or other completions wait, x waits for
// a later Read, and Emit returns false. x must not be a message, because the bytes of a message may
// not stay valid until that Read.
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

// Message appends the message x to Out and returns true. If Out has no room or earlier messages
// wait, it returns false, and the caller passes x, with a copy of the message's bytes, to Later.
//
// Hot path: no allocation.
func (c *Completions) Message(x transport.Completion) bool {
	if c.Full() || c.messages > 0 {
		return false
	}
	c.Out = append(c.Out, x)
	return true
}

// Later makes x wait for a later Read. If x is a message, its bytes must stay valid until the Read
// that follows the one which returns x.
func (c *Completions) Later(x transport.Completion) {
	if x.Kind == transport.RecvDone {
		c.messages++
	}
	c.later = append(c.later, x)
}

// drain moves up to n completions that wait to Out, the oldest first.
func (c *Completions) drain(n int) {
	for ; n > 0 && c.at < len(c.later); n-- {
		if c.later[c.at].Kind == transport.RecvDone {
			c.messages--
		}
		c.Out = append(c.Out, c.later[c.at])
		c.later[c.at] = transport.Completion{}
		c.at++
	}
	// Keep later from growing with the completions that have been returned.
	if c.at >= len(c.later)-c.at {
		n := copy(c.later, c.later[c.at:])
		clear(c.later[n:])
		c.later, c.at = c.later[:n], 0
	}
}
