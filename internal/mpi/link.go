package mpi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"github.com/weft-hpc/weft/internal/elem"
	"slices"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/engine"
)

// link is one running collective: the coll.Link that its algorithm works
// with. Links are kept with their communicator and used again, and with them
// their scratch memory, so that a collective allocates nothing in steady state.
//
//	Allreduce ─► begin ─► check arguments ─► coll.Allreduce(link) ─► end
//	               │                                                 │
//	           take a number                               on error: revoke
//
// All messages of a collective bear its number as their tag, so that those of
// two collectives that run at once do not meet, and the collective's
// signature, so that ranks that call different collectives find out.
type link struct {
	s    *state
	c    *Comm
	ctx  context.Context
	name string // of the call
	env  engine.Env

	plan
	signature
	entered bool         // this call has set state.entered and clears it
	task    func() error // perform and end, for the nonblocking forms

	// State of the call with respect to the slot and the arena; see slot.go.
	hasSlot    bool          // this link holds the slot
	queued     bool          // this link is in the queue for the slot, or was granted the slot and has not noticed it
	granted    chan struct{} // receives one token when the slot is granted; nil: this link was never queued
	wantsArena bool          // the call uses the arena, or finds out in enterArena whether it does
	count      int           // the argument of requestArena
	shared     bool          // the call uses memory that all ranks share, according to coll.SharedUpTo
	algorithm  int           // otherwise: what coll.Pick returned, or coll.Unpicked
	arena      *arena        // the arena that the call uses; nil: the call uses messages

	reqs    []transfer // by ticket
	scratch [][]byte   // by order of request in a call; each as large as the largest request so far, up to scratchKept
	used    int        // slices of scratch in use
	large   []*[]byte  // slices of largeScratch that the current call uses
	tainted bool       // a transfer may still use the buffers

	lastWait     atomic.Uint64 // number of the collective << 32 | 1 + the rank that it waited for last; 0: it has not waited
	checkedWait  uint64        // lastWait at the stall detector's last check; guarded by linkMu
	stalledTicks uint          // number of the stall detector's checks since lastWait changed; guarded by linkMu
}

// transfer is an Isend or Irecv of a collective.
type transfer struct {
	r    engine.Request
	want int // bytes that a receive must get; -1 for a send
	peer int
}

var _ coll.Link = (*link)(nil)

// seqMask keeps the numbers of collectives below those of CreateGroup.
const (
	seqMask  = 1<<30 - 1
	groupTag = 1 << 30
)

// begin starts a collective: it takes a link and the collective's number. The caller must
// call end, also if the arguments turn out to be wrong. If another goroutine is in a
// blocking collective of the communicator, or is starting a collective, the order of the
// two is undefined, and begin revokes the communicator.
//
// Hot path: no allocation in steady state.
func (c *Comm) begin(name string) (*link, error) {
	s, err := c.live()
	if err != nil {
		return nil, c.fail(name, noRank, noRank, err)
	}
	if s.entered.Swap(true) {
		err = c.fail(name, noRank, noRank, ErrConcurrent)
		s.revoke(err)
		return nil, err
	}
	l := s.take(c, name, int(s.seq.Add(1)&seqMask))
	l.entered = true
	return l, nil
}

func (s *state) take(c *Comm, name string, tag int) *link {
	l := s.tryAcquireSlot()
	if l != nil {
		l.hasSlot = true
	} else {
		s.linkMu.Lock()
		l = s.freeLinkLocked()
		s.linkMu.Unlock()
	}
	l.c, l.ctx, l.name = c, c.ctx, name
	l.env = engine.Env{Tag: tag, Attended: true}
	l.algorithm = coll.Unpicked
	return l
}

// freeLinkLocked returns a link that no call uses. The caller holds linkMu, except in newState.
func (s *state) freeLinkLocked() *link {
	if n := len(s.links); n > 0 {
		l := s.links[n-1]
		s.links = s.links[:n-1]
		return l
	}
	l := &link{s: s}
	l.task = func() error {
		l.acquire()
		return l.run()
	}
	s.all = append(s.all, l)
	return l
}

// end finishes a collective with the error that it came to. An error here is
// an error everywhere: the communicator is revoked with the cause, for the
// other ranks may wait for what this one will never send.
func (l *link) end(err error) error {
	if err == nil && len(l.reqs) > 0 {
		err = l.WaitAll()
	}
	if err != nil {
		err = l.abort(err)
	}
	l.release()
	return err
}

// broken revokes the communicator for err, gets the buffers back and returns
// what the call returns.
func (l *link) abort(err error) error {
	var differs *engine.MismatchError
	if errors.As(err, &differs) {
		err = l.disagreement(differs.Rank)
	}
	named := l.c.fail(l.name, noRank, noRank, err)
	if !errors.Is(err, ErrRevoked) && !errors.Is(err, ErrClosed) {
		l.s.revoke(named)
	}
	l.ctx = context.Background() // revoked: nothing here waits for long
	if werr := l.WaitAll(); isContext(werr) || isContext(err) {
		l.tainted = true
	}
	return named
}

