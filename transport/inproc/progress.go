package inproc

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/transport"
)

// The states of a rank. A state changes only to a later one in this list.
const (
	stateOpen   int32 = iota
	stateLeft         // after Shutdown
	stateClosed       // after Close or Kill
)

// Buffers for messages have sizes of minBuffer << class bytes.
const (
	minBufferShift = 8
	minBuffer      = 1 << minBufferShift
	classes        = 40
)

// event is a completion that waits in a mailbox for a Read. If kind is RecvDone, the message is the
// first n bytes of buf.
type event struct {
	kind transport.CompletionKind
	peer transport.Addr
	op   *transport.Op
	buf  []byte // a buffer that [mailbox.reserve] has returned; nil unless kind is RecvDone
	n    int    // RecvDone: bytes of header and data
	err  error
}

// mailbox is the part of a rank's state that other ranks use too: the queue of its completions,
// the buffers for its received messages, and its registered regions.
type mailbox struct {
	rank  transport.Addr
	limit int          // upper bound of queued in bytes, and the same bound of pooled; see [WithBacklog]
	state atomic.Int32 // written while mu is held

	wake chan struct{} // has capacity 1; a value in it ends a Wait

	mu     sync.Mutex // guards the fields below; see Fabric.mu for the lock order
	opened bool       // Open was called for the rank
	left   bool       // the rank has called Shutdown
	// endQueued says, by peer, that the peer's end was put in the queue, so nothing from the peer
	// may follow.
	endQueued []bool
	refused   map[transport.Addr]bool // the peers for which this rank has called Disconnect; nil: none

	// The queue is a ring buffer: the event with number i is ring[i % len(ring)], for i from head
	// to tail-1.
	ring []event // its length is a power of two
	head uint
	tail uint

	// queued is the total size in bytes of two kinds of buffers: those that reserve has returned
	// and deliver has not yet received, and those in events of the queue.
	queued int
	pooled int               // total size in bytes of the buffers in free
	free   [classes][][]byte // unused buffers by class
	lent   [][]byte          // buffers of the messages that the last Read returned

	// sleeping: Arm has returned true, and [mailbox.notifyLocked] was not called since. The next
	// event must call it.
	sleeping bool
	signaled bool // Signal or Notify was called for the rank, and has not ended a Wait yet
	// waker has the descriptor that [queue.FD] returns. It is nil before FD has made it, and
	// after closeFD.
	waker    *sys.Waker
	wakerSet bool // the waker's descriptor is readable

	regions     []*region // by slot
	freeRegions []*region // the closed ones among regions
}

func newMailbox(rank transport.Addr, size, limit int) *mailbox {
	return &mailbox{
		rank:      rank,
		limit:     limit,
		wake:      make(chan struct{}, 1),
		endQueued: make([]bool, size),
		ring:      make([]event, 64),
	}
}

// endErrorLocked returns nil while the rank is open. After that, it returns the error with which
// operations of peers with the rank fail. The caller holds b.mu.
func (b *mailbox) endErrorLocked() error {
	switch {
	case b.state.Load() == stateOpen:
		return nil
	case b.left:
		return transport.ErrPeerLeft
	default:
		return transport.ErrPeerDown
	}
}

func (b *mailbox) endError() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.endErrorLocked()
}

func classOf(n int) int {
	if n <= minBuffer {
		return 0
	}
	return bits.Len(uint(n-1)) - minBufferShift
}

// reserve returns a buffer for a message of n bytes to the rank, and adds the buffer's size to
// b.queued. If b.queued is not 0 and would exceed b.limit, reserve returns ErrAgain. If the rank
// has ended, it returns the reason. The caller must pass the buffer to deliver.
func (b *mailbox) reserve(n int) ([]byte, error) {
	class := classOf(n)
	size := minBuffer << class
	b.mu.Lock()
	if err := b.endErrorLocked(); err != nil {
		b.mu.Unlock()
		return nil, err
	}
	if b.queued > 0 && b.queued+size > b.limit {
		b.mu.Unlock()
		return nil, transport.ErrAgain
	}
	b.queued += size
	if l := b.free[class]; len(l) > 0 {
		buf := l[len(l)-1]
		b.free[class] = l[:len(l)-1]
		b.pooled -= size
		b.mu.Unlock()
		return buf, nil
	}
	b.mu.Unlock()
	return make([]byte, size), nil
}

// releaseLocked adds a buffer to b.free. If b.pooled would exceed b.limit, or the rank has ended,
// releaseLocked leaves the buffer to the garbage collector. The caller holds b.mu.
func (b *mailbox) releaseLocked(buf []byte) {
	if b.pooled+len(buf) > b.limit || b.state.Load() != stateOpen {
		return
	}
	b.pooled += len(buf)
	class := classOf(len(buf))
	b.free[class] = append(b.free[class], buf)
}

