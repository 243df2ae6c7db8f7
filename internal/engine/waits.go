package engine

import (
	"fmt"
)

// WaitKind is the kind of event that a goroutine blocked in the engine waits for.
type WaitKind uint8

// The kinds.
const (
	WaitOther  WaitKind = iota // any of several requests, or the end of buffered sends
	WaitSend                   // the completion of a send
	WaitRecv                   // the completion of a receive
	WaitProbe                  // a message for a blocking probe
	WaitWord                   // a word in shared memory that another rank stores; see Context.Await
	WaitTask                   // the end of a function of Engine.Go
	WaitMemory                 // the completion of a one-sided operation
)

// Wait describes a goroutine that is blocked in the engine.
type Wait struct {
	// Waiter is the address of the goroutine's waiter. In the output of runtime.Stack it
	// is among the arguments of the engine's functions on the goroutine's stack.
	Waiter  string
	Kind    WaitKind
	ID      string // unique in the engine; as long as it stays the same, the goroutine has not continued
	Moves   bool   // the event has happened, or will happen without a further call of the peer's program
	Bounded bool   // the call's context.Context may end the wait

	// Set for all kinds except WaitOther and WaitTask.
	Context uint64 // id of the context
	Peer    int    // rank of the context's group; AnySource
	World   int    // the peer's world rank; AnySource
	Tag     int    // of WaitSend, WaitRecv and WaitProbe; AnyTag
}

// Link counts the messages between this rank and a peer, those of the engine itself
// included. The counters wrap around.
type Link struct {
	Peer           int // world rank
	Sent, Received uint32
}

// Snapshot describes the state of an engine at one moment.
type Snapshot struct {
	Waits []Wait
	Moves bool   // a transfer is under way that needs no further call of this rank's program
	Links []Link // to the peers with which there were messages, by rank
}

// Snapshot returns the events that goroutines wait for and the transfers under way, for reports
// of what the rank does. Blocking calls do no extra work for it.
func (e *Engine) Snapshot() (s Snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.peers {
		if p := &e.peers[i]; p.sendSeq != 0 || p.recvSeq != 0 {
			s.Links = append(s.Links, Link{i, p.sendSeq, p.recvSeq})
		}
	}
	for _, r := range e.slots {
		s.Moves = s.Moves || r != nil && r.moves()
	}
	s.Waits = e.waits()
	return s
}

// moves reports whether a request continues without a further call of the program on this rank or
// on the peer: its data is being transferred, or it is queued until the endpoint has room.
func (r *request) moves() bool {
	switch {
	case r.done:
		return false
	case r.kind == kindSend:
		return r.inflight || r.phase == phaseQueued || r.phase == phaseStreaming
	case r.kind == kindRecv:
		return r.phase != phasePosted
	}
	return r.kind == kindControl || r.kind == kindTransfer
}

// waits returns the goroutines that are blocked in the engine. The caller holds the lock.
func (e *Engine) waits() []Wait {
	var list []Wait
	add := func(w *waiter, kind WaitKind, c *Context, world, tag int32) {
		x := Wait{
			Waiter: fmt.Sprintf("%p", w), Kind: kind, ID: fmt.Sprintf("%p.%d", w, w.uses), Bounded: w.bounded,
			Peer: AnySource, World: int(world), Tag: int(tag),
		}
		if c != nil {
			x.Context = c.id
			if world != wild {
				x.Peer = c.rank(world)
			}
		}
		list = append(list, x)
	}
	for _, r := range e.slots {
		if r == nil || r.waiter == nil || r.done {
			continue
		}
		switch r.kind {
		case kindSend:
			add(r.waiter, WaitSend, r.ctx, r.peer, r.tag)
			list[len(list)-1].Moves = r.moves()
		case kindRecv:
			add(r.waiter, WaitRecv, r.ctx, r.peer, r.tag)
			list[len(list)-1].Moves = r.moves()
		case kindTask:
			add(r.waiter, WaitTask, nil, wild, wild)
		case kindOp:
			add(r.waiter, WaitOther, nil, wild, wild)
		case kindFree, kindControl, kindTransfer: // no goroutine waits for these
		}
	}
	for _, w := range e.probeWaiters {
		if !w.ready {
			add(w, WaitProbe, w.from, w.key.source, w.key.tag)
		}
	}
	for _, w := range e.wordWaiters {
		if !w.ready {
			add(w, WaitWord, w.from, w.key.source, wild)
			list[len(list)-1].Moves = reached(w.word, w.least)
		}
	}
	for _, w := range e.completionWaiters {
		kind := WaitOther
		if w.passive {
			kind = WaitTask
		}
		add(w, kind, nil, wild, wild)
	}
	for _, p := range e.ports {
		for _, w := range p.waiters {
			add(w, WaitMemory, p.c, wild, wild)
		}
	}
	return list
}
