package colltest

import (
	"bytes"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/coll"
)

// Link is one rank of a World. In steady state it does not allocate, unless the world is eager or
// Delayed.
type Link struct {
	w    *World
	rank int
	wake sync.Cond

	// The world's lock guards these fields.
	tickets  []*transfer    // by Ticket; nil: the rank has waited for the transfer
	open     int            // number of tickets that are not nil
	waiting  *transfer      // the transfer that wait waits for; nil outside of wait
	finished bool           // the rank's function has returned
	word     *atomic.Uint64 // the word that Await waits for; nil outside of Await
	least    uint64         // the value that Await waits for
	source   int            // the rank within the host that writes word

	host *coll.Host // nil: the rank shares no memory
	sig  uint16     // the number that SetSig has set; 0: none

	calls int    // number of calls so far of methods that can fail
	arena []byte // memory of Scratch
	used  int    // number of bytes at the beginning of arena that Scratch has returned
}

var _ coll.Link = (*Link)(nil)

// Rank returns the rank.
func (l *Link) Rank() int { return l.rank }

// Size returns the number of ranks.
func (l *Link) Size() int { return len(l.w.links) }

// Calls returns the number of calls to the Link's methods that can fail.
func (l *Link) Calls() int { return l.calls }

// Send starts a send and waits until it has ended.
func (l *Link) Send(buf []byte, dest int) error {
	if l.enter() {
		return ErrInjected
	}
	return l.wait(l.start(buf, dest, true))
}

// Recv starts a receive and waits until it has ended.
func (l *Link) Recv(buf []byte, source int) error {
	if l.enter() {
		return ErrInjected
	}
	return l.wait(l.start(buf, source, false))
}

// Sendrecv starts a receive and a send, and waits until both have ended.
func (l *Link) Sendrecv(send []byte, dest int, recv []byte, source int) error {
	if l.enter() {
		return ErrInjected
	}
	r := l.start(recv, source, false)
	s := l.start(send, dest, true)
	err := l.wait(r)
	if e := l.wait(s); err == nil {
		err = e
	}
	return err
}

// Isend starts a send.
func (l *Link) Isend(buf []byte, dest int) coll.Ticket { return l.istart(buf, dest, true) }

// Irecv starts a receive.
func (l *Link) Irecv(buf []byte, source int) coll.Ticket { return l.istart(buf, source, false) }

func (l *Link) istart(buf []byte, peer int, send bool) coll.Ticket {
	if !l.enter() {
		return l.start(buf, peer, send)
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	return l.ticket(&transfer{owner: l, peer: peer, send: send, buf: buf, done: true, err: ErrInjected})
}

// Wait waits until the transfer of a ticket has ended. It panics if the rank has waited for the
// ticket before.
func (l *Link) Wait(t coll.Ticket) error {
	fail := l.enter()
	err := l.wait(t)
	if fail {
		return ErrInjected
	}
	return err
}

// WaitAll waits until all transfers have ended for which the rank has not waited yet.
func (l *Link) WaitAll() error {
	fail := l.enter()
	err := l.drain()
	if fail {
		return ErrInjected
	}
	return err
}

func (l *Link) drain() error {
	var first error
	for i := range len(l.tickets) {
		if i < len(l.tickets) && l.tickets[i] != nil {
			if err := l.wait(coll.Ticket(i)); err != nil && first == nil {
				first = err
			}
		}
	}
	return first
}

var garbage = bytes.Repeat([]byte{0xa5}, 4096)

// Scratch returns n bytes of arbitrary contents, which are valid until Reset.
func (l *Link) Scratch(n int) []byte {
	need := (n + 15) &^ 15
	if l.used+need > len(l.arena) {
		l.arena = make([]byte, max(4096, 2*(l.used+need)))
		l.used = 0
	}
	b := l.arena[l.used : l.used+n : l.used+n]
	l.used += need
	for i := 0; i < n; {
		i += copy(b[i:], garbage)
	}
	return b
}

// Reset ends a collective: its scratch memory may be reused.
func (l *Link) Reset() { l.used = 0 }

// enter counts a call, may let other ranks run, depending on the network, and reports whether this
// call must fail.
func (l *Link) enter() bool {
	w := l.w
	l.calls++
	switch w.opt.Network {
	case Scheduled:
		w.mu.Lock()
		if w.rng.IntN(2) == 0 {
			l.yield()
		}
		w.mu.Unlock()
	case Delayed:
		if (l.calls*7+l.rank)%3 == 0 {
			runtime.Gosched()
		}
	case Immediate:
	}
	return w.opt.FailCall > 0 && l.rank == w.opt.FailRank && l.calls == w.opt.FailCall
}

func (l *Link) start(buf []byte, peer int, send bool) coll.Ticket {
	w := l.w
	if peer < 0 || peer >= len(w.links) || peer == l.rank {
		panic(fmt.Sprintf("rank %d: transfer with rank %d of %d", l.rank, peer, len(w.links)))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var t *transfer
	if n := len(w.free); n > 0 {
		t, w.free = w.free[n-1], w.free[:n-1]
	} else {
		t = new(transfer)
	}
	*t = transfer{owner: l, peer: peer, send: send, buf: buf}
	id := l.ticket(t)
	w.post(t)
	return id
}

func (l *Link) ticket(t *transfer) coll.Ticket {
	l.tickets = append(l.tickets, t)
	l.open++
	return coll.Ticket(len(l.tickets) - 1)
}

func (l *Link) wait(id coll.Ticket) error {
	w := l.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if int(id) >= len(l.tickets) || l.tickets[id] == nil {
		panic(fmt.Sprintf("rank %d: waits for a ticket %d that is not open", l.rank, id))
	}
	t := l.tickets[id]
	for !t.done {
		l.waiting = t
		if w.opt.Network == Scheduled {
			l.yield()
			continue
		}
		w.detectDeadlock()
		if !t.done {
			l.wake.Wait()
		}
	}
	l.waiting = nil
	err := t.err
	l.tickets[id] = nil
	if l.open--; l.open == 0 {
		l.tickets = l.tickets[:0]
	}
	if !w.opt.Eager && w.revoked == nil && err == nil {
		w.free = append(w.free, t)
	}
	return err
}

// ready reports whether the rank can run.
func (l *Link) ready() bool {
	return !l.finished && (l.waiting == nil || l.waiting.done) && (l.word == nil || l.reached() || l.w.revoked != nil)
}

// yield lets the scheduler choose the rank that runs, and blocks until it chooses this one.
func (l *Link) yield() {
	l.w.schedule()
	for l.w.running != l.rank {
		l.wake.Wait()
	}
}

// begin blocks until the scheduler chooses this rank for the first time.
func (l *Link) begin() {
	if l.w.opt.Network != Scheduled {
		return
	}
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	for l.w.running != l.rank {
		l.wake.Wait()
	}
}

func (l *Link) end() {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	l.finished = true
	if l.w.opt.Network == Scheduled {
		l.w.schedule()
	} else {
		l.w.detectDeadlock()
	}
}
