package mpi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/arena"
	"github.com/weft-hpc/weft/internal/record"
)

// link holds the state of one running collective call of this rank. It implements coll.Link, by
// which the collective's algorithm sends and receives messages. A communicator keeps its links and
// their scratch memory for later collectives, so a collective does not allocate in steady state.
//
//	Allreduce ─► begin ─► check arguments ─► coll.Allreduce(link) ─► end
//	               │                                                 │
//	        assign a number                              on error: revoke the communicator
//
// Each rank numbers the collectives of a communicator in the order of its calls. All messages of a
// collective have its number as their tag, so messages of collectives that run at the same time are
// not confused. The messages also carry the fingerprint of the call (16 bits; see
// calls.Call.Fingerprint), so ranks that call different collectives detect it.
type link struct {
	s    *state
	c    *Comm
	ctx  context.Context
	name string     // of the call, such as "Ibcast"
	env  engine.Env // the envelope of its messages, without the peer

	plan
	signature
	entered bool // this call has set state.entered; link.leave clears both
	// task performs the collective and ends it. Comm.spawn passes it to the engine, which calls it
	// on another goroutine.
	task func() error

	// The communicator's slot is the permission to use its shared memory, the arena; see slot.go.
	hasSlot bool // this link holds the slot
	// This link was queued for the slot, and neither awaitSlot nor dequeue has returned for it
	// since.
	queued bool
	// granted gets one value when the slot is granted to this link. nil: this link was never
	// queued.
	granted    chan struct{}
	wantsArena bool // the call uses the arena, or enterArena decides whether it does
	count      int  // the argument of requestArena, in bytes
	// requestArena has decided that the call runs wholly in shared memory. If not, the field
	// algorithm says how it runs.
	shared    bool
	algorithm int          // the algorithm that coll.Pick has chosen; coll.Unpicked: not chosen yet
	arena     *arena.Arena // the arena that the call uses; nil: the call uses messages

	// The transfers that WaitAll waits for, for example those of Isend and Irecv. A coll.Ticket is
	// an index into reqs.
	reqs    []transfer
	scratch [][]byte // buffers that Scratch returns, in the order of its calls; kept for the next collective
	used    int      // number of slices of scratch that this call uses
	// Memory of sendViews and recvViews, for a collective that sends or receives one view.
	sendView, recvView [1]elem.Buffer
	between            *coll.Between // of an intercommunicator; nil: no call has used it yet

	// Of the link of a persistent collective, which end does not release; see Persistent.
	persistent              bool
	rounds                  int            // number of starts
	usedByPlan, largeByPlan int            // elements of scratch and large that the plan uses
	short                   coll.ShortCall // the call, for the functions of coll.Host that take it
	spare                   *link          // the link that was stored with the slot, for dropSlot; nil: there is none
	finishTask              func() error   // finishPublished
	large                   []*[]byte      // buffers longer than scratchKept that this call uses; release calls giveLarge for them
	tainted                 bool           // a transfer may still use the buffers, so the link is not used again

	// For the record of this rank; see record.go.
	recordedOps []recordedOp // the names of the calls that have used the link
	recordOp    record.Op    // that of the name of the call
	recording   bool         // enterRecord has recorded the beginning of the call, and leaveRecord not its end
	// No other goroutine starts a collective of the communicator before this one ends: it is blocking, and
	// no CreateGroup.
	alone bool
	began time.Duration // when the call began
	exact bool          // began is the time of a reading of the clock

	lastWait     atomic.Uint64 // number of the collective << 32 | last rank waited for + 1; 0: none
	checkedWait  uint64        // lastWait at the stall detector's last check; guarded by state.linkMu
	stalledTicks uint          // consecutive checks without a change of lastWait; guarded by state.linkMu
}

// transfer is a nonblocking send or receive that the algorithm of a collective has started.
type transfer struct {
	r engine.Request
	// Number of bytes that the message must have. -1: the transfer is a send, or Wait has returned
	// no error for it.
	want int
	peer int // the other rank of the transfer
}

