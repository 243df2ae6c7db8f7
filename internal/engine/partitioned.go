package engine

import (
	"context"
	"errors"

	"github.com/weft-hpc/weft/internal/wire"
)

// Partitioned messages (MPI-4.1 chapter 4)
//
// A partitioned message is one rendezvous. The sender's program makes its partitions ready one by
// one, and the receiver reads those that are ready.
//
//	sender                                   receiver
//	IsendPartitioned ──── RTS ────►          IrecvPartitioned
//	                 ◄─── Pull ───           the message has matched
//	Ready(2)         ─── Ready 2 ──►         reads partition 2
//	Ready(0)         ─── Ready 0 ──►           │
//	Ready(1)         ─── Ready 1 ──►           │
//	                                         reads partitions 0 and 1
//	                 ◄─── FIN ────           all partitions have arrived
//
// The receiver has one read in flight. While it reads, further partitions become ready, and the
// next read covers as many of them as are adjacent. So the faster partitions become ready, the
// longer the reads are: the cost is close to that of one message.
//
// If the receiver cannot read the sender's memory, it answers with MsgCTS, as for any rendezvous.
// Then the sender sends the data when all partitions are ready.
//
// If the sender is in Finalize and partitions are not ready, it reports that (a MsgReady of 0
// partitions), and the receive ends with ErrFinalized.

// Partitions is the state of a partitioned message on one of its ranks. A program that sends or
// receives such messages repeatedly uses the same Partitions, for one message at a time. The
// engine's lock guards the fields.
type Partitions struct {
	bytes int // of a partition
	marks []partitionMark
	left  int  // number of partitions that are not ready (sender) or have not arrived (receiver)
	ended bool // no more partitions become ready, because the sender is in Finalize

	// Of a sender.
	pulled bool   // MsgPull has arrived: the sender reports which partitions are ready
	wanted int    // length in the MsgCTS that has arrived; 0: none has
	remote uint64 // with pulled or wanted: number of the receiver's request

	// Of a receiver.
	reads    bool    // it has sent MsgPull: it reads the partitions by RMA
	queue    []int32 // first partitions of the MsgReady that have arrived, in their order
	next     int     // index in queue of the first one that readNext has not looked at
	from, to int     // the read in progress is of the partitions from to to-1
}

// partitionMark is the state of a partition.
type partitionMark uint8

const (
	partitionWaits   partitionMark = iota // it is not ready
	partitionReady                        // it is ready
	partitionArrived                      // receiver: its data is in the buffer, or is being read
)

var errPartition = errors.New("a partition that does not exist, or that was ready before")

// NewPartitions returns the state for messages of n partitions of the given length in bytes, which
// is greater than 0.
func NewPartitions(n, bytes int) *Partitions {
	return &Partitions{bytes: bytes, marks: make([]partitionMark, n)}
}

// size returns the length of the message in bytes.
func (p *Partitions) size() int { return len(p.marks) * p.bytes }

// reset prepares p for the next message.
func (p *Partitions) reset() {
	clear(p.marks)
	p.left = len(p.marks)
	p.pulled, p.wanted, p.reads, p.ended = false, 0, false, false
	p.queue, p.next, p.from, p.to = p.queue[:0], 0, 0, 0
}

// Pulls reports whether an ordinary message of n bytes to a rank of the group would be a
// rendezvous that the receiver may read by RMA. Then a partitioned message is useful. For this
// rank itself, Pulls returns false.
func (c *Context) Pulls(rank, n int) bool {
	to := c.world(rank)
	if int(to) == c.e.rank {
		return false
	}
	rail := c.e.peers[to].rail
	return rail.rma != nil && n > rail.eager // New has set them, and nothing changes them
}

// IsendPartitioned starts a send of buf, whose partitions p describes, to another rank. The engine
// uses p until the request is complete, and a partition of buf from its Ready on. The request does
// not complete without an error before all partitions are ready. The send is a rendezvous, also if
// buf is short. The receiver uses IrecvPartitioned with as many partitions and a buffer of the
// same length.
//
// Hot path: no allocation in steady state.
func (c *Context) IsendPartitioned(buf []byte, env Env, p *Partitions) Request {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	p.reset()
	r := e.take(kindSend)
	env.Mode = modePartitioned
	r.address(c, c.world(env.Peer), buf, &env)
	r.parts = p
	switch err := c.unusable(); {
	case err != nil:
		e.complete(r, err)
	case e.peers[r.peer].err != nil:
		e.complete(r, e.peers[r.peer].err)
	default:
		r.phase = phaseQueued
		e.submit(r)
	}
	return e.public(r, false)
}

