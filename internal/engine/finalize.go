package engine

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
)

// Ranks in Finalize
//
//	rank 1: Leave ── MsgLeave, behind all its messages ──► rank 0: what waits for rank 1 fails
//	                                                                with ErrFinalized
//	rank 0 waits for rank 1; no messages so far  ── MsgCredit of 0 bytes ──► rank 1
//	        ◄── MsgLeave, if rank 1 is in Finalize ─────────────────────────────┘
//
// A rank that has called Finalize sends and receives no more messages, except in the contexts in
// which the ranks synchronize at the end of the job (KeepInFinalize). So these calls fail at
// once: a receive or blocking probe that names this rank, a collective that needs it, and a send
// that waits for its receive. A nonblocking probe finds nothing.
//
// MsgLeave travels in the queue of the program's messages, so all messages that the rank has sent
// earlier arrive before it. The rank sends MsgLeave to the peers with which it has exchanged
// messages. Other peers seldom wait for this rank; a peer that does sends a message by
// QueryPeers.
//
// A sender does not check whether the receiver is in Finalize. Instead, the rank in Finalize
// refuses each message whose sender waits for the receive and which no posted receive matches.

// finalizedError is the error of an operation that needs a rank that is in Finalize.
type finalizedError struct{ rank int32 } // world rank

// Error returns a text that names the rank.
func (f finalizedError) Error() string {
	return fmt.Sprintf("rank %d of the world has called Finalize, or returned from Main: it takes part in no further communication", f.rank)
}

// Unwrap returns ErrFinalized.
func (finalizedError) Unwrap() error { return ErrFinalized }

// FinalizedError returns the error of an operation that needs a world rank which is in Finalize.
func FinalizedError(world int) error { return finalizedError{int32(world)} }

// KeepInFinalize marks the context as one that ranks use while they are in Finalize.
func (c *Context) KeepInFinalize() { c.kept = true }

// Leave reports to the other ranks that this rank is in Finalize. It first waits until the
// functions that Engine.Go runs have ended. If ctx ends before that, Leave returns ctx's error,
// but still informs the other ranks. c is a context of the whole world.
func (c *Context) Leave(ctx context.Context) error {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	var err error
	for e.tasks > 0 && err == nil && e.closedErr() == nil {
		err = e.awaitIn(ctx, &e.completionWaiters, awaited{passive: true})
	}
	if e.closedErr() != nil || e.leaving != nil {
		return err
	}
	e.leaving = c
	var late []*unexpected
	e.unexpected.each(func(n *node) {
		if n.key.class() == 0 {
			late = append(late, n.msg)
		}
	})
	for _, u := range late {
		e.refuseInFinalize(u)
	}
	for i := range e.peers {
		if p := &e.peers[i]; p.sendSeq != 0 || p.recvSeq != 0 {
			e.sendLeave(int32(i))
		}
	}
	e.poll()
	return err
}

// sendLeave sends MsgLeave to a peer, at most once.
func (e *Engine) sendLeave(peer int32) {
	p := &e.peers[peer]
	if p.leaveSent || p.err != nil || int(peer) == e.rank {
		return
	}
	p.leaveSent = true
	r := e.take(kindSend)
	r.abandoned = true
	r.address(e.leaving, peer, nil, &Env{Mode: modeLeave})
	r.phase = phaseQueued
	e.submit(r)
	if r.abandoned && !r.done {
		e.addBackground(r)
	}
}

// refuseInFinalize drops an unexpected message that this rank, in Finalize, will not receive,
// unless the transfer of an earlier receive still uses the message.
func (e *Engine) refuseInFinalize(u *unexpected) {
	if why := e.finalizeRefusal(&u.header); why != nil && u.held == nil {
		e.unexpected.take(u)
		e.noteDropped(u.source, &u.header)
		e.refuse(u.source, &u.header, u.self, why)
		e.discard(u)
	}
}

// finalizeRefusal returns an error if this rank, which is in Finalize, will not receive a message
// whose sender waits for the receive. It returns nil for other messages: they stay in the queue,
// and Unreceived counts them.
func (e *Engine) finalizeRefusal(m *wire.Message) error {
	if c := e.contexts[m.Context/2]; c != nil && c.kept || m.Kind != wire.MsgRTS && m.Kind != wire.MsgEagerSync {
		return nil
	}
	return finalizedError{int32(e.rank)}
}

// receiveLeave handles a MsgLeave from peer.
func (e *Engine) receiveLeave(peer int32) {
	p := &e.peers[peer]
	if p.inFinalize {
		return
	}
	p.inFinalize = true
	e.finalizing++
	e.posted.each(func(r *request) {
		if r.peer == peer && !r.ctx.kept {
			e.cancel(r, finalizedError{peer})
		}
	})
	e.wakeAll(e.probeWaiters)
	e.wakeAll(e.wordWaiters)
}

// finalized returns an error if source is in Finalize, so that no message from it can arrive any
// more. For AnySource it returns nil: another goroutine of this rank may still send to this rank.
func (c *Context) finalized(source int32) error {
	if c.e.finalizing == 0 || c.kept || !c.e.peers[source].inFinalize {
		return nil
	}
	return finalizedError{source}
}
