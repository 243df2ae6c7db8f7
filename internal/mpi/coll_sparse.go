package mpi

import (
	"context"
	"fmt"
	"iter"
	"math"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// SparseAlltoall: messages to a few ranks, which do not know their senders
//
// The algorithm is NBX (Hoefler, Siebert and Lumsdaine: Scalable communication protocols for
// dynamic sparse data exchange, PPoPP 2010). It takes O(log n) steps, whereas an exchange of counts
// takes O(n) memory and messages.
//
//	synchronous send of each part ─┐
//	                               ├─► all sends matched ─► barrier begins ─► barrier ends ─► done
//	receive from any source, again ┴───────────────────────────────────────► cancelled
//
// A synchronous send completes when a receive has matched it. So when every rank has begun the
// barrier, every message has been received, and each rank knows this when the barrier ends.
//
// A part is one message, or two if it is long. The first one has the number of elements and up to
// sparseInline bytes, so that the receiver can post the receive before it knows the length:
//
//	0        8
//	┌────────┬──────────────────┐        ┌─────────────────┐
//	│elements│ first bytes      │  then  │ the other bytes │
//	└────────┴──────────────────┘        └─────────────────┘
const (
	sparseHead   = 8
	sparseInline = 2048
)

// SparseSink takes the parts that a SparseAlltoall receives. The functions run on the goroutine of
// the call.
type SparseSink struct {
	// Room returns memory for a part of n elements.
	Room func(n int) []byte
	// Full is called when the part from a rank is in the memory of the last call of Room.
	Full func(source int)
}

// sparse is one call of SparseAlltoall.
type sparse struct {
	l       *link
	sink    SparseSink
	first   []byte         // buffer of recv
	recv    engine.Request // receive of the first message of a part, from any source
	barrier engine.Request // zero until the sends are matched
	sending int            // number of requests of l.reqs that are not complete
}

// SparseAlltoall implements comm.SparseAlltoall, which documents the call. parts are the ranks and
// the elements for them.
func (c *Comm) SparseAlltoall(t *elem.Type, parts iter.Seq2[int, elem.Buffer], sink SparseSink) error {
	l, err := c.open("SparseAlltoall", t)
	if err != nil {
		return err
	}
	if err := l.s.checkIntra(); err != nil {
		return l.end(err)
	}
	x := &sparse{l: l, sink: sink, first: make([]byte, sparseHead+sparseInline)}
	returned := false
	defer func() {
		if !returned { // a function of the program has panicked, and the panic goes on
			_ = x.end(fmt.Errorf("%w: a function of the program has panicked", ErrOp))
		}
	}()
	err = x.exchange(c, parts)
	returned = true
	return x.end(err)
}

// exchange sends and receives all parts.
func (x *sparse) exchange(c *Comm, parts iter.Seq2[int, elem.Buffer]) error {
	l := x.l
	l.sign(calls.KindSparseAlltoall, 0, 0)
	l.recordCall()
	if l.hasSlot {
		l.dropSlot() // the call does not use the arena
	}
	x.post()
	for dest, b := range parts {
		if dest == ProcNull {
			continue
		}
		if uint(dest) >= uint(l.Size()) {
			return fmt.Errorf("%w: part for rank %d in a communicator of %d ranks", ErrRank, dest, l.Size())
		}
		x.send(b, dest)
	}
	for i := range l.reqs {
		if l.reqs[i].r != (engine.Request{}) { // otherwise the message has left
			x.sending++
		}
	}
	for {
		if x.sending == 0 && x.barrier == (engine.Request{}) {
			x.beginBarrier(c)
		}
		i, err := engine.WaitAny(l.ctx, 2+len(l.reqs), x.request)
		if err != nil {
			return err
		}
		switch i {
		case 0:
			if _, err := x.receive(); err != nil {
				return err
			}
		case 1:
			_, err := x.barrier.Wait(l.ctx)
			x.barrier = engine.Request{}
			if err != nil {
				return err
			}
			return x.receiveLast()
		default:
			if err := l.Wait(coll.Ticket(i - 2)); err != nil {
				return err
			}
			x.sending--
		}
	}
}

// request returns the requests that exchange waits for: the receive, the barrier, and the sends.
func (x *sparse) request(i int) engine.Request {
	switch i {
	case 0:
		return x.recv
	case 1:
		return x.barrier
	}
	return x.l.reqs[i-2].r
}

// post posts the receive of the first message of a part.
func (x *sparse) post() { x.recv = x.l.s.coll.Irecv(x.first, x.l.to(AnySource)) }

// send starts to send a part.
func (x *sparse) send(b elem.Buffer, dest int) {
	l, data := x.l, b.Bytes()
	n := b.Count
	now := min(len(data), sparseInline)
	first := make([]byte, sparseHead, sparseHead+now)
	putUint64(first, uint64(n))
	env := l.to(dest)
	env.Mode = engine.Synchronous
	l.noteWait(dest)
	l.ticket(transfer{l.s.coll.Isend(append(first, data[:now]...), env), -1, dest})
	if now < len(data) {
		l.Isend(data[now:], dest)
	}
}

// receiveLast takes the parts whose first messages have been matched and not taken when the barrier
// has ended. WaitAny may return the barrier first although the receive has ended, too.
func (x *sparse) receiveLast() error {
	for {
		_ = x.recv.Cancel() // it has matched the first message of a part, or no message will come
		if cancelled, err := x.receive(); cancelled || err != nil {
			return err
		}
	}
}

// receive takes the part whose first message has arrived, and posts the receive of the next one. If
// the receive was cancelled, it does nothing and returns true.
func (x *sparse) receive() (cancelled bool, err error) {
	l := x.l
	st, err := x.recv.Wait(l.ctx)
	if err != nil || st.Cancelled {
		return st.Cancelled, err
	}
	n := uint64(0)
	if st.Bytes >= sparseHead {
		n = getUint64(x.first)
	}
	size := uint64(max(l.elem, 1))
	if st.Bytes < sparseHead || n > math.MaxInt/size || l.elem > 0 && n*size > uint64(memory()) {
		return false, fmt.Errorf("%w: rank %d sent a part of %d elements, which needs more memory than this host has", ErrCount, st.Source, n)
	}
	total := int(n) * l.elem
	now := min(total, sparseInline)
	if st.Bytes != sparseHead+now {
		return false, l.wrongSent(st.Source, st.Bytes-sparseHead, now)
	}
	buf := x.sink.Room(int(n))
	copy(buf, x.first[sparseHead:st.Bytes])
	if now < total {
		if err := l.Recv(buf[now:], st.Source); err != nil {
			return false, err
		}
	}
	x.post()
	x.sink.Full(st.Source)
	return false, nil
}

// beginBarrier starts the barrier, on another goroutine.
func (x *sparse) beginBarrier(c *Comm) {
	s := x.l.s
	l := s.take(c, x.l.name, int(s.seq.Add(1)&seqMask))
	l.what, l.elem, l.typ = coll.KindBarrier, x.l.elem, x.l.typ
	l.sign(calls.KindSparseAlltoall, 0, 0)
	if l.hasSlot {
		l.dropSlot()
	}
	x.barrier = s.job.eng.Go(l.task)
}

// end finishes the call, which has ended with err, and returns the error of the call. No transfer
// uses a buffer of x afterwards.
func (x *sparse) end(err error) error {
	err = x.l.end(err) // if err is not nil, this revokes the communicator, so that the waits below end
	_ = x.recv.Cancel()
	_, _ = x.recv.Wait(context.Background()) // cancelled, or failed
	_, _ = x.barrier.Wait(context.Background())
	return err
}
