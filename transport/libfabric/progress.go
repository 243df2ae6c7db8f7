//go:build libfabric

package libfabric

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// completionQueue is the user's view of the domain's progress.
type completionQueue struct{ d *domain }

// Read posts the buffers that are used up, moves the fabric on and delivers what
// has come.
//
// Hot path: no allocation, one crossing to C.
func (q *completionQueue) Read(c []transport.Completion) (int, error) {
	d := q.d
	if d.closed {
		return 0, transport.ErrClosed
	}
	d.done.Begin(c)
	d.crowded = false
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
		d.loop.Deliver(&d.done, d.cfg.Self, d.drop)
	}
	if d.ep == nil || d.broken != nil {
		return
	}
	room := d.done.Room()
	if d.drop {
		room = batch
	}
	// Every entry of the queue may be a message, for which there must be room.
	if room > 0 {
		d.broken = d.poll(room)
	}
	if len(d.owed) > 0 {
		d.answer()
	}
}

// A queue that has been silent for so many polls is looked at more often in each
// of them: what peers read and write here is moved by the looks, and shows in
// no completion.
const (
	silentPolls = 64
	silentTries = 16
)

// poll posts receives and reads up to room completions.
func (d *domain) poll(room int) error {
	a := d.arena
	for len(a.spent) > 0 {
		i := a.spent[len(a.spent)-1]
		b := &a.bufs[i]
		if !d.raw.PostLater(a.address(b.mem), len(b.mem), a.context(slotCount+i)) {
			break
		}
		a.spent = a.spent[:len(a.spent)-1]
		b.used, b.done, b.end = false, 0, 0
	}
	d.polls++
	var flags fi.Flags
	if d.multiRecv {
		flags = fi.FlagMultiRecv
	}
	tries := d.tries
	if d.silent > silentPolls {
		tries = max(tries, silentTries)
	}
	entries, rc := d.raw.Poll(flags|fi.FlagCompletion, a.desc, room, tries)
	if d.silent++; len(entries) > 0 {
		d.silent = 0
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

// completed acts on what has ended well.
func (d *domain) completed(e *fi.RawEntry) error {
	i := d.arena.index(e.Context)
	switch {
	case i < 0:
		return nil // of an injected message, which some providers tell
	case i < slotCount:
		d.slotDone(i, nil)
		return nil
	}
	return d.received(i-slotCount, e)
}

// slotDone ends the operation of a slot.
func (d *domain) slotDone(i int, err error) {
	a := d.arena
	s := &a.slots[i]
	op := s.op
	switch {
	case s.what == opNone:
		return // said twice
	case op != nil && s.what == opAtomic && err == nil:
		_, _, fetch := operands(a.buf(i))
		copy(op.Fetch, fetch)
	}
	if s.what == opRead || s.what == opWrite {
		d.peers[s.peer].flying--
	}
	a.put(i)
	if op != nil {
		d.opDone(op, err)
	}
}

// received delivers a message and notes what is left of its buffer.
func (d *domain) received(i int, e *fi.RawEntry) error {
	a := d.arena
	b := &a.bufs[i]
	n, at := int(e.Len), 0
	if !d.multiRecv {
		b.used = true
	} else {
		if n > 0 {
			at = int(e.Buf - a.address(b.mem))
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
		a.spent = append(a.spent, i)
	}
	return nil
}

// message looks at a frame, before anything else is done for its sender.
func (d *domain) message(b []byte) {
	f, rest, ok := parseFrame(b)
	if !ok || uint64(f.source) >= uint64(len(d.peers)) {
		d.stranger()
		return
	}
	from := transport.Addr(f.source)
	p := d.tokens(from)
	if f.token != p.rx || from == d.cfg.Self {
		d.stranger()
		return
	}
	p.met = true
	if f.number != (p.got+1)&numberMask {
		d.keep(from, f, rest)
		return
	}
	d.next(from, f.kind, rest)
	if p.early != nil {
		d.catchUp(from)
	}
}

// next takes the peer's next message.
func (d *domain) next(from transport.Addr, k kind, msg []byte) {
	p := &d.peers[from]
	p.got++
	switch k {
	case kindData:
		if !d.drop && p.err == nil {
			d.deliver(transport.Completion{Kind: transport.RecvDone, Peer: from, Msg: msg})
		}
	case kindBye:
		if p.err == nil {
			p.left, p.err = true, transport.ErrPeerLeft
			p.roomy() // the patience with our answer begins now
			d.owed = append(d.owed, from)
		}
	case kindAck:
		p.acked = true
	default:
		d.peerDown(from, "receive", fmt.Errorf("%w: %w: message of kind %d", transport.ErrPeerDown, transport.ErrProtocol, k))
	}
}

// deliver gives the user a message, whose bytes stay where they are until the
// next Read. Only where early messages have taken the places of those that the
// queue was asked for, it is copied, and waits as all after it do.
func (d *domain) deliver(c transport.Completion) {
	if !d.done.Full() && !d.crowded {
		d.done.Out = append(d.done.Out, c)
		return
	}
	d.crowded = true
	c.Msg = slices.Clone(c.Msg)
	d.done.Later(c)
}

func (d *domain) stranger() {
	d.done.Later(transport.Completion{Kind: transport.PeerNotice, Peer: -1, Err: errStranger})
}

// maxFailures bounds how many failed operations one Read looks at.
const maxFailures = 64

// failures gives each failed operation its error.
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
		i, e.Err = d.nameless(e)
	}
	if i < 0 {
		return nil // of an injected message: who it was for is not said
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
		// The message, or the access, is lost, and so is the order of what
		// follows.
		d.peerDown(peer, what, fmt.Errorf("%w: %w", transport.ErrPeerDown, e.Err))
		err := d.peers[peer].err
		if err == nil { // this process itself
			err = d.peerError(what, peer, e.Err)
		}
		d.slotDone(i, err)
	}
	return nil
}

// receiveFailed goes on without a message that broke off.
func (d *domain) receiveFailed(i int, e fi.RawError) error {
	switch {
	case e.Err == fi.ErrCanceled:
	case d.multiRecv:
		return d.arena.lose(i)
	default:
		d.arena.spent = append(d.arena.spent, i)
	}
	return nil
}

// nameless finds the slot of an error without a context. Where the kernel copies,
// shm is done with a read or write within the call, and of one that has failed
// 1.17 does not tell which it was: it is the oldest there is. -1: it is of none;
// peers' accesses that fail here are told as well.
func (d *domain) nameless(e fi.RawError) (int, fi.Errno) {
	found := -1
	if d.info.EP.Protocol != fi.ProtoSHM || e.Flags&(fi.FlagRemoteRead|fi.FlagRemoteWrite) != 0 {
		return found, e.Err
	}
	slots := d.arena.slots
	for i := range slots {
		s := &slots[i]
		copied := s.what == opRead || s.what == opWrite && d.writing&fi.FlagDeliveryComplete == 0
		if copied && (found < 0 || s.order < slots[found].order) {
			found = i
		}
	}
	if found >= 0 && d.refuses(slots[found].peer) {
		return found, fi.ErrNotConnected // there is no such process
	}
	return found, fi.ErrFault // there is no such memory
}
