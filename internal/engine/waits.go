package engine

import (
	"fmt"
)

// WaitKind is the kind of event that a goroutine which is blocked in the engine waits for.
type WaitKind uint8

// The kinds of event.
const (
	// None of the following: for example the end of any of several requests, or of buffered sends.
	WaitOther WaitKind = iota
	WaitSend           // the completion of a send
	WaitRecv           // the completion of a receive
	WaitProbe          // a message for a blocking probe
	WaitWord           // a word in shared memory, which another rank stores; see Context.Await
	WaitTask           // the end of a function of Engine.Go
	// An event of one-sided communication (Port.Await), such as the completion of an operation.
	WaitMemory
)

// Wait describes the wait of one goroutine that is blocked in the engine.
type Wait struct {
	// Waiter is the address of the goroutine's waiter, in hexadecimal. The same address is among
	// the arguments of the engine's functions in the goroutine's stack that runtime.Stack prints,
	// so a reader of both can connect them.
	Waiter string
	Kind   WaitKind
	// Text that differs for each wait in this engine; as long as the text stays the same, the
	// goroutine is in the same wait.
	ID string
	// For WaitSend, WaitRecv and WaitWord: the event has happened, or data is being transferred that
	// needs no further call of the peer's program.
	Moves   bool
	Bounded bool // the context.Context of the call may end the wait

	// What the goroutine waits for. Not set for WaitOther and WaitTask.
	Context uint64 // id of the communication context
	Peer    int    // the other side's rank in the context's group, or AnySource
	World   int    // world rank of that rank, or AnySource
	Tag     int    // for WaitSend, WaitRecv and WaitProbe: the tag, or AnyTag
}

// Link counts the messages between this rank and a peer, including those of the engine itself. The
// counters wrap around.
type Link struct {
	Peer           int    // world rank of the peer
	Sent, Received uint32 // number of messages from this rank to the peer, and from the peer to this rank
}

// Snapshot is the state of an engine at one moment.
type Snapshot struct {
	Waits []Wait // the goroutines that are blocked in the engine
	Moves bool   // a transfer is under way that needs no further call of this rank's program or of the peer's
	Links []Link // the peers with which this rank has exchanged messages, by rank
}

// Snapshot returns what goroutines wait for, and whether transfers are under way, for reports of
// what the rank does. Blocking calls do no extra work for it.
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
// on the peer. That is so if its data is being transferred, or if it waits for room in the
// endpoint.
func (r *request) moves() bool {
	switch {
	case r.done:
		return false
	case r.kind == kindSend:
		return r.inflight || r.phase == phaseQueued || r.phase == phaseStreaming
	case r.kind == kindRecv:
		if r.phase == phaseReceiving && r.parts != nil {
			return r.offset > 0 // before that, the peer's program has not made all partitions ready
		}
		return r.phase != phasePosted && r.phase != phasePulling
	}
	return r.kind == kindControl || r.kind == kindTransfer
}

// waits describes the wait of each goroutine that is blocked in the engine. The caller holds the
// lock.
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
		case kindOp, kindProgram:
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