var _ coll.Link = (*link)(nil)

// The tag of a collective's messages is the collective's number, from 0 to seqMask; numbers wrap
// around. A CreateGroup has no number, because not all ranks of the communicator call it. The tag
// of its messages is groupTag | the tag that the program passes.
const (
	seqMask  = 1<<30 - 1
	groupTag = 1 << 30
)

// begin starts a collective: it returns a link, to which it has assigned the collective's number.
// The caller must call end, even if the arguments turn out to be wrong. If another goroutine is in
// a blocking collective of the communicator, or is starting a collective, the order of the two
// calls is undefined. Then begin revokes the communicator and returns ErrConcurrent.
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
	l.enterRecord()
	return l, nil
}

// take returns a link for a call with this name, whose messages have this tag. If take could
// acquire the slot, the link holds it.
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

// freeLinkLocked returns a link that no call uses: a stored one or a new one. The caller holds
// linkMu, except in newState, where no other goroutine knows the communicator yet.
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

// end finishes the collective, whose algorithm returned err, and returns the error of the call. If
// the collective failed, end revokes the communicator, because other ranks may wait for messages
// that this rank will never send.
func (l *link) end(err error) error {
	if err == nil && len(l.reqs) > 0 {
		err = l.WaitAll()
	}
	if err != nil {
		err = l.abort(err)
	} else if l.recvViews != nil {
		if uerr := l.unpack(); uerr != nil {
			err = l.c.fail(l.name, noRank, noRank, uerr)
		}
	}
	if l.persistent {
		l.rewind()
	} else {
		l.release()
	}
	return err
}

// abort handles a collective that failed with err. It revokes the communicator, unless err is
// ErrRevoked or ErrClosed, waits for the transfers of the call, and returns the error of the call.
// If err is the error of a context that has ended, a transfer may still use the buffers when abort
// returns. Then abort marks the link as tainted.
func (l *link) abort(err error) error {
	var differs *engine.MismatchError
	if errors.As(err, &differs) {
		err = l.disagreement(differs.Rank)
	}
	if rank, ok := l.lastPeer(); ok {
		err = l.s.waitedFor(rank, err)
	}
	named := l.c.fail(l.name, noRank, noRank, err)
	if !errors.Is(err, ErrRevoked) && !errors.Is(err, ErrClosed) {
		l.s.revoke(named)
	}
	// The context may have ended. The transfers of a revoked communicator end soon.
	l.ctx = context.Background()
	if werr := l.WaitAll(); isContext(werr) || isContext(err) {
		l.tainted = true
	}
	return named
}

// release returns the link and its memory to the communicator, or drops a tainted link. If the link
// holds the slot, release releases the slot.
func (l *link) release() {
	s := l.s
	if l.unrecorded {
		l.recordCall()
	}
	l.leaveRecord()
	if l.queued { // the call failed before awaitSlot waited for the slot
		s.dequeue(l)
	}
	l.leave()
	if l.tainted { // a transfer may still use the link's buffers, so no other call gets this link
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
		wake := a != nil && a.Host.TakePendingWake()
		s.releaseSlot(l)
		if wake {
			s.wake(a)
		}
		return
	}
	l.clearWait()
	s.linkMu.Lock()
	s.links = append(s.links, l)
	s.linkMu.Unlock()
}

// leave permits other goroutines to start collectives of the communicator. A blocking collective
// calls it at its end, a nonblocking one when it has started.
func (l *link) leave() {
	if l.entered {
		l.entered = false
		l.s.entered.Store(false)
	}
}

// clearWait records for the stall detector that no call of l waits for another rank. A link that is
// stored with the free slot need not call it, because the stall detector skips that link.
func (l *link) clearWait() { l.lastWait.Store(0) }

// Rank implements coll.Link.
func (l *link) Rank() int { return l.s.rank }

