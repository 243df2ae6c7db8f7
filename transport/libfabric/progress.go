//go:build libfabric

package libfabric

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// completionQueue implements transport.CompletionQueue for its domain, which has all the state.
type completionQueue struct{ d *domain }

// Read posts receive buffers, reads the fabric's completion queue, which drives the fabric's
// progress, and stores messages and completions in c. It returns their number. If the queue has
// failed, Read returns the error as soon as no completion is left.
//
// Hot path: no allocation, one call to C for each lane; not so for failures, close messages and messages
// that arrive out of order, nor while parts of divided operations wait.
func (q *completionQueue) Read(c []transport.Completion) (int, error) {
	d := q.d
	if d.closed {
		return 0, transport.ErrClosed
	}
	d.done.Begin(c)
	d.progress()
	n := d.done.End()
	if n > 0 {
		d.found.Store(true)
	} else if d.broken != nil && !d.done.Pending() {
		return 0, d.broken
	}
	return n, nil
}

func (d *domain) progress() {
	if d.loop.Waiting() {
		d.loop.Deliver(&d.done, d.cfg.Self, d.dropMessages)
	}
	if d.ep == nil || d.broken != nil {
		return
	}
	room := d.done.Room()
	if d.dropMessages {
		room = batch
	}
	if len(d.resends) > 0 {
		d.resend()
	}
	if len(d.waiting) > 0 {
		d.postWaiting()
	}
	// poll may read no more completions than fit into the slice of Read, because each may be a
	// message.
	if room > 0 {
		d.broken = d.poll(room)
	}
	if len(d.lanes) > 1 && d.broken == nil {
		d.broken = d.pollOthers()
	}
	if len(d.waiting) > 0 || !d.waitDue.IsZero() {
		d.pauseWaiting()
	}
	if len(d.pendingAcks) > 0 {
		d.sendAcks()
	}
}

// After more than manyEmptyPolls polls in a row without a completion, each poll reads the queue at
// least idleTries times while it is empty, even if domain.tries is smaller. The reason is that
// peers' reads and writes of this rank's memory may progress only while this rank reads the queue,
// although they cause no completion here.
const (
	manyEmptyPolls = 64
	idleTries      = 16
)

// poll posts the receive buffers in [arena.toPost], as many as libfabric takes, and reads and
// handles up to room completions. It also handles failed operations, if libfabric reports any.
func (d *domain) poll(room int) error {
	a := d.arena
	for len(a.toPost) > 0 {
		i := a.toPost[len(a.toPost)-1]
		b := &a.bufs[i]
		if !d.raw.PostLater(fi.AddressOf(b.mem), len(b.mem), a.context(slotCount+i)) {
			break
		}
		a.toPost = a.toPost[:len(a.toPost)-1]
		b.used, b.done, b.end, b.failed = false, 0, 0, false
	}
	d.polls++
	var flags fi.Flags
	if d.multiRecv {
		flags = fi.FlagMultiRecv
	}
	tries := d.tries
	if d.emptyPolls > manyEmptyPolls {
		tries = max(tries, idleTries)
	}
	entries, rc := d.raw.Poll(flags|fi.FlagCompletion, a.desc, room, tries)
	if d.emptyPolls++; len(entries) > 0 {
		d.emptyPolls = 0
	}
	for i := range entries {
		if err := d.completed(&entries[i]); err != nil {
			return err
		}
	}
	switch rc {
	case 0, fi.ErrAgain, fi.ErrInterrupted:
		return nil
	case fi.ErrAvail:
		return d.failures()
	default:
		return d.queueFailed(d.lane, rc)
	}
}

// completed handles the completion e of a successful operation.
func (d *domain) completed(e *fi.RawEntry) error {
	i := d.arena.index(e.Context)
	switch {
	case i < 0:
		return nil // an injected message; some providers report its completion
	case i < slotCount:
		d.ended(i, nil)
		return nil
	}
	return d.received(i-slotCount, e)
}

// ended ends what was in flight in the main lane for the operation of the [slot] with index i, with the
// result err: the operation, or a part of it.
func (d *domain) ended(i int, err error) {
	if d.arena.slots[i].div.parts > 0 {
		d.mainDone(i, err)
		return
	}
	d.slotDone(i, err)
}

// slotDone ends the operation of the [slot] with index i with the result err, frees the slot, and
// emits an OpDone if slot.op is not nil. If the slot is free, slotDone does nothing.
func (d *domain) slotDone(i int, err error) {
	a := d.arena
	s := &a.slots[i]
	op := s.op
	switch {
	case s.what == opNone:
		return // the provider reported the operation twice
	case op != nil && s.what == opAtomic && err == nil:
		_, _, fetch := operands(a.slotBuf(i))
		copy(op.Fetch, fetch)
	}
	if s.what == opRead || s.what == opWrite {
		d.peers[s.peer].rmaInFlight--
	}
	if s.cause != nil {
		d.peers[s.peer].resends--
	}
	a.free(i)
	if op != nil {
		d.opDone(op, err)
	}
}