// IrecvPartitioned starts a receive of a message of IsendPartitioned into buf. p describes the
// sender's partitions. The engine uses buf and p until the request is complete.
//
// Hot path: no allocation in steady state.
func (c *Context) IrecvPartitioned(buf []byte, env Env, p *Partitions) Request {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	p.reset()
	return e.public(c.startRecv(buf, &env, true, p), false)
}

// Ready marks partition i of a request of IsendPartitioned as ready. It does nothing if the
// request has ended.
//
// Hot path: no allocation, no system call except the endpoint's.
func (q Request) Ready(i int) {
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if q.doneLocked() || q.r.parts.ended {
		return
	}
	r, p := q.r, q.r.parts
	p.marks[i] = partitionReady
	p.left--
	switch {
	case p.pulled:
		e.startMoving(r)
		e.sendReady(r, i, 1)
	case p.wanted == 0:
		e.poll() // the receiver's answer to the RTS may have arrived
	case p.left == 0:
		e.startMoving(r)
		e.stream(r, p.remote, p.wanted)
	}
}

// sendReady reports to the receiver that n partitions from the given one on are ready. If n is 0,
// it reports that no more partitions become ready.
func (e *Engine) sendReady(r *request, from, n int) {
	e.sendControl(r.peer, wire.Message{Kind: wire.MsgReady, Handle: r.parts.remote, Addr: uint64(from), Key: uint64(n)}, nil)
}

// receivePull handles a MsgPull: the receiver of the send r reads the partitions that are ready.
func (e *Engine) receivePull(source int32, m *wire.Message) error {
	r, err := e.slot(m.Handle, kindSend, source)
	if r == nil {
		return err
	}
	p := r.parts
	if p == nil || !r.awaitsReply() || p.pulled || p.wanted > 0 {
		return errHandle
	}
	p.pulled, p.remote = true, m.Key
	if p.left == len(p.marks) {
		e.stopMoving(r) // the send waits for this rank's program
	}
	for i := 0; i < len(p.marks); {
		n := p.run(i, len(p.marks), partitionReady)
		if n > 0 {
			e.sendReady(r, i, n)
		}
		i += n + 1
	}
	e.endPartitions(r)
	return nil
}

// receiveCTS handles a MsgCTS for the partitioned send r: the receiver cannot read the data. The
// sender sends it when all partitions are ready.
func (e *Engine) receiveCTS(r *request, m *wire.Message) error {
	p := r.parts
	if p.pulled || p.wanted > 0 || m.Length == 0 {
		return errHandle
	}
	if p.left == 0 {
		e.stream(r, m.Key, m.Length)
		return nil
	}
	p.wanted, p.remote = m.Length, m.Key
	e.stopMoving(r) // the send waits for this rank's program
	e.endPartitions(r)
	return nil
}

// run returns the number of consecutive partitions from i on, and before end, that have the given
// mark.
func (p *Partitions) run(i, end int, mark partitionMark) (n int) {
	for i+n < end && p.marks[i+n] == mark {
		n++
	}
	return n
}

// endPartitions reports to the receiver of r that no more partitions become ready, if this rank is
// in Finalize and partitions are not ready. If the receiver has not answered the RTS yet, it does
// nothing.
func (e *Engine) endPartitions(r *request) {
	if p := r.parts; e.leaving != nil && p != nil && (p.pulled || p.wanted > 0) && p.left > 0 && !p.ended && !r.done {
		p.ended = true
		e.sendReady(r, 0, 0)
	}
}

// pull asks the sender of the message that r has matched which partitions are ready. m is the RTS.
func (e *Engine) pull(r *request, m *wire.Message) {
	r.phase, r.parts.reads = phasePulling, true
	e.sendControl(r.peer, wire.Message{Kind: wire.MsgPull, Handle: m.Handle, Key: r.handle()}, nil)
}

