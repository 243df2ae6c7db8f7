package tcp

import (
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// window is the largest number of requests of one rank on a connection that the peer has not
// answered. A request is a read, or one chunk of a write. The limit bounds the memory that a target
// needs for its answers. So a target never has to stop reading requests, and two ranks that are
// each other's target cannot block each other.
const window = 256

// maxFrames is the largest size in bytes of the unwritten part of conn.frames if the peer is
// correct: one batch, and the requests and answers that window allows.
const maxFrames = batchSize + window*(wire.TCPReadSize+wire.TCPRefuseSize+wire.TCPAckSize+wire.TCPMaxHeader)

// slot is an entry of rma.slots. It holds one read or write by this rank that has not ended. The id
// of the operation in frames is gen<<8 | index of the slot.
type slot struct {
	op      *transport.Op  // nil: the slot is free
	gen     uint64         // generation: counts the operations that have used the slot
	read    bool           // false: a write
	done    int            // of a read: number of bytes whose data frames have begun to arrive
	unacked int            // of a write: number of chunks that the peer has not acknowledged
	sent    bool           // of a write: all chunks that this rank sends are written
	status  wire.TCPStatus // wire.TCPOK until the peer has answered with an error
}

// rma is the state of the reads and writes of one connection, in both directions. needRMA makes it.
type rma struct {
	slots   [window]slot  // reads and writes by this rank
	free    [window]uint8 // free[:nfree] are the indexes of the free slots
	nfree   int
	tokens  int // number of requests that this rank may send before the peer's next answer; see window
	reads   int // number of reads by this rank that have started and not ended
	serving int // number of reads by the peer whose replies are not wholly written
}

// needRMA returns c.rma. If c.rma is nil, needRMA makes it first.
func (c *conn) needRMA() *rma {
	if c.rma == nil {
		c.rma = &rma{nfree: window, tokens: window}
		for i := range c.rma.free {
			c.rma.free[i] = uint8(i)
		}
	}
	return c.rma
}

// post starts a read or write. If the window is full or there is no connection yet, post queues
// the operation.
func (c *conn) post(op *transport.Op, read bool) error {
	if err := c.startConnect(); err != nil {
		return err
	}
	op.Scratch = 0
	if read {
		op.Scratch = 1
	}
	c.rmaWait.push(op)
	if c.state == connUp {
		idle := c.batched || !c.hasOutput()
		c.startRMA()
		if idle && c.hasOutput() {
			c.push()
		}
	}
	return nil
}

// startRMA starts the operations in c.rmaWait until the window is full. post has set op.Scratch
// to 1 for a read, and to 0 for a write.
func (c *conn) startRMA() {
	for c.rmaWait.head != nil {
		r := c.needRMA()
		if r.nfree == 0 || r.tokens == 0 {
			return
		}
		op := c.rmaWait.pop()
		r.nfree--
		i := r.free[r.nfree]
		s := &r.slots[i]
		*s = slot{op: op, gen: s.gen + 1, read: op.Scratch == 1}
		id := s.gen<<8 | uint64(i)
		op.ID = id
		if s.read {
			r.tokens--
			r.reads++
			c.control(wire.TCPFrame{Type: wire.TCPRead, ID: id, Key: op.RemoteKey, Addr: op.RemoteAddr, Total: uint64(len(op.Data))})
			continue
		}
		st := c.d.newStream()
		st.write, st.slot, st.id = true, uint32(i), id
		st.key, st.addr, st.total, st.src = op.RemoteKey, op.RemoteAddr, len(op.Data), op.Data
		c.writes.push(st)
		c.wantOutput()
	}
}

// pendingSlot returns the slot of this rank's operation with an id, and the slot's index. read says
// whether the operation is a read or a write. If no such operation is under way, pendingSlot
// returns nil.
func (c *conn) pendingSlot(id uint64, read bool) (uint32, *slot) {
	if c.rma == nil {
		return 0, nil
	}
	i := uint32(id % window)
	s := &c.rma.slots[i]
	if s.op == nil || s.gen != id>>8 || s.read != read {
		return 0, nil
	}
	return i, s
}

// endSlot completes the operation of slot s, whose index is i, and starts queued operations.
func (c *conn) endSlot(i uint32, s *slot) {
	op := s.op
	s.op = nil
	r := c.rma
	r.free[r.nfree] = uint8(i)
	r.nfree++
	if s.read {
		r.tokens++
		r.reads--
	}
	var err error
	if s.status != wire.TCPOK {
		what := "write"
		if s.read {
			what = "read"
		}
		err = c.d.peerError(what, c.rank, statusErr(s.status))
	}
	c.d.opDone(op, err)
	c.startRMA()
	if c.hasOutput() {
		c.wantOutput()
	}
}

// onData handles the header of a data frame. The data that follow are the next bytes of a read by
// this rank.
func (c *conn) onData(f *wire.TCPFrame) error {
	i, s := c.pendingSlot(f.ID, true)
	if s == nil {
		return protocolError("a reply belongs to no read")
	}
	left := len(s.op.Data) - s.done
	if int(f.Length) > left || f.Length == 0 && left > 0 {
		return protocolError("a reply has %d bytes, but %d are missing", f.Length, left)
	}
	if f.Length == 0 {
		c.endSlot(i, s)
		return nil
	}
	c.in.kind, c.in.slot = recvReply, i
	c.in.dst = s.op.Data[s.done : s.done+int(f.Length)]
	s.done += int(f.Length)
	return nil
}

// onRefuse handles a refuse frame: the peer does not send the bytes of a read by this rank, or does
// not send the rest of them.
func (c *conn) onRefuse(f *wire.TCPFrame) error {
	i, s := c.pendingSlot(f.ID, true)
	if s == nil {
		return protocolError("a refusal belongs to no read")
	}
	s.status = f.Status
	c.endSlot(i, s)
	return nil
}

// onRead handles the peer's request to read from a region of this rank.
func (c *conn) onRead(f *wire.TCPFrame) error {
	r := c.needRMA()
	if r.serving >= window || len(c.frames)-c.framesOff > maxFrames {
		return protocolError("more than %d reads at the same time", window)
	}
	reg, src, status := c.d.mrs.find(f.Key, f.Addr, f.Total, transport.RemoteRead)
	if status != wire.TCPOK {
		c.control(wire.TCPFrame{Type: wire.TCPRefuse, ID: f.ID, Status: status})
		return nil
	}
	s := c.d.newStream()
	s.id, s.src, s.region = f.ID, src, reg
	reg.uses++
	r.serving++
	c.replies.push(s)
	c.wantOutput()
	return nil
}

// onWrite handles the header of a write frame. The data that follow go to a region of this rank, or
// are dropped if the peer may not write there.
func (c *conn) onWrite(f *wire.TCPFrame) error {
	if len(c.frames)-c.framesOff > maxFrames {
		return protocolError("more than %d writes at the same time", window)
	}
	reg, dst, status := c.d.mrs.find(f.Key, f.Addr, f.Total, transport.RemoteWrite)
	c.in.id, c.in.ack, c.in.status = f.ID, true, status
	if status != wire.TCPOK {
		c.in.kind, c.in.skip = recvDrop, int(f.Length)
		return nil
	}
	reg.uses++
	c.in.kind, c.in.region = recvWrite, reg
	c.in.dst = dst[f.Offset : f.Offset+uint64(f.Length)]
	return nil
}

// onAck handles the peer's answer to one chunk of a write by this rank.
func (c *conn) onAck(f *wire.TCPFrame) error {
	i, s := c.pendingSlot(f.ID, false)
	if s == nil || s.unacked == 0 {
		return protocolError("an ack belongs to no write")
	}
	s.unacked--
	c.rma.tokens++
	if f.Status != wire.TCPOK {
		s.status = f.Status
	}
	if s.sent && s.unacked == 0 {
		c.endSlot(i, s)
	} else if c.startRMA(); c.hasOutput() {
		c.wantOutput()
	}
	return nil
}

// frameReceived ends a frame with data, after all its data have arrived. After a write, it queues
// the acknowledgement. After data of a reply, it sets the state to recvEnd.
func (c *conn) frameReceived() {
	kind := c.in.kind
	c.endFrame()
	switch kind {
	case recvReply:
		c.in.kind = recvEnd
	case recvWrite, recvDrop:
		if c.in.ack {
			c.control(wire.TCPFrame{Type: wire.TCPAck, ID: c.in.id, Status: c.in.status})
		}
	case recvFrame, recvEnd:
	}
}

// onEnd handles the end frame that follows the data of a reply. status says whether the data are
// valid.
func (c *conn) onEnd(status wire.TCPStatus) error {
	c.in.kind = recvFrame
	s := &c.rma.slots[c.in.slot]
	s.status = status
	if status != wire.TCPOK || s.done == len(s.op.Data) {
		c.endSlot(c.in.slot, s)
	}
	return nil
}

// dropRegion removes all references of the connection to r, which is being closed. It ends the
// peer's reads of r with an error, except a read whose last data are already written to the socket.
// If the peer's data are being written to r, this rank drops the rest of them.
func (c *conn) dropRegion(r *region) {
	if c.in.region == r {
		n := len(c.in.dst)
		c.endFrame()
		c.in.kind, c.in.skip, c.in.status = recvDrop, n, wire.TCPKey
	}
	refuse := func(s *stream) {
		c.control(wire.TCPFrame{Type: wire.TCPRefuse, ID: s.id, Status: wire.TCPKey})
		c.endReply(s)
	}
	if s := c.cur; s != nil && s.region == r {
		if s.ready {
			// If the chunk and a part of its end frame are written, that frame cannot carry the
			// error.
			if s.tlen < len(s.tail) {
				s.refuse = len(s.src) > 0
			}
			s.zeros, s.failed = len(s.chunk), wire.TCPKey
			s.chunk, s.src, s.region = nil, nil, nil
			r.uses--
		} else {
			c.cur = nil
			refuse(s)
		}
	}
	var keep streamQueue
	for c.replies.head != nil {
		s := c.replies.pop()
		if s.region == r {
			refuse(s)
		} else {
			keep.push(s)
		}
	}
	c.replies = keep
}

// selfRMA does a read or write of this rank to itself: it copies between op.Data and a region.
func (d *domain) selfRMA(op *transport.Op, read bool) {
	want, what := transport.RemoteWrite, "write"
	if read {
		want, what = transport.RemoteRead, "read"
	}
	_, mem, status := d.mrs.find(op.RemoteKey, op.RemoteAddr, uint64(len(op.Data)), want)
	switch {
	case status != wire.TCPOK:
		d.opDone(op, d.peerError(what, d.self, statusErr(status)))
		return
	case read:
		copy(op.Data, mem)
	default:
		copy(mem, op.Data)
	}
	d.opDone(op, nil)
}