// message checks the frame of the received message b. If the message is the next one of its peer in
// the order of numbers, message handles it; otherwise it passes it to [domain.keep]. If the frame
// has no valid token, message drops b, emits a PeerNotice, and does not count b as a message of any
// peer.
func (d *domain) message(b []byte) {
	f, rest, ok := parseFrame(b)
	repeated := f.kind&kindRepeated != 0
	f.kind &^= kindRepeated
	if !ok || uint64(f.source) >= uint64(len(d.peers)) {
		d.dropUnauthenticated()
		return
	}
	from := transport.Addr(f.source)
	p := d.tokens(from)
	if f.token != p.rx || from == d.cfg.Self {
		d.dropUnauthenticated()
		return
	}
	p.contacted = true
	p.repeats = p.repeats || repeated
	if f.number != (p.got+1)&numberMask {
		d.keep(from, f, rest)
		return
	}
	d.handle(from, f.kind, rest)
	if p.early != nil {
		d.deliverKept(from)
	}
}

// handle processes a message from peer from, the one that follows the last handled message in the
// order of numbers.
func (d *domain) handle(from transport.Addr, k kind, msg []byte) {
	p := &d.peers[from]
	p.got++
	switch k {
	case kindData:
		if !d.dropMessages && p.err == nil {
			d.deliver(transport.Completion{Kind: transport.RecvDone, Peer: from, Msg: msg})
		}
	case kindClose:
		if p.err == nil {
			p.closeReceived, p.err = true, transport.ErrPeerLeft
			p.clearNoRoom() // so that ackTimeout begins with the first attempt to acknowledge
			d.pendingAcks = append(d.pendingAcks, from)
		}
	case kindCloseAck:
		p.closeAcked = true
	default:
		_ = d.peerDown(from, "receive", fmt.Errorf("%w: %w: message of kind %d", transport.ErrPeerDown, transport.ErrProtocol, k))
	}
}

// deliver stores the message c in the slice of Read; c.Msg may refer to a receive buffer, which is
// not posted before the next Read. The slice may be full, because one completion can make several
// messages of [early] deliverable. Then deliver copies the message and queues it for a later Read.
// It does the same with each further message as long as messages are queued.
func (d *domain) deliver(c transport.Completion) {
	if d.done.Message(c) {
		return
	}
	c.Msg = slices.Clone(c.Msg)
	d.done.Later(c)
}

// dropUnauthenticated queues a PeerNotice for a later Read about a message without a valid token.
// The message's sender may not belong to the job. The caller drops the message.
func (d *domain) dropUnauthenticated() {
	d.done.Later(transport.Completion{Kind: transport.PeerNotice, Peer: -1, Err: errToken})
}

// maxFailures is the largest number of error entries that one call of [domain.failures] reads.
const maxFailures = 64

// failures reads up to maxFailures error entries from the queue and ends the operations that they
// belong to. It returns an error if the queue has overrun or if no receive buffer is left.
func (d *domain) failures() error {
	for range maxFailures {
		e := d.raw.ReadErr()
		if e == nil {
			return nil
		}
		if err := d.failed(e); err != nil {
			return err
		}
	}
	return nil
}

func (d *domain) failed(e *fi.RawError) error {
	if e.Err == fi.ErrOverrun {
		return d.queueFailed(d.lane, e)
	}
	i := d.arena.index(e.Context)
	if i < 0 {
		i, e.Err = d.slotWithoutContext(e)
	}
	if i < 0 {
		// e is about an access by a peer, or about an injected message, whose destination the provider
		// does not report. A provider whose messages are injected fails them only if the connection is
		// lost ([domain.mayRefuse] is not set), and then the next operation with the peer fails, too.
		return nil
	}
	if i >= slotCount {
		return d.receiveFailed(i-slotCount, e)
	}
	s := &d.arena.slots[i]
	switch s.what {
	case opNone:
	case opSend, opControl:
		d.messageFailed(i, e)
	default:
		d.accessFailed(i, e)
	}
	return nil
}

// accessFailed ends the read, write or atomic operation of the [slot] with index i, or the part of it in
// the main lane, whose failure is e.
func (d *domain) accessFailed(i int, e *fi.RawError) {
	peer, what := d.arena.slots[i].peer, d.arena.slots[i].what.String()
	switch {
	case d.meansPeerGone(e):
		d.ended(i, d.peerDown(peer, what, fmt.Errorf("%w: %w", transport.ErrPeerDown, e)))
	case meansRefused(e.Err):
		d.ended(i, d.peerError(what, peer, fmt.Errorf("%w: %w", transport.ErrKey, e)))
	default:
		d.ended(i, d.peerError(what, peer, e))
	}
}

// slotWithoutContext finds the operation to which e belongs, an error entry without a context. It
// returns the index of the operation's [slot] and the errno of the operation. It finds a slot only
// with shm. If the kernel copies the data, shm does a read or write within the posting call. If
// that fails, shm of libfabric 1.17 does not report which operation it was, but it is the oldest
// one that has not ended. slotWithoutContext returns -1 as the index if it finds no slot: for other
// providers, if no such operation is in flight, and if e reports a peer's failed access to this
// rank's memory, which shm also reports here.
func (d *domain) slotWithoutContext(e *fi.RawError) (int, fi.Errno) {
	found := -1
	if d.info.EP.Protocol != fi.ProtoSHM || e.Flags&(fi.FlagRemoteRead|fi.FlagRemoteWrite) != 0 {
		return found, e.Err
	}
	slots := d.arena.slots
	for i := range slots {
		s := &slots[i]
		copied := s.what == opRead || s.what == opWrite && d.writeFlags&fi.FlagDeliveryComplete == 0
		if copied && (found < 0 || s.order < slots[found].order) {
			found = i
		}
	}
	if found >= 0 && d.peerGone(slots[found].peer) {
		return found, fi.ErrNotConnected // the operation failed because the target process has ended
	}
	return found, fi.ErrFault // the operation failed because the target has no memory at the remote address
}
