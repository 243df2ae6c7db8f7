package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/weft-hpc/weft/internal/wire"
)

// Leftovers: what a program leaves behind
//
// At the end of the job a rank reports the requests that the program did not wait for and that
// failed or did not complete, and the messages that the program did not receive. The engine
// counts those of the contexts with even ids, which carry the messages of the program, except
// contexts for which HideLeftovers or KeepInFinalize was called.

// Leftover is a request that the program has neither waited for nor tested to its end.
type Leftover struct {
	Kind    LeftoverKind
	Context uint64 // of a send or receive: id of its context
	Peer    int    // of a send or receive: rank in the context's group, or AnySource
	Tag     int    // of a send or receive
	Err     error  // nil: the request is not complete
	Origin  string // see SetOrigin

	number uint64 // order of the SetOrigin calls
}

// LeftoverKind says what started the request.
type LeftoverKind uint8

// The kinds.
const (
	LeftSend LeftoverKind = iota
	LeftSsend
	LeftRecv
	LeftMrecv    // a receive of a Message
	LeftTask     // a function of Engine.Go
	LeftOneSided // an operation of a Port
)

// Unreceived is a message that no receive has matched.
type Unreceived struct {
	Context uint64
	Source  int // world rank
	Tag     int
	Bytes   int
}

// maxUnreceived is the maximum number of messages that Unreceived describes. It counts all of
// them.
const maxUnreceived = 16

// dropped records the messages of the program that the engine has dropped because the
// communicator was freed, or because this rank is in Finalize.
type dropped struct {
	n   int
	few []Unreceived // the first maxUnreceived
}

// origin is the text of SetOrigin for one use of a slot.
type origin struct {
	gen    uint32
	text   string
	number uint64
}

// HideLeftovers excludes the context's messages and requests from Leftovers, because a
// library uses them.
func (c *Context) HideLeftovers() {
	c.e.mu.Lock()
	c.hidden = true
	c.e.mu.Unlock()
}

// SetOrigin stores a text about a request, such as the line that has started it, for
// Leftovers. The engine keeps one text per slot of its table.
func (q Request) SetOrigin(text string) {
	if q.r == nil {
		return
	}
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.slots); len(e.origins) < n {
		e.origins = append(e.origins, make([]origin, n-len(e.origins))...)
	}
	e.originSeq++
	e.origins[q.r.index] = origin{q.gen, text, e.originSeq}
}

// Settle waits until the sends that wait for an answer, and the receives that have matched
// a message, are complete, or ctx ends.
func (e *Engine) Settle(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for slices.ContainsFunc(e.slots, e.underWay) && e.closedErr() == nil {
		if e.awaitIn(ctx, &e.completionWaiters, awaited{}) != nil {
			return
		}
	}
}

// underWay reports whether a request of the program will complete without further calls
// of the program, unless the peer fails.
func (e *Engine) underWay(r *request) bool {
	return e.isLeftover(r) && !r.done && (r.kind == kindSend && int(r.peer) != e.rank || r.kind == kindRecv && r.phase != phasePosted)
}

// isLeftover reports whether the program has not collected the request of a slot, and no
// goroutine waits for it. It returns false for a nil slot.
func (e *Engine) isLeftover(r *request) bool {
	if r == nil || !r.named || r.abandoned || r.reported || r.waiter != nil {
		return false
	}
	switch r.kind {
	case kindSend, kindRecv:
		return r.ctx.counts() && e.revoked[r.ctx.id/2] == nil
	case kindTask, kindOp:
		return true
	default:
		return false
	}
}

// counts reports whether the context carries messages of the program.
func (c *Context) counts() bool { return c.id%2 == 0 && !c.kept && !c.hidden }

// counts is Context.counts for the context of a message, which may not be open.
func (e *Engine) counts(id uint64) bool {
	c := e.contexts[id/2] // one of the communicator's two contexts, which are kept or hidden together
	return id%2 == 0 && (c == nil || !c.kept && !c.hidden)
}

// Leftovers returns the requests that the program has left behind and that have failed or are not
// complete. Requests with an Origin are in the order in which they were started.
func (e *Engine) Leftovers() []Leftover {
	e.mu.Lock()
	defer e.mu.Unlock()
	var left []Leftover
	for _, r := range e.slots {
		if !e.isLeftover(r) || r.done && r.err == nil {
			continue
		}
		l := Leftover{Kind: LeftOneSided, Err: r.err}
		switch r.kind {
		case kindTask:
			l.Kind = LeftTask
		case kindSend, kindRecv:
			l.Context, l.Tag, l.Peer = r.ctx.id, int(r.tag), AnySource
			if r.peer != wild {
				l.Peer = r.ctx.rank(r.peer)
			}
			switch {
			case r.mode == modeProbed:
				l.Kind, l.Tag = LeftMrecv, r.status.Tag
			case r.kind == kindRecv:
				l.Kind = LeftRecv
			case r.mode == Synchronous:
				l.Kind = LeftSsend
			default:
				l.Kind = LeftSend
			}
		default:
		}
		if i := int(r.index); i < len(e.origins) && e.origins[i].gen == r.gen {
			l.Origin, l.number = e.origins[i].text, e.origins[i].number
		}
		left = append(left, l)
	}
	slices.SortStableFunc(left, func(a, b Leftover) int { return cmp.Compare(a.number, b.number) })
	return left
}

// Unreceived returns the number of messages of the program that this rank has not
// received, and describes the first of them.
func (e *Engine) Unreceived() (int, []Unreceived) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n, few := e.dropped.n, slices.Clone(e.dropped.few)
	var all []*unexpected
	e.unexpected.each(func(x *node) {
		if x.key.class() == 0 && e.counts(x.key.context) {
			all = append(all, x.msg)
		}
	})
	slices.SortFunc(all, func(a, b *unexpected) int { return cmp.Compare(a.nodes[0].seq, b.nodes[0].seq) })
	for _, u := range all[:min(len(all), maxUnreceived-len(few))] {
		few = append(few, unreceived(u.source, &u.header))
	}
	return n + len(all), few
}

// noteDropped records a message of the program that this rank drops.
func (e *Engine) noteDropped(source int32, m *wire.Message) {
	if !e.counts(m.Context) {
		return
	}
	d := &e.dropped
	if d.n++; len(d.few) < maxUnreceived {
		d.few = append(d.few, unreceived(source, m))
	}
}

func unreceived(source int32, m *wire.Message) Unreceived {
	return Unreceived{Context: m.Context, Source: int(source), Tag: int(m.Tag), Bytes: m.Length}
}

// Unfinished reports whether the request did not complete: it has no error yet, the other side is
// in Finalize, or the communicator was freed.
func (l *Leftover) Unfinished() bool {
	return l.Err == nil || errors.Is(l.Err, ErrFinalized) || errors.Is(l.Err, ErrClosed)
}
