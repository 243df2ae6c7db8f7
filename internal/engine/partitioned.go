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
//	                 ◄─── Pull ───           the first message has matched
//	Ready(2)         ─── Ready 2 ──►         reads partition 2
//	Ready(0)         ─── Ready 0 ──►           │
//	Ready(1)         ─── Ready 1 ──►           │
//	                                         reads partitions 0 and 1
//	                 ◄─── FIN ────           all partitions have arrived
//
// The receiver has one read in flight. While it reads, further partitions become ready, and the next
// read covers as many of them as are adjacent. So the faster partitions become ready, the longer the
// reads are: the cost is close to that of one message.
//
// A MsgReady names the receiver's Partitions, whose id the sender knows from the MsgPull, and the
// number of the message among those of the Partitions. So for all messages after the first one, the
// sender need not wait for an answer to the RTS. It reports partitions when the RTS has left. The
// receive need not be posted then.
//
// If the receiver cannot read the sender's memory, it answers with MsgCTS, as for any rendezvous.
// Then the sender sends the data when all partitions are ready. The data may overtake a MsgReady,
// which the receiver then ignores, because it is for an earlier message.
//
// If the receiver's buffer has another length, package mpi posts an ordinary receive without a buffer. The
// receiver then answers with MsgFin, which ends the send even if partitions are not ready.
//
// If the sender is in Finalize and partitions are not ready, it reports that by a MsgReady of 0
// partitions, and the receive ends with ErrFinalized.

// Partitions is the state of a partitioned message on one of its ranks. A program that sends or
// receives such messages repeatedly uses the same Partitions, for one message at a time, and always
// with the same Partitions of the peer. The engine's lock guards the fields.
type Partitions struct {
	bytes int // of a partition
	marks []partitionMark
	left  int // number of partitions that are not ready (sender) or have not arrived (receiver)
	// Number of the message, from 1 on, modulo 2³². Of a sender: of the last one whose RTS has left. Of a
	// receiver: of the one that marks is for.
	round int32
	ended bool // no more partitions become ready, because the sender is in Finalize

	// Of a sender.
	remote uint64 // id of the receiver's Partitions; 0: not known yet
	wanted int    // length in the MsgCTS that has arrived for the message; 0: none has
	target uint64 // with wanted: number of the receiver's request

	// Of a receiver.
	id       uint64   // key in Engine.partitions
	peer     int32    // world rank of the sender
	ctx      *Context // of the receives
	idSent   bool     // a MsgPull or MsgCTS with id was sent
	finished bool     // the last receive has got all partitions
	r        *request // slot of the last receive
	reads    bool     // the last receive reads the partitions by RMA
	queue    []int32  // first partitions of the MsgReady that have arrived, in their order
	next     int      // index in queue of the first one that readNext has not looked at
	from, to int      // the read in progress is of the partitions from to to-1
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

// pullMin is a length in bytes. A longer message is faster as a partitioned message than as one eager
// message for each partition.
const pullMin = 1 << 20

// Pulls reports whether a partitioned message to a rank of the group is useful, which has n
// partitions of the given length in bytes. That is so if an ordinary message of the whole length would
// be a rendezvous that the receiver may read by RMA, and messages of single partitions would not be
// eager or would be many. For this rank itself, Pulls returns false.
func (c *Context) Pulls(rank, n, bytes int) bool {
	to := c.world(rank)
	if int(to) == c.e.rank {
		return false
	}
	rail := c.e.peers[to].rail // New has set it and its fields, and nothing changes them
	return rail.rma != nil && n*bytes > rail.eager && (bytes > rail.eager || n*bytes >= pullMin)
}

// IsendPartitioned starts a send of buf, whose partitions p describes, to another rank. The engine
// uses p until the request is complete, and a partition of buf from its Ready on. The receiver uses
// IrecvPartitioned with as many partitions and a buffer of the same length. Then the request does not
// complete without an error before all partitions are ready. The send is a rendezvous, also if buf is
// short.
//
// Hot path: no allocation in steady state.
func (c *Context) IsendPartitioned(buf []byte, env Env, p *Partitions) Request {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(p.marks)
	p.left, p.wanted, p.ended = len(p.marks), 0, false
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
// sender's partitions. The engine uses buf and p until the request is complete, and p until
// ForgetPartitions.
//
// Hot path: no allocation in steady state.
func (c *Context) IrecvPartitioned(buf []byte, env Env, p *Partitions) Request {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if !p.finished { // the first receive, or the first one after a failure
		delete(e.partitions, p.id) // a MsgReady for the old id is ignored
		e.lastPartitions++
		p.id, p.peer, p.ctx, p.idSent = e.lastPartitions, c.world(env.Peer), c, false
		e.partitions[p.id] = p
		p.finish()
	}
	p.left, p.reads, p.finished = len(p.marks), false, false
	return e.public(c.startRecv(buf, &env, true, p), false)
}

// finish prepares the Partitions of a receiver for the MsgReady of the next message. The caller calls it
// before the sender can know that the last message has ended.
func (p *Partitions) finish() {
	p.round++
	clear(p.marks)
	p.queue, p.next, p.from, p.to = p.queue[:0], 0, 0, 0
	p.finished = true
}

// ForgetPartitions ends the use of p, the state of receives. No message of p is under way.
// Context.Close does the same for all Partitions of its receives.
func (e *Engine) ForgetPartitions(p *Partitions) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.partitions, p.id)
	p.r = nil
}