func (l *link) release() {
	s := l.s
	if l.unrecorded {
		l.recordCall()
	}
	if l.queued { // the call ended before it could wait
		s.dequeue(l)
	}
	l.leave()
	if l.tainted { // a transfer that was cut short may still use the buffers
		if l.hasSlot {
			l.dropSlot()
		}
		s.linkMu.Lock()
		s.all = slices.DeleteFunc(s.all, func(x *link) bool { return x == l })
		s.linkMu.Unlock()
		return
	}
	l.used = 0
	for _, b := range l.large {
		giveLarge(b)
	}
	clear(l.large)
	l.large = l.large[:0]
	l.c, l.ctx = nil, nil
	l.plan = plan{}
	l.reqs = l.reqs[:0]
	a := l.arena
	l.wantsArena, l.shared, l.arena = false, false, nil
	if l.hasSlot {
		l.hasSlot = false
		wake := a != nil && a.host.TakePendingWake()
		s.releaseSlot(l)
		if wake {
			a.wake(s)
		}
		return
	}
	l.clearWait()
	s.linkMu.Lock()
	s.links = append(s.links, l)
	s.linkMu.Unlock()
}

// leave permits other goroutines to begin collectives.
func (l *link) leave() {
	if l.entered {
		l.entered = false
		l.s.entered.Store(false)
	}
}

// rest says that the link waits for nobody. The one that lies with the turn need
// not say so.
func (l *link) clearWait() { l.lastWait.Store(0) }

// Rank is comm.link.Rank.
func (l *link) Rank() int { return l.s.rank }

// Size is comm.link.Size.
func (l *link) Size() int { return len(l.s.group.ranks) }

func (l *link) to(peer int) engine.Env {
	env := l.env
	env.Peer = peer
	return env
}

// awaits notes for the watch whom the collective waits for.
func (l *link) noteWait(peer int) { l.lastWait.Store(uint64(l.env.Tag)<<32 | uint64(peer+1)) }

// Send is comm.link.Send.
func (l *link) Send(buf []byte, dest int) error {
	l.noteWait(dest)
	return l.s.coll.Send(l.ctx, buf, l.to(dest))
}

// Recv is comm.link.Recv.
func (l *link) Recv(buf []byte, source int) error {
	l.noteWait(source)
	st, err := l.s.coll.Recv(l.ctx, buf, l.to(source))
	return l.exact(source, st, len(buf), err)
}

// Sendrecv is comm.link.Sendrecv.
func (l *link) Sendrecv(send []byte, dest int, recv []byte, source int) error {
	r := l.s.coll.Irecv(recv, l.to(source))
	l.noteWait(dest)
	serr := l.s.coll.Send(l.ctx, send, l.to(dest))
	if serr != nil {
		l.reqs = append(l.reqs, transfer{r, len(recv), source}) // for broken to end
		return serr
	}
	l.noteWait(source)
	st, err := r.Wait(l.ctx)
	if err != nil && isContext(err) {
		l.reqs = append(l.reqs, transfer{r, len(recv), source})
	}
	return l.exact(source, st, len(recv), err)
}

// Isend is comm.link.Isend.
func (l *link) Isend(buf []byte, dest int) coll.Ticket {
	return l.ticket(transfer{l.s.coll.Isend(buf, l.to(dest)), -1, dest})
}

// Irecv is comm.link.Irecv.
func (l *link) Irecv(buf []byte, source int) coll.Ticket {
	return l.ticket(transfer{l.s.coll.Irecv(buf, l.to(source)), len(buf), source})
}

func (l *link) ticket(x transfer) coll.Ticket {
	l.reqs = append(l.reqs, x)
	return coll.Ticket(len(l.reqs) - 1)
}

// Wait is comm.link.Wait.
func (l *link) Wait(t coll.Ticket) error {
	x := &l.reqs[t]
	l.noteWait(x.peer)
	st, err := x.r.Wait(l.ctx)
	if x.want >= 0 {
		err = l.exact(x.peer, st, x.want, err)
	}
	if err == nil {
		*x = transfer{want: -1}
	}
	return err
}

// WaitAll is comm.link.WaitAll.
func (l *link) WaitAll() error {
	var first error
	for i := range l.reqs {
		if err := l.Wait(coll.Ticket(i)); err != nil && first == nil {
			first = err
		}
	}
	if first == nil || !isContext(first) {
		clear(l.reqs)
		l.reqs = l.reqs[:0]
	}
	return first
}

// Scratch is comm.link.Scratch.
func (l *link) Scratch(n int) []byte {
	if n > scratchKept {
		b := takeLarge(n)
		l.large = append(l.large, b)
		return (*b)[:n:n]
	}
	if l.used == len(l.scratch) {
		l.scratch = append(l.scratch, nil)
	}
	b := l.scratch[l.used]
	if len(b) < n {
		b = elem.AlignedBytes(n)
		l.scratch[l.used] = b
	}
	l.used++
	return b[:n:n]
}

// exact returns an error if a message from source has another length than the algorithm
// expects: the ranks' counts differ. For a longer message err is ErrTruncate already.
func (l *link) exact(source int, st engine.Status, want int, err error) error {
	if errors.Is(err, engine.ErrTruncate) || err == nil && st.Bytes != want {
		return l.wrongSent(source, st.Bytes, want)
	}
	return err
}

// wrongSent returns the error of a message from source that has another number of bytes
// than this rank expects.
func (l *link) wrongSent(source, have, want int) error {
	unit, size := "elements", max(l.elem, 1)
	if size == 1 || have%size != 0 || want%size != 0 {
		unit, size = "bytes", 1
	}
	return fmt.Errorf("%w: rank %d sent %d %s, rank %d expects %d", ErrCount, source, have/size, unit, l.s.rank, want/size)
}

func putUint64(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, v) }
func getUint64(b []byte) uint64    { return binary.LittleEndian.Uint64(b) }
