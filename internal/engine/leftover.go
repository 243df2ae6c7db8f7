package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/weft-hpc/weft/internal/wire"
)

// Leftovers: what the program leaves behind
//
// At the end of the job each rank reports two things. Leftovers are requests that the program has
// not collected, by a wait or a test, and that have failed or are not complete. Unreceived messages
// are those that no receive of the program has matched. Of sends, receives and messages, the engine
// counts those of contexts with even ids, which carry the messages of the program (odd ones carry
// those of collectives). It leaves out the contexts for which HideLeftovers or KeepInFinalize was
// called.

// Leftover is a request that has failed or is not complete, and that the program has not collected
// by a wait or a test.
type Leftover struct {
	Kind    LeftoverKind
	Context uint64 // for a send or receive: id of its context
	Peer    int    // for a send or receive: the peer's rank in the context's group, or AnySource
	Tag     int    // for a send or receive: its tag; AnyTag: the receive accepts any
	Err     error  // error of the request; nil: the request is not complete
	Origin  string // text that SetOrigin has stored; empty: none

	number uint64 // number of the call of SetOrigin, in order; 0: none
}

// LeftoverKind is the kind of call that has started the request.
type LeftoverKind uint8

// The kinds of leftover.
const (
	LeftSend     LeftoverKind = iota // a standard send
	LeftSsend                        // a synchronous send
	LeftRecv                         // a receive
	LeftMrecv                        // a receive of a Message, such as Mprobe returns
	LeftTask                         // a function that Engine.Go runs
	LeftOneSided                     // an operation of one-sided communication (Port.Begin)
	LeftProgram                      // an operation of the program (Engine.Begin)
)

// Unreceived describes a message of the program that no receive has matched.
type Unreceived struct {
	Context uint64 // id of its context
	Source  int    // world rank of the sender
	Tag     int
	Bytes   int // length of its data
}

// maxUnreceived is the maximum number of messages that Engine.Unreceived describes.
// Engine.Unreceived counts the others, too.
const maxUnreceived = 16

// dropped records the messages of the program that the engine has dropped without a receive:
// because their communicator was freed, because this rank is in Finalize, or because their data is lost
// (see findUnexpected).
type dropped struct {
	n   int          // number of all such messages
	few []Unreceived // the first maxUnreceived of them
}

// origin is the text that a call of SetOrigin has stored for a request.
type origin struct {
	// Generation of the slot at the call of SetOrigin (request.gen). If the slot has another
	// generation now, another request uses it, and the text does not belong to that request.
	gen    uint32
	text   string
	number uint64 // number of the call of SetOrigin, in order
}

// HideLeftovers excludes the messages and requests of the context from Leftovers and Unreceived,
// because a library uses the context, and not the user's code.
func (c *Context) HideLeftovers() {
	c.e.mu.Lock()
	c.hidden = true
	c.e.mu.Unlock()
}

// SetOrigin stores a text about a request, such as the line of the program that has started it.
// Leftovers returns the text with the request. The engine keeps one text for each slot of its table
// of requests: that of the last call.
func (q Request) SetOrigin(text string) {
	if q.r == nil {
		return
	}
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if q.r.gen != q.gen {
		return // another request uses the slot
	}
	if n := len(e.slots); len(e.origins) < n {
		e.origins = append(e.origins, make([]origin, n-len(e.origins))...)
	}
	e.originSeq++
	e.origins[q.r.index] = origin{q.gen, text, e.originSeq}
}

// Settle waits for the requests that the program has left behind and that will complete without
// another call of this rank's program: sends to other ranks, and receives that have matched a
// message. It returns when they are complete, when ctx ends, or when the engine is closed or fails.
func (e *Engine) Settle(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for slices.ContainsFunc(e.slots, e.underWay) && e.closedErr() == nil {
		if e.awaitIn(ctx, &e.completionWaiters, awaited{}) != nil {
			return
		}
	}
}

// underWay reports whether Settle waits for a request: the program has left the request behind, and
// it can complete without another call of this rank's program. A send may wait for a receive of the
// peer.
func (e *Engine) underWay(r *request) bool {
	return e.isLeftover(r) && !r.done && (r.kind == kindSend && int(r.peer) != e.rank || r.kind == kindRecv && r.phase != phasePosted)
}

// isLeftover reports whether the program has not collected the request of a slot, and no goroutine
// waits for this request alone. It returns false if r is nil, if a wait for the request has
// returned the error of its ctx, and for requests of contexts that are revoked or whose leftovers
// do not count.
func (e *Engine) isLeftover(r *request) bool {
	if r == nil || !r.named || r.abandoned || r.reported || r.waiter != nil {
		return false
	}
	switch r.kind {
	case kindSend, kindRecv:
		return r.ctx.counts() && e.revoked[r.ctx.id/2] == nil
	case kindTask, kindOp, kindProgram:
		return true
	default:
		return false
	}
}

// counts reports whether Leftovers and Unreceived count the messages and requests of the context.
func (c *Context) counts() bool { return c.id%2 == 0 && !c.kept && !c.hidden }

// counts is Context.counts for the context with this id. If the context is not open on this rank,
// counts assumes that it is one of the program if its id is even.
func (e *Engine) counts(id uint64) bool {
	c := e.contexts[id/2] // one of the communicator's two contexts, which are kept or hidden together
	return id%2 == 0 && (c == nil || !c.kept && !c.hidden)
}

// Leftovers returns the requests that the program has not collected and that have failed or are not
// complete. Requests with an Origin are in the order of the calls of SetOrigin, after the others.
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
		case kindProgram:
			l.Kind = LeftProgram
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

// Unreceived returns the number of messages of the program that have arrived on this rank and that
// no receive has matched, and describes at most maxUnreceived of them.
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

// noteDropped records that this rank drops a message without a receive, if the message is one of
// the program.
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

// Unfinished reports whether the request did not complete, in contrast to one that has failed: it
// has no error yet, or its error says that the other side is in Finalize, that the communicator was
// freed, or that the engine was closed.
func (l *Leftover) Unfinished() bool {
	return l.Err == nil || errors.Is(l.Err, ErrFinalized) || errors.Is(l.Err, ErrClosed)
}