// Ready marks partition i of a request of IsendPartitioned as ready. It does nothing if the request
// has ended.
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
	case r.phase == phaseQueued: // reportReady follows when the RTS has left
	case p.wanted > 0:
		if p.left == 0 {
			e.startMoving(r)
			e.stream(r, p.target, p.wanted)
		}
	case p.remote != 0:
		e.startMoving(r)
		e.sendReady(r, i, 1)
	default:
		e.poll() // the receiver's answer to the RTS may have arrived
	}
}

// rtsLeft continues the partitioned send r after its RTS has left.
func (e *Engine) rtsLeft(r *request) {
	p := r.parts
	p.round++
	if p.remote != 0 {
		e.reportReady(r)
	}
}

// reportReady reports to the receiver which partitions are ready.
func (e *Engine) reportReady(r *request) {
	p := r.parts
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
}

// sendReady reports to the receiver that n partitions from the given one on are ready. If n is 0, it
// reports that no more partitions become ready.
func (e *Engine) sendReady(r *request, from, n int) {
	m := wire.Message{Kind: wire.MsgReady, Tag: r.parts.round, Handle: r.parts.remote, Addr: uint64(from), Key: uint64(n)}
	e.sendControl(r.peer, m, nil)
}

// receivePull handles a MsgPull: the receiver of the send r reads the partitions that are ready.
func (e *Engine) receivePull(source int32, m *wire.Message) error {
	r, err := e.slot(m.Handle, kindSend, source)
	if r == nil {
		return err
	}
	p := r.parts
	if p == nil || !r.awaitsReply() || p.remote != 0 || m.Key == 0 {
		return errHandle
	}
	p.remote = m.Key
	e.reportReady(r)
	return nil
}

// receiveCTS handles a MsgCTS for the partitioned send r: the receiver cannot read the data. The
// sender sends it when all partitions are ready.
func (e *Engine) receiveCTS(r *request, m *wire.Message) error {
	p := r.parts
	if p.wanted > 0 || m.Length == 0 || m.Addr == 0 {
		return errHandle
	}
	p.wanted, p.target, p.remote = m.Length, m.Key, m.Addr
	if p.left == 0 {
		e.stream(r, p.target, p.wanted)
		return nil
	}
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
// in Finalize and partitions are not ready. If this rank does not know the receiver's Partitions yet,
// it does nothing.
func (e *Engine) endPartitions(r *request) {
	p := r.parts
	if e.leaving != nil && p != nil && p.remote != 0 && p.left > 0 && !p.ended && !r.done && r.phase != phaseQueued {
		p.ended = true
		e.sendReady(r, 0, 0)
	}
}

// pull starts to read the partitions of the message that r has matched. m is the RTS. If the sender
// does not know the receiver's Partitions yet, pull reports them.
func (e *Engine) pull(r *request, m *wire.Message) {
	p := r.parts
	p.reads = true
	if !p.idSent {
		p.idSent = true
		e.sendControl(r.peer, wire.Message{Kind: wire.MsgPull, Handle: m.Handle, Key: p.id}, nil)
	}
	e.readNext(r)
}

// receiveReady handles a MsgReady: partitions of a message are ready.
//
// Hot path: no allocation in steady state.
func (e *Engine) receiveReady(source int32, m *wire.Message) error {
	p := e.partitions[m.Handle]
	switch {
	case p == nil && m.Handle <= e.lastPartitions:
		return nil // ForgetPartitions was called, which the peer could not know yet
	case p == nil || p.peer != source || !p.idSent || p.ended || m.Tag-p.round > 0:
		return errHandle
	case m.Tag != p.round:
		return nil // for an earlier message, whose data came by MsgData
	case m.Addr >= uint64(len(p.marks)) || m.Key > uint64(len(p.marks))-m.Addr:
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
	r := p.r
	switch {
	case r == nil || r.parts != p || r.done: // the next receive has not started
	case r.phase == phasePulling:
		e.readNext(r)
	case r.phase == phaseReceiving && p.ended:
		e.fetched(r, finalizedError{source})
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

// partitionsRead continues a receive after it has read the partitions p.from to p.to-1.
func (e *Engine) partitionsRead(r *request) {
	p := r.parts
	p.left -= p.to - p.from
	p.from, p.to = 0, 0
	e.wakeAll(e.completionWaiters)
	why := e.peers[r.peer].err
	if why == nil && len(e.revoked) > 0 {
		why = e.revoked[r.ctx.id/2]
	}
	switch {
	case why != nil:
		e.fetched(r, why)
	case p.left == 0:
		p.finish()
		e.fetched(r, nil)
	default:
		e.readNext(r)
	}
}

// has reports whether the partitions from to to-1 of the receive r have arrived, which has not ended
// without an error.
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

// Arrived reports whether the partitions from to to-1 of a request of IrecvPartitioned have arrived.
// If they have not, it polls the transports once. If the request has ended with an error before they
// have arrived, Arrived returns the error.
//
// Hot path: no allocation, no system call except the transports'.
func (q Request) Arrived(from, to int) (bool, error) {
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for polled := false; ; polled = true {
		r := q.r
		switch {
		case r.gen != q.gen || r.done && r.err == nil: // the first: its result was collected
			return true, nil
		case r.parts.has(r, from, to):
			return true, nil
		case r.done:
			return false, r.err
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
