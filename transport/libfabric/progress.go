//go:build libfabric

package libfabric

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// completionQueue is the domain's progress as the user sees it.
type completionQueue struct{ d *domain }

// Read posts the receive buffers that are used up again, drives the fabric's progress and delivers
// completions and messages.
//
// Hot path: no allocation, one call to C.
func (q *completionQueue) Read(c []transport.Completion) (int, error) {
	d := q.d
	if d.closed {
		return 0, transport.ErrClosed
	}
	d.done.Begin(c)
	d.deferring = false
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
	// Each completion may be a message, which needs an entry of the user's slice.
	if room > 0 {
		d.broken = d.poll(room)
	}
	if len(d.pendingAcks) > 0 {
		d.sendAcks()
	}
}

// After manyEmptyPolls empty polls, each poll reads the queue at least idleTries times. Peers' reads
// and writes of this rank's memory progress only while it reads the queue, and cause no completion.
const (
	manyEmptyPolls = 64
	idleTries      = 16
)

// poll posts receives and reads up to room completions.
func (d *domain) poll(room int) error {
	a := d.arena
	for len(a.toPost) > 0 {
		i := a.toPost[len(a.toPost)-1]
		b := &a.bufs[i]
		if !d.raw.PostLater(fi.AddressOf(b.mem), len(b.mem), a.context(slotCount+i)) {
			break
		}
		a.toPost = a.toPost[:len(a.toPost)-1]
		b.used, b.done, b.end = false, 0, 0
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
		return fmt.Errorf("%w: %w", errQueue, rc)
	}
}

// completed handles the completion of a successful operation.
func (d *domain) completed(e *fi.RawEntry) error {
	i := d.arena.index(e.Context)
	switch {
	case i < 0:
		return nil // an injected message; some providers report its completion
	case i < slotCount:
		d.slotDone(i, nil)
		return nil
	}
	return d.received(i-slotCount, e)
}

// slotDone ends the operation of slot i with err, frees the slot and reports OpDone if the user
// waits for it.
func (d *domain) slotDone(i int, err error) {
	a := d.arena
	s := &a.slots[i]
	op := s.op
	switch {
	case s.what == opNone:
		return // the provider reported it twice
	case op != nil && s.what == opAtomic && err == nil:
		_, _, fetch := operands(a.slotBuf(i))
		copy(op.Fetch, fetch)
	}
	if s.what == opRead || s.what == opWrite {
		d.peers[s.peer].rmaInFlight--
	}
	a.free(i)
	if op != nil {
		d.opDone(op, err)
	}
}

// received handles a message in receive buffer i. When the buffer is used up, received queues it
// for posting.
func (d *domain) received(i int, e *fi.RawEntry) error {
	a := d.arena
	b := &a.bufs[i]
	n, at := int(e.Len), 0
	if !d.multiRecv {
		b.used = true
	} else {
		if n > 0 {
			at = int(e.Buf - fi.AddressOf(b.mem))
		}
		b.done += n
		if e.Flags&fi.FlagMultiRecv != 0 {
			b.used = true
			if d.packed {
				b.end = at + n
			}
		}
	}
	if at < 0 || n < 0 || n > len(b.mem) || at > len(b.mem)-n {
		return errBuffer
	}
	if n > 0 {
		d.message(b.mem[at : at+n : at+n])
	}
	if b.used && b.done >= b.end && !b.lost {
		a.toPost = append(a.toPost, i)
	}
	return nil
}

// message checks the frame of a received message. It drops a message without a valid token before
// it does anything else for its sender.
func (d *domain) message(b []byte) {
	f, rest, ok := parseFrame(b)
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
	if f.number != (p.got+1)&numberMask {
		d.keep(from, f, rest)
		return
	}
	d.handle(from, f.kind, rest)
	if p.early != nil {
		d.deliverKept(from)
	}
}

// handle processes the message that is next in the peer's order.
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
			p.clearNoRoom() // ackTimeout begins with the first attempt to acknowledge
			d.pendingAcks = append(d.pendingAcks, from)
		}
	case kindCloseAck:
		p.closeAcked = true
	default:
		d.peerDown(from, "receive", fmt.Errorf("%w: %w: message of kind %d", transport.ErrPeerDown, transport.ErrProtocol, k))
	}
}

// deliver gives the user a message. Its bytes stay in the receive buffer until the next Read. If
// kept messages have filled the room that Read reserved, deliver copies the message, and queues it
// and all later ones for the next Read.
func (d *domain) deliver(c transport.Completion) {
	if !d.done.Full() && !d.deferring {
		d.done.Out = append(d.done.Out, c)
		return
	}
	d.deferring = true
	c.Msg = slices.Clone(c.Msg)
	d.done.Later(c)
}

// dropUnauthenticated gives the user a PeerNotice about a message that did not prove that its sender
// belongs to the job. The caller drops the message.
func (d *domain) dropUnauthenticated() {
	d.done.Later(transport.Completion{Kind: transport.PeerNotice, Peer: -1, Err: errToken})
}

// maxFailures bounds the error entries that one Read takes from the queue.
const maxFailures = 64

// failures reads the error entries and ends the operations that they name.
func (d *domain) failures() error {
	for range maxFailures {
		e, ok := d.raw.ReadErr()
		if !ok {
			return nil
		}
		if err := d.failed(e); err != nil {
			return err
		}
	}
	return nil
}

func (d *domain) failed(e fi.RawError) error {
	if e.Err == fi.ErrOverrun {
		return fmt.Errorf("%w: %w", errQueue, e.Err)
	}
	i := d.arena.index(e.Context)
	if i < 0 {
		i, e.Err = d.slotWithoutContext(e)
	}
	if i < 0 {
		return nil // an injected message: the provider does not report its destination
	}
	if i >= slotCount {
		return d.receiveFailed(i-slotCount, e)
	}
	s := &d.arena.slots[i]
	peer, what := s.peer, s.what.String()
	oneSided := s.what == opRead || s.what == opWrite || s.what == opAtomic
	refused := rmaError(e.Err)
	switch {
	case s.what == opNone:
		return nil
	case oneSided && refused != nil:
		d.slotDone(i, d.peerError(what, peer, refused))
	default:
		// The message or access is lost, so the order of later ones is lost, too.
		d.peerDown(peer, what, fmt.Errorf("%w: %w", transport.ErrPeerDown, e.Err))
		err := d.peers[peer].err
		if err == nil { // the peer is this process
			err = d.peerError(what, peer, e.Err)
		}
		d.slotDone(i, err)
	}
	return nil
}

// receiveFailed replaces the buffer of a failed receive, so that later messages can be received.
func (d *domain) receiveFailed(i int, e fi.RawError) error {
	switch {
	case e.Err == fi.ErrCanceled:
	case d.multiRecv:
		return d.arena.retire(i)
	default:
		d.arena.toPost = append(d.arena.toPost, i)
	}
	return nil
}

// slotWithoutContext finds the slot of an error entry without a context, and its errno. If the
// kernel copies, shm ends a read or write within the call; shm of 1.17 does not report which one
// failed, but it is the oldest. The slot is -1 if the error belongs to no operation of this rank:
// shm also reports peers' failed accesses to this rank's memory.
func (d *domain) slotWithoutContext(e fi.RawError) (int, fi.Errno) {
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
		return found, fi.ErrNotConnected // the target process has ended
	}
	return found, fi.ErrFault // the target has no such memory
}
