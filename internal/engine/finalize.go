package engine

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
)

// Ranks in Finalize
//
//	rank 1: Leave ── MsgLeave, behind its other messages ─► rank 0: what waits for rank 1 fails
//	                                                                with ErrFinalized
//	rank 0 waits for rank 1; no messages so far  ── MsgCredit of 0 bytes ──► rank 1
//	        ◄── MsgLeave, if rank 1 is in Finalize ─────────────────────────────┘
//
// A rank in Finalize sends and receives no more messages, except in contexts that KeepInFinalize
// has marked, such as those in which the ranks synchronize at the end of the job. So calls of other
// ranks that can only end with a message from it fail at once with ErrFinalized. Such calls are,
// for example, a receive or blocking probe that names the rank, a wait for a word that the rank
// stores (Context.Await), and a send that waits for its receive. A nonblocking probe finds nothing.
//
// MsgLeave travels in the same queue as the program's messages, so the headers of all messages that
// the rank has sent earlier arrive before it. The data of a rendezvous may follow it. The rank sends MsgLeave to the peers with which it has exchanged
// messages. Other peers seldom wait for this rank. If one does, its QueryPeers sends this rank a
// MsgCredit of 0 bytes, and this rank answers with MsgLeave.
//
// A sender does not check whether the receiver is in Finalize. Instead, a rank in Finalize refuses
// each message that no posted receive matches and whose sender waits for the receive.

// finalizedError is the error of an operation that needs a rank that is in Finalize.
type finalizedError struct{ rank int32 } // the world rank that is in Finalize

// Error returns a text that names the rank and says that it has called Finalize.
func (f finalizedError) Error() string {
	return fmt.Sprintf("rank %d of the world has called Finalize, or returned from Main: it takes part in no further communication", f.rank)
}

// Unwrap returns ErrFinalized.
func (finalizedError) Unwrap() error { return ErrFinalized }

// FinalizedError returns the error of an operation that needs a rank which is in Finalize. world is
// the world rank of that rank.
func FinalizedError(world int) error { return finalizedError{int32(world)} }

// KeepInFinalize marks the context as one in which ranks communicate also while they are in
// Finalize. It must be called before any other use of the context.
func (c *Context) KeepInFinalize() { c.kept = true }

// Leave sends MsgLeave, which says that this rank is in Finalize, to the peers with which this rank
// has exchanged messages. Later the engine sends it to other peers that need it, for example if
// their QueryPeers asks. The group of c is all ranks of the job. Before that, Leave waits until all
// functions of Engine.Go have ended. If ctx ends first, Leave returns ctx's error, but still
// informs the peers. Leave also refuses the unexpected messages whose senders wait for the receive.
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
	for _, r := range e.slots {
		if r != nil && r.kind == kindSend {
			e.endPartitions(r)
		}
	}
	for i := range e.peers {
		if p := &e.peers[i]; p.sendSeq != 0 || p.recvSeq != 0 {
			e.sendLeave(int32(i))
		}
	}
	e.poll()
	return err
}

// sendLeave sends MsgLeave to a peer, unless this rank has done so before or the peer has ended.
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

// refuseInFinalize drops an unexpected message if its sender waits for the receive (see
// finalizeRefusal), because this rank is in Finalize and will not receive it. It drops no message
// whose data an earlier receive still transfers, or has failed to (u.held).
func (e *Engine) refuseInFinalize(u *unexpected) {
	if why := e.finalizeRefusal(&u.header); why != nil && u.held == nil {
		e.unexpected.take(u)
		e.noteDropped(u.source, &u.header)
		e.refuse(u.source, &u.header, u.self, why)
		e.discard(u)
	}
}

// finalizeRefusal returns the error for the sender of a message, if the sender waits for the
// receive. This rank is in Finalize and will not receive the message. For another message, and for
// one of a context that KeepInFinalize has marked, finalizeRefusal returns nil: such a message
// stays in the unexpected queue, and Unreceived counts it if it is the program's.
func (e *Engine) finalizeRefusal(m *wire.Message) error {
	if c := e.contexts[m.Context/2]; c != nil && c.kept || m.Kind != wire.MsgRTS && m.Kind != wire.MsgEagerSync {
		return nil
	}
	return finalizedError{int32(e.rank)}
}

// receiveLeave handles a MsgLeave: peer is in Finalize. Posted receives that name the peer end with
// ErrFinalized, except in contexts that KeepInFinalize has marked. Goroutines in Probe, Attend and
// Await check whether they can still wait.
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

// finalized returns an error if source, a world rank, is in Finalize, so that no more messages from
// it can arrive. For a context that KeepInFinalize has marked it returns nil. The caller does not
// call it for AnySource: receives from any source never fail for this reason, because another
// goroutine of this rank may still send to this rank.
func (c *Context) finalized(source int32) error {
	if c.e.finalizing == 0 || c.kept || !c.e.peers[source].inFinalize {
		return nil
	}
	return finalizedError{source}
}
