package inproc

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/transport"
)

// The states of a rank; they only grow.
const (
	stateOpen   int32 = iota
	stateLeft         // after Shutdown
	stateClosed       // after Close or Kill
)

// Buffers come in sizes minBuffer << class.
const (
	minBufferShift = 8
	minBuffer      = 1 << minBufferShift
	classes        = 40
)

// event is a completion in a mailbox. If it is a message, the message is the first n
// bytes of buf, a buffer of the pool.
type event struct {
	kind transport.CompletionKind
	peer transport.Addr
	op   *transport.Op
	buf  []byte
	n    int
	err  error
}

// mailbox is the fabric's state of a rank: the queue of its completions, in the order of
// their events, its buffers and its regions.
type mailbox struct {
	rank  transport.Addr
	limit int          // largest value of queued, and of pooled
	state atomic.Int32 // changed under mu

	wake chan struct{} // capacity 1; a token ends a Wait

	mu        sync.Mutex // see Fabric.mu for the order
	opened    bool
	left      bool                    // it has ended by Shutdown
	endQueued []bool                  // by rank: the rank's end is in the queue, and nothing from it may follow
	refused   map[transport.Addr]bool // by Disconnect

	ring []event // its length is a power of two
	head uint
	tail uint

	queued int // bytes of buffers reserved or in the queue
	pooled int // bytes in free
	free   [classes][][]byte
	lent   [][]byte // buffers that the last Read returned

	sleeping bool       // armed: the next event must end the Wait
	signaled bool       // a Signal that no Wait has taken yet
	waker    *sys.Waker // nil before FD is called
	wakerSet bool       // the waker's descriptor is readable

	regions     []*region // by slot
	freeRegions []*region
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

// endErrorLocked returns nil while the rank is open, then the reason why operations with it fail.
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

// reserve returns a buffer for a message of n bytes and counts it as queued. If too much is
// queued, it returns ErrAgain.
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

// releaseLocked returns a buffer to the pool, or drops it if the pool is full.
func (b *mailbox) releaseLocked(buf []byte) {
	if b.pooled+len(buf) > b.limit || b.state.Load() != stateOpen {
		return
	}
	b.pooled += len(buf)
	class := classOf(len(buf))
	b.free[class] = append(b.free[class], buf)
}

// deliver queues a message of n bytes in buf, a buffer from reserve.
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

// push queues an event of the rank's own operations.
func (b *mailbox) push(ev event) {
	b.mu.Lock()
	if b.state.Load() != stateClosed {
		b.pushLocked(ev)
	}
	b.mu.Unlock()
}

// pushEnd queues the end of a peer, at most once for each peer.
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

// notifyLocked ends the Wait under way, or the next one.
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

// clearWakeLocked reverts notifyLocked.
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

// refuse drops all messages of a peer, now and later, and reports the peer as down.
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

// filterLocked drops all events except those for which which returns true.
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

// dropLocked drops the messages in the queue after the rank has ended. If the rank is closed, it
// drops all events.
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

// queue is the completion queue of a rank.
type queue struct {
	mailbox *mailbox

	// Delayed operations in the order posted, linked by Op.Next. Op.Scratch is
	// the number of the Read that executes the operation.
	first, last *transport.Op
	reads       uint64
	ep          *rmaEndpoint

	timer *time.Timer // reused by Wait
}

// delay queues an operation that the n-th Read from now executes.
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

// Read returns events, oldest first.
//
// Hot path: no allocation, no lock held while copying, no system call.
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

// Arm returns false if there is something to Read. Otherwise the next event ends the Wait.
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

// Wait blocks the calling goroutine.
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
		b.notifyLocked() // the rank may have armed again meanwhile
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

// Signal ends the Wait under way or, if there is none, the next Wait.
func (q *queue) Signal() {
	b := q.mailbox
	b.mu.Lock()
	b.signaled = true
	b.notifyLocked()
	b.mu.Unlock()
}

// FD makes the descriptor at its first call. ok is false if the system has no descriptor
// left.
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
		if b.signaled {
			b.notifyLocked()
		}
	}
	return b.waker.FD(), true
}