// Size implements coll.Link.
func (l *link) Size() int { return len(l.s.ranks) }

// to returns the envelope of a message of this call to or from the rank peer.
func (l *link) to(peer int) engine.Env {
	env := l.env
	env.Peer = peer
	return env
}

// noteWait records for the stall detector that the collective now waits for the rank peer.
func (l *link) noteWait(peer int) { l.lastWait.Store(uint64(l.env.Tag)<<32 | uint64(peer+1)) }

// Send implements coll.Link.
func (l *link) Send(buf []byte, dest int) error {
	l.noteWait(dest)
	return l.s.coll.Send(l.ctx, buf, l.to(dest))
}

// Recv implements coll.Link.
func (l *link) Recv(buf []byte, source int) error {
	l.noteWait(source)
	st, err := l.s.coll.Recv(l.ctx, buf, l.to(source))
	return l.checkLength(source, st, len(buf), err)
}

// Sendrecv implements coll.Link.
func (l *link) Sendrecv(send []byte, dest int, recv []byte, source int) error {
	r := l.s.coll.Irecv(recv, l.to(source))
	l.noteWait(dest)
	serr := l.s.coll.Send(l.ctx, send, l.to(dest))
	if serr != nil {
		l.reqs = append(l.reqs, transfer{r, len(recv), source}) // abort waits for the receive
		return serr
	}
	l.noteWait(source)
	st, err := r.Wait(l.ctx)
	if err != nil && isContext(err) {
		l.reqs = append(l.reqs, transfer{r, len(recv), source})
	}
	return l.checkLength(source, st, len(recv), err)
}

// Isend implements coll.Link.
func (l *link) Isend(buf []byte, dest int) coll.Ticket {
	return l.ticket(transfer{l.s.coll.Isend(buf, l.to(dest)), -1, dest})
}

// Irecv implements coll.Link.
func (l *link) Irecv(buf []byte, source int) coll.Ticket {
	return l.ticket(transfer{l.s.coll.Irecv(buf, l.to(source)), len(buf), source})
}

// ticket stores a transfer and returns the ticket by which Wait finds the transfer.
func (l *link) ticket(x transfer) coll.Ticket {
	l.reqs = append(l.reqs, x)
	return coll.Ticket(len(l.reqs) - 1)
}

// Wait implements coll.Link.
func (l *link) Wait(t coll.Ticket) error {
	x := &l.reqs[t]
	l.noteWait(x.peer)
	st, err := x.r.Wait(l.ctx)
	if x.want >= 0 {
		err = l.checkLength(x.peer, st, x.want, err)
	}
	if err == nil {
		*x = transfer{want: -1}
	}
	return err
}

// WaitAll implements coll.Link.
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

// Scratch implements coll.Link.
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

// checkLength returns the error of a receive from source. st and err are what the engine has
// returned for it; for a message that is too long, err is ErrTruncate. If the message does not have
// want bytes, the length that the algorithm expects, the counts of the two ranks differ, and
// checkLength returns ErrCount. Otherwise it returns err.
func (l *link) checkLength(source int, st engine.Status, want int, err error) error {
	if errors.Is(err, engine.ErrTruncate) || err == nil && st.Bytes != want {
		return l.wrongSent(source, st.Bytes, want)
	}
	return err
}

// wrongSent returns the error of a message from source whose length is have, where this rank
// expects want; both are in bytes. The text counts elements if both lengths are whole numbers of
// elements.
func (l *link) wrongSent(source, have, want int) error {
	unit, size := "elements", max(l.elem, 1)
	if size == 1 || have%size != 0 || want%size != 0 {
		unit, size = "bytes", 1
	}
	return fmt.Errorf("%w: %s sent %d %s, rank %d expects %d", ErrCount, l.s.rankName(source), have/size, unit, l.s.localRank, want/size)
}

func putUint64(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, v) }
func getUint64(b []byte) uint64    { return binary.LittleEndian.Uint64(b) }