// receiveReady handles a MsgReady: partitions of the receive are ready.
//
// Hot path: no allocation in steady state.
func (e *Engine) receiveReady(source int32, m *wire.Message) error {
	r, err := e.slot(m.Handle, kindRecv, source)
	if r == nil {
		return err
	}
	p := r.parts
	if p == nil || p.ended || !p.reads && (m.Key > 0 || r.phase != phaseReceiving) {
		return errHandle
	}
	if m.Addr >= uint64(len(p.marks)) || m.Key > uint64(len(p.marks))-m.Addr {
		return errPartition
	}
	from, n := int(m.Addr), int(m.Key)
	if p.run(from, from+n, partitionWaits) < n {
		return errPartition
	}
	for i := from; i < from+n; i++ {
		p.marks[i] = partitionReady
	}
	if n == 0 {
		p.ended = true
	} else {
		p.queue = append(p.queue, int32(from))
	}
	switch {
	case !p.reads:
		e.fetched(r, finalizedError{source})
	case r.phase == phasePulling:
		e.readNext(r)
	}
	return nil
}

// readNext starts the read of the next partitions that are ready: those that the oldest MsgReady
// names, and the ones beside them. The receive r has no read in progress.
func (e *Engine) readNext(r *request) {
	p := r.parts
	for p.next < len(p.queue) && p.marks[p.queue[p.next]] != partitionReady {
		p.next++ // an earlier read has covered it
	}
	if p.next == len(p.queue) {
		p.queue, p.next = p.queue[:0], 0
		r.phase = phasePulling
		e.stopMoving(r)
		if p.ended {
			e.fetched(r, finalizedError{r.peer})
		}
		return
	}
	p.from = int(p.queue[p.next])
	p.to = p.from + p.run(p.from, len(p.marks), partitionReady)
	for p.from > 0 && p.marks[p.from-1] == partitionReady {
		p.from--
	}
	r.offset, r.total = p.from*p.bytes, p.to*p.bytes
	for i := p.from; i < p.to; i++ {
		p.marks[i] = partitionArrived
	}
	r.phase = phaseReading
	e.startMoving(r)
	e.submit(r)
}

// partitionsRead continues a receive after it has read the partitions p.from to p.to.
func (e *Engine) partitionsRead(r *request) {
	p := r.parts
	p.left -= p.to - p.from
	p.from, p.to = 0, 0
	e.wakeAll(e.completionWaiters)
	why := e.peers[r.peer].err
	if why == nil && len(e.revoked) > 0 {
		why = e.revoked[r.ctx.id/2]
	}
	if p.left == 0 || why != nil {
		e.fetched(r, why)
		return
	}
	e.readNext(r)
}

// has reports whether the partitions from to to-1 of the receive r have arrived.
func (p *Partitions) has(r *request, from, to int) bool {
	switch {
	case r.phase == phasePosted:
		return false
	case !p.reads:
		return to*p.bytes <= r.offset // their data arrives in order
	case from < p.to && p.from < to:
		return false // they are being read
	}
	return p.run(from, to, partitionArrived) == to-from
}

// Arrived reports whether the partitions from to to-1 of a request of IrecvPartitioned have
// arrived. If they have not, it polls the transports once. If the request has ended with an error
// before they have arrived, Arrived returns the error.
//
// Hot path: no allocation, no system call except the transports'.
func (q Request) Arrived(from, to int) (bool, error) {
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for polled := false; ; polled = true {
		switch {
		case q.r.gen != q.gen: // its result was collected
			return true, nil
		case q.r.parts.has(q.r, from, to):
			return true, nil
		case q.r.done:
			return q.r.err == nil, q.r.err
		case polled:
			e.testFailed()
			return false, nil
		}
		e.poll()
	}
}

// Missing returns the number of partitions of a request of IrecvPartitioned that have not arrived,
// and 0 if the request has ended. If the partitions arrive as one message, Missing counts all of
// them until the end.
func (q Request) Missing() int {
	q.r.e.mu.Lock()
	defer q.r.e.mu.Unlock()
	return q.missing()
}

func (q Request) missing() int {
	if q.doneLocked() {
		return 0
	}
	return q.r.parts.left
}

// AwaitPartition blocks until Missing returns less than missing, an earlier result of it, or the
// request has ended. If ctx ends first, AwaitPartition returns ctx's error.
func (q Request) AwaitPartition(ctx context.Context, missing int) error {
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for q.missing() >= missing && !q.doneLocked() {
		if err := e.awaitIn(ctx, &e.completionWaiters, awaited{}); err != nil {
			return err
		}
	}
	return nil
}