// deliver puts a message from rank from in the queue. The message is the first n bytes of buf,
// which is a buffer from reserve. If deliver returns an error, it has released the buffer.
func (b *mailbox) deliver(from transport.Addr, buf []byte, n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.endErrorLocked()
	if err == nil && b.refused[from] {
		err = errRefused
	}
	if err == nil && b.endQueued[from] {
		err = transport.ErrClosed
	}
	if err != nil {
		b.queued -= len(buf)
		b.releaseLocked(buf)
		return err
	}
	b.pushLocked(event{kind: transport.RecvDone, peer: from, buf: buf, n: n})
	return nil
}

// push puts the completion of one of the rank's own operations in the queue, unless the rank is
// closed.
func (b *mailbox) push(ev event) {
	b.mu.Lock()
	if b.state.Load() != stateClosed {
		b.pushLocked(ev)
	}
	b.mu.Unlock()
}

// pushEnd puts the end of a peer, a PeerDown or PeerLeft, in the queue, unless the rank is closed.
// For each peer only the first call has an effect.
func (b *mailbox) pushEnd(ev event) {
	b.mu.Lock()
	if b.state.Load() != stateClosed && !b.endQueued[ev.peer] {
		b.endQueued[ev.peer] = true
		b.pushLocked(ev)
	}
	b.mu.Unlock()
}

func (b *mailbox) pushLocked(ev event) {
	size := uint(len(b.ring))
	if b.tail-b.head == size {
		ring := make([]event, 2*size)
		for i := range size {
			ring[i] = b.ring[(b.head+i)&(size-1)]
		}
		b.ring, b.head, b.tail = ring, 0, size
		size *= 2
	}
	b.ring[b.tail&(size-1)] = ev
	b.tail++
	if b.sleeping {
		b.notifyLocked()
	}
}

// notifyLocked ends the Wait under way. If there is none, it ends the next Wait. If there is a
// descriptor (see FD), notifyLocked makes it readable. The caller holds b.mu.
func (b *mailbox) notifyLocked() {
	b.sleeping = false
	select {
	case b.wake <- struct{}{}:
	default:
	}
	if b.waker != nil && !b.wakerSet {
		b.waker.Wake()
		b.wakerSet = true
	}
}

// clearWakeLocked takes back a notification that has not ended a Wait yet, and makes the
// descriptor unreadable. The caller holds b.mu.
func (b *mailbox) clearWakeLocked() {
	select {
	case <-b.wake:
	default:
	}
	if b.wakerSet {
		b.waker.Clear()
		b.wakerSet = false
	}
}

// refuse drops all messages of a peer that are in the queue, makes deliver refuse later ones, and
// reports PeerDown.
func (b *mailbox) refuse(peer transport.Addr) {
	b.mu.Lock()
	if b.refused == nil {
		b.refused = make(map[transport.Addr]bool)
	}
	b.refused[peer] = true
	b.filterLocked(func(ev *event) bool {
		if ev.kind != transport.RecvDone || ev.peer != peer {
			return true
		}
		b.queued -= len(ev.buf)
		b.releaseLocked(ev.buf)
		return false
	})
	b.mu.Unlock()
	b.pushEnd(event{kind: transport.PeerDown, peer: peer, err: fail("disconnect", peer, errDisconnected)})
}

// filterLocked drops the events for which the function which returns false. The caller holds
// b.mu.
func (b *mailbox) filterLocked(which func(ev *event) bool) {
	keep := b.head
	mask := uint(len(b.ring) - 1)
	for i := b.head; i != b.tail; i++ {
		ev := b.ring[i&mask]
		b.ring[i&mask] = event{}
		if which(&ev) {
			b.ring[keep&mask] = ev
			keep++
		}
	}
	b.tail = keep
}

// dropLocked drops what a rank that has called Shutdown does not need any more: the messages in the
// queue, and the unused buffers. If the rank is closed, dropLocked also drops all other events, and
// the buffers of the messages that the last Read returned. The caller holds b.mu.
func (b *mailbox) dropLocked() {
	closed := b.state.Load() == stateClosed
	b.filterLocked(func(ev *event) bool { return ev.kind != transport.RecvDone && !closed })
	b.queued, b.pooled = 0, 0
	b.free = [classes][][]byte{}
	if closed {
		b.lent = nil
	}
}

func (b *mailbox) closeFD() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waker != nil {
		b.waker.Close()
		b.waker, b.wakerSet = nil, false
	}
}

