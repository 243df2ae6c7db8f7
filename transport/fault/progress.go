package fault

import (
	"sync"
	"time"

	"github.com/weft-hpc/weft/transport"
)

// entry is a delayed completion.
type entry struct {
	transport.Completion        // Msg is a copy
	due                  uint64 // number of the first Read that may return it
}

// queue wraps the provider's completion queue and injects faults. The messages of one peer stay in
// order: no message overtakes a delayed message of the same peer.
type queue struct {
	transport.CompletionQueue
	dom *domain

	mu     sync.Mutex             // guards the fields below
	reads  uint64                 // number of Reads so far
	held   []entry                // the delayed completions, in order of arrival
	heldOf map[transport.Addr]int // by peer: number of its entries in held, except OpDone
	// dueOf has, by peer, the number due of the last entry that heldOf counts. A later entry of
	// the peer must not be due earlier.
	dueOf map[transport.Addr]uint64
	free  [][]byte // unused buffers for copies of messages
	lent  [][]byte // copies of messages that the last Read returned
}

// Read returns delayed completions that are due, and completions of the provider's Read with the
// faults ShortRead, Delay, Duplicate and Corrupt.
func (q *queue) Read(c []transport.Completion) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reads++
	q.free = append(q.free, q.lent...)
	q.lent = q.lent[:0]
	if len(c) > 1 && q.dom.dice.hit(q.dom.dice.plan.ShortRead) {
		c = c[:1]
	}
	n := q.giveDueLocked(c)
	fresh := c[n:]
	// Call Read even if fresh is empty: the provider makes progress in Read, and Read reports a
	// closed domain.
	got, err := q.CompletionQueue.Read(fresh)
	if err != nil {
		return 0, err
	}
	for _, e := range fresh[:got] {
		if q.passLocked(&e) {
			c[n] = e
			n++
		}
	}
	return n, nil
}

// giveDueLocked moves those entries of q.held that are due into c, until c is full, and returns
// their number. The caller holds q.mu.
func (q *queue) giveDueLocked(c []transport.Completion) int {
	n, kept := 0, 0
	for i := range q.held {
		e := &q.held[i]
		if n == len(c) || e.due > q.reads {
			q.held[kept] = *e
			kept++
			continue
		}
		c[n] = e.Completion
		n++
		if e.Msg != nil {
			q.lent = append(q.lent, e.Msg)
		}
		if e.Kind != transport.OpDone {
			q.heldOf[e.Peer]--
		}
	}
	clear(q.held[kept:])
	q.held = q.held[:kept]
	return n
}

// passLocked applies the faults Delay, Duplicate and Corrupt to a completion that the provider's
// Read has returned. If passLocked returns true, Read must return *e now; otherwise passLocked has
// put the completion in held. The caller holds q.mu.
func (q *queue) passLocked(e *transport.Completion) bool {
	dice, plan := q.dom.dice, &q.dom.dice.plan
	late := dice.hitPeer(plan.Delay, e.Peer)
	switch e.Kind {
	case transport.OpDone:
		if late {
			q.held = append(q.held, entry{*e, q.reads + uint64(dice.number(plan.DelayMax))})
		}
		return !late
	case transport.PeerNotice:
		return true
	case transport.PeerDown, transport.PeerLeft:
		// The end of a peer is delayed as a message is, because it must not overtake the peer's
		// messages.
	case transport.RecvDone:
		if len(e.Msg) > 0 && dice.hitPeer(plan.Corrupt, e.Peer) {
			e.Msg = q.copyLocked(e.Msg)
			q.lent = append(q.lent, e.Msg)
			for range dice.number(3) {
				bit := dice.number(8*len(e.Msg)) - 1
				e.Msg[bit/8] ^= 1 << (bit % 8)
			}
		}
	}
	twice := e.Kind == transport.RecvDone && dice.hitPeer(plan.Duplicate, e.Peer)
	if !late && q.heldOf[e.Peer] == 0 {
		if twice {
			q.holdLocked(e, q.reads+1)
		}
		return true
	}
	due := q.reads + 1
	if late {
		due = q.reads + uint64(dice.number(plan.DelayMax))
	}
	q.holdLocked(e, due)
	if twice {
		q.holdLocked(e, due)
	}
	return false
}

// holdLocked appends a copy of *e, which is a message or the end of a peer, to held. The first
// Read that may return the copy is the one with the number due, or the one for which the peer's
// previous entry is due, if that is later. The caller holds q.mu.
func (q *queue) holdLocked(e *transport.Completion, due uint64) {
	if q.heldOf[e.Peer] > 0 {
		due = max(due, q.dueOf[e.Peer])
	}
	q.heldOf[e.Peer]++
	q.dueOf[e.Peer] = due
	h := entry{*e, due}
	if e.Kind == transport.RecvDone {
		h.Msg = q.copyLocked(e.Msg)
	}
	q.held = append(q.held, h)
}

// forget drops the messages of a peer that are in held.
func (q *queue) forget(peer transport.Addr) {
	q.mu.Lock()
	defer q.mu.Unlock()
	kept := q.held[:0]
	for _, e := range q.held {
		if e.Kind == transport.RecvDone && e.Peer == peer {
			q.heldOf[peer]--
			q.free = append(q.free, e.Msg)
			continue
		}
		kept = append(kept, e)
	}
	clear(q.held[len(kept):])
	q.held = kept
}

func (q *queue) copyLocked(msg []byte) []byte {
	var buf []byte
	if n := len(q.free); n > 0 {
		buf = q.free[n-1]
		q.free = q.free[:n-1]
	}
	return append(buf[:0], msg...)
}

// Arm returns false while held is not empty: only Reads make delayed completions due, so the caller
// must not sleep.
func (q *queue) Arm() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.held) == 0 && q.CompletionQueue.Arm()
}

// Wait calls the provider's Wait. With the fault EarlyWait it passes the timeout 0.
func (q *queue) Wait(timeout time.Duration) error {
	if q.dom.waitDice.hit(q.dom.waitDice.plan.EarlyWait) {
		timeout = 0
	}
	return q.CompletionQueue.Wait(timeout)
}