// queue implements transport.CompletionQueue for a rank. The completions are in the mailbox.
type queue struct {
	mailbox *mailbox

	// The RMA operations that WithRMADelay delays, in the order posted, linked by Op.Next. A Read
	// executes an operation when the count reads has reached the operation's Op.Scratch.
	first, last *transport.Op
	reads       uint64       // number of Reads that found a delayed operation
	ep          *rmaEndpoint // executes the operations; nil until the first one is delayed

	timer *time.Timer // for the timeout of Wait, which reuses it; nil before the first use
}

// delay queues an RMA operation of ep, so that the n-th Read from now executes it.
func (q *queue) delay(ep *rmaEndpoint, op *transport.Op, n uint64) {
	q.ep = ep
	op.Next, op.Scratch = nil, q.reads+n
	if q.last == nil {
		q.first = op
	} else {
		q.last.Next = op
	}
	q.last = op
}

func (q *queue) executeDelayed() {
	q.reads++
	for q.first != nil && q.first.Scratch <= q.reads {
		op := q.first
		if q.first = op.Next; q.first == nil {
			q.last = nil
		}
		op.Next = nil
		q.ep.execute(op)
	}
}

// Read returns the oldest completions. Before that, it executes the delayed RMA operations that are
// due.
//
// Hot path: no allocation in steady state, no copy of a message, no system call.
func (q *queue) Read(c []transport.Completion) (int, error) {
	b := q.mailbox
	if q.first != nil && b.state.Load() == stateOpen {
		q.executeDelayed()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state.Load() == stateClosed {
		return 0, transport.ErrClosed
	}
	for i, buf := range b.lent {
		b.releaseLocked(buf)
		b.lent[i] = nil
	}
	b.lent = b.lent[:0]
	mask := uint(len(b.ring) - 1)
	n := 0
	for ; n < len(c) && b.head != b.tail; n++ {
		ev := &b.ring[b.head&mask]
		c[n] = transport.Completion{Kind: ev.kind, Peer: ev.peer, Op: ev.op, Err: ev.err}
		if ev.kind == transport.RecvDone {
			c[n].Msg = ev.buf[:ev.n:ev.n]
			b.queued -= len(ev.buf)
			b.lent = append(b.lent, ev.buf)
		}
		*ev = event{}
		b.head++
	}
	return n, nil
}

// Arm returns false if the mailbox holds a completion, an RMA operation is delayed, or the rank is
// closed. If Arm returns true, the next event or Signal ends the Wait that follows.
func (q *queue) Arm() bool {
	b := q.mailbox
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.head != b.tail || q.first != nil || b.state.Load() == stateClosed {
		return false
	}
	if !b.signaled {
		b.clearWakeLocked()
	}
	b.sleeping = true
	return true
}

// Wait blocks the calling goroutine, but not its thread.
func (q *queue) Wait(timeout time.Duration) error {
	b := q.mailbox
	switch {
	case timeout < 0:
		<-b.wake
	case timeout == 0:
		select {
		case <-b.wake:
		default:
			return q.ended()
		}
	default:
		if q.timer == nil {
			q.timer = time.NewTimer(timeout)
		} else {
			q.timer.Reset(timeout)
		}
		select {
		case <-b.wake:
			q.timer.Stop()
		case <-q.timer.C:
			return q.ended()
		}
	}
	b.mu.Lock()
	b.signaled = false
	if b.head != b.tail || b.state.Load() == stateClosed {
		// Since the receive from b.wake, the rank may have called Arm again. So the next Wait
		// must end too.
		b.notifyLocked()
	} else {
		b.clearWakeLocked()
	}
	b.mu.Unlock()
	return q.ended()
}

func (q *queue) ended() error {
	if q.mailbox.state.Load() == stateClosed {
		return transport.ErrClosed
	}
	return nil
}

// Signal ends the Wait under way. If there is none, it ends the next Wait.
func (q *queue) Signal() {
	b := q.mailbox
	b.mu.Lock()
	b.signaled = true
	b.notifyLocked()
	b.mu.Unlock()
}

// FD returns the descriptor, which the first call makes. ok is false if the descriptor cannot be
// made, for example because the process has no descriptor left or the rank is closed.
func (q *queue) FD() (int, bool) {
	b := q.mailbox
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waker == nil {
		if b.state.Load() == stateClosed {
			return -1, false
		}
		w, err := sys.NewWaker()
		if err != nil {
			return -1, false
		}
		b.waker = w
		if len(b.wake) > 0 { // an event or a Signal came before the descriptor existed
			b.notifyLocked()
		}
	}
	return b.waker.FD(), true
}
