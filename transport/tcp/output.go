package tcp

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// A connection's output comes from three sources, which are fields of conn:
//
//	frames                   copies: small messages, read requests, acks, refusals, giveup, bye
//	msgs                     messages in the caller's memory, which follow the messages in frames
//	replies, writes ► cur    data of RMA: one chunk at a time, of each stream in turn
//
// One sendmsg gathers from all of them. The socket may take any part of the gathered bytes. So each
// source stores how much of it is written, and the next sendmsg begins with the frame that is
// partly written. conn.partlyWritten names the source of that frame.

// source is one of the sources of output.
type source uint8

const (
	fromNone source = iota
	fromFrames
	fromMsgs
	fromStream
)

const (
	// chunkSize is the largest chunk in bytes. A chunk is the part of an RMA write or read reply
	// that one frame carries.
	chunkSize  = 512 << 10
	gatherMsgs = 14 // most messages of msgs in one sendmsg
	// The iovecs of one sendmsg: one for frames; two for each message (header and data); and for
	// a chunk its header, its end frame and its zeros.
	gatherIovs = 1 + 2*gatherMsgs + 2 + chunkSize/len(zeroPage)
	// After workPerRead bytes, one call of push stops writing to a connection, and one call of
	// receive stops reading from it.
	workPerRead = 1 << 20
)

// Batches. A system call that writes takes some microseconds, and the copy of a small message a few
// nanoseconds. So Send copies small messages to frames if they come in a burst or the connection
// has output. The messages in frames are a batch. One system call writes the batch: in the next
// Read, before a larger message, a read or a write, or when frames has no room for another message.
//
//	        Read   msg   msg    msg    msg    msg    Read
//	write            ▲     ▲      └──────┴──────┴───────▲
//
// The diagram shows which calls write. Send writes each of the first two messages after a Read at
// once, because its caller may compute next and not read soon. A later message goes to a batch if
// less than burstGap has passed since the message before.
const (
	// batchMsg is the largest header and data of a message that Send copies, in bytes.
	batchMsg = 16<<10 + transport.HeaderSize
	// batchSize is the largest size in bytes of the unwritten part of frames after Send has
	// copied a message to it.
	batchSize = 64 << 10
	// Two successive messages of a burst follow each other in less than burstGap.
	burstGap = 20 * time.Microsecond
)

// gather holds the arguments of a sendmsg, and which sources its bytes are from. A domain has
// one, which its connections use one after the other.
type gather struct {
	iov   [gatherIovs]unix.Iovec
	niov  int // number of used entries of iov
	total int // number of bytes in iov
	// plan divides the bytes in iov into parts, in their order. A part has left bytes, which come
	// from the source in its field from.
	plan [gatherMsgs + 2]struct {
		from source
		left int
	}
	nplan int // number of used entries of plan
	// hdrs has the prefixes and headers of the messages in iov.
	hdrs [gatherMsgs][wire.TCPPrefixSize + transport.HeaderSize]byte
	msg  unix.Msghdr // argument of the system call
}

func (g *gather) add(b []byte) {
	if len(b) > 0 {
		g.iov[g.niov].Base = &b[0]
		g.iov[g.niov].SetLen(len(b))
		g.niov++
		g.total += len(b)
	}
}

func (g *gather) planned(from source, n int) {
	g.plan[g.nplan].from, g.plan[g.nplan].left = from, n
	g.nplan++
}

// stream is the output of one RMA operation: the data of a write by this rank, or the reply to a
// read by the peer. It is written as a sequence of chunks, of one frame each. In a reply, an end
// frame follows each chunk that has data. Its status (wire.TCPStatus) says whether the data is
// valid.
type stream struct {
	next   *stream
	id     uint64  // of the read or write, in its frames
	write  bool    // a write by this rank; false: a reply
	src    []byte  // the bytes that are not in a chunk yet
	region *region // of a reply: the region that contains src; nil: it was closed
	// The target of a write.
	slot  uint32 // index in rma.slots
	key   uint64 // of the peer's region
	addr  uint64 // offset of the write's first byte in that region
	total int    // size of the write in bytes
	off   int    // number of bytes in all chunks that [conn.prepare] has made
	// The current chunk.
	hdr   [wire.TCPMaxHeader]byte
	hlen  int    // size of the header in hdr
	hoff  int    // number of written bytes of hdr
	chunk []byte // the data still to be written
	// zeros is the number of zero bytes still to be written in place of chunk if the region was
	// closed.
	zeros  int
	failed wire.TCPStatus           // status of the end frame: wire.TCPOK unless the region was closed
	tail   [wire.TCPPrefixSize]byte // the end frame that follows the data of a reply
	tlen   int                      // number of bytes of tail still to be written
	endN   uint64                   // number of the end frame for its check; see wire.TCPCheck
	refuse bool                     // a refuse frame takes the place of the rest of the reply
	ready  bool                     // [conn.prepare] has made the chunk, and it is not wholly written
}

// streamQueue is a first-in, first-out queue of streams, linked by next.
type streamQueue struct{ head, tail *stream }

func (q *streamQueue) push(s *stream) {
	s.next = nil
	if q.tail == nil {
		q.head = s
	} else {
		q.tail.next = s
	}
	q.tail = s
}

func (q *streamQueue) pop() *stream {
	s := q.head
	q.head = s.next
	if q.head == nil {
		q.tail = nil
	}
	s.next = nil
	return s
}

func (d *domain) newStream() *stream {
	s := d.streams
	if s == nil {
		return &stream{}
	}
	d.streams = s.next
	s.next = nil
	return s
}

func (d *domain) freeStream(s *stream) {
	if s.region != nil {
		s.region.uses--
	}
	*s = stream{next: d.streams}
	d.streams = s
}

// zeroPage holds the zero bytes that are written in place of the rest of a chunk whose region was
// closed.
var zeroPage [64 << 10]byte

// hasOutput reports whether the connection has bytes that it may write now. It returns false if
// an earlier write has failed.
func (c *conn) hasOutput() bool {
	return c.wrErr == nil && (c.out != nil || c.msgs.head != nil || len(c.frames) > c.framesOff || c.cur != nil || c.replies.head != nil ||
		c.writes.head != nil && c.rma.tokens > 0)
}

// wantOutput adds the connection to d.outq. Each Read calls push for the connections in d.outq.
func (c *conn) wantOutput() {
	if !c.inOut {
		c.inOut = true
		c.d.outq = append(c.d.outq, c)
	}
}

// addToBatch copies a message of size bytes to frames and returns true, if the message is small,
// and is part of a burst or the connection has output. It returns false if that is not so, if Arm
// has returned true since the last Read, if messages wait in msgs, or if frames has no room. Then
// the caller must write or queue the message. The caller has checked that the connection is up and
// no write has failed.
//
// Hot path: no allocation once frames has grown; a system call if frames is full.
func (c *conn) addToBatch(op *transport.Op, size int) bool {
	d := c.d
	if size > batchMsg || d.armed || c.msgs.head != nil || !c.hasOutput() && !c.inBurst() {
		return false
	}
	n := wire.TCPPrefixSize + size
	if len(c.frames)-c.framesOff+n > batchSize {
		if c.push(); c.wrErr != nil || len(c.frames)-c.framesOff+n > batchSize {
			return false
		}
	}
	c.copyMsg(op, size)
	c.batched, d.batched = true, true
	return true
}

// copyMsg appends a copy of a message of size bytes to frames, with its prefix and checks.
func (c *conn) copyMsg(op *transport.Op, size int) {
	b := c.extend(wire.TCPPrefixSize + size)
	h := putMsg(b, op, size)
	c.sign.SignNext(b[:h], wire.TCPMessages)
	copy(b[h:], op.Data)
}

// putMsg writes the prefix of a message of size bytes, without the prefix's checks, and the
// message's header to b. It returns the number of bytes written to b.
func putMsg(b []byte, op *transport.Op, size int) int {
	wire.PutTCPMsg(b, op.HeaderLen, size)
	return wire.TCPPrefixSize + copy(b[wire.TCPPrefixSize:], op.Header[:op.HeaderLen])
}

// inBurst reports whether the message that Send is called for is part of a burst. It is if this is
// the third or a later call of inBurst since the last Read, and less than burstGap has passed since
// the call before. The first call since a Read does not read the clock, to save its cost.
func (c *conn) inBurst() bool {
	if c.sentIn != c.d.round {
		c.sentIn, c.sentAt = c.d.round, 0
		return false
	}
	now, last := time.Since(c.d.created), c.sentAt
	c.sentAt = now
	return last > 0 && now-last < burstGap
}

// push writes the connection's output until nothing is left, the socket is full, workPerRead bytes
// are written or the connection ends.
func (c *conn) push() {
	c.batched = false
	if c.seal != nil {
		c.pushRecords()
		return
	}
	g := &c.d.gather
	for budget := workPerRead; budget > 0 && c.state == connUp && c.hasOutput(); {
		if c.gather(g); g.total == 0 {
			return
		}
		n, err := sendv(c.fd, &g.msg, g.iov[:g.niov], g.total)
		if err == errAgain { //nolint:errorlint // never wrapped
			return
		}
		if err != nil {
			c.writeFailed(err)
			return
		}
		budget -= n
		c.written(g, n)
		if n < g.total {
			return
		}
	}
}

// gather sets g to the bytes that the next sendmsg is to write.
func (c *conn) gather(g *gather) {
	g.niov, g.total, g.nplan = 0, 0, 0
	switch c.partlyWritten {
	case fromMsgs:
		c.gatherMsgs(g)
		c.gatherFrames(g)
		c.gatherStream(g)
	case fromStream:
		c.gatherStream(g)
		c.gatherFrames(g)
		c.gatherMsgs(g)
	default:
		c.gatherFrames(g)
		c.gatherMsgs(g)
		c.gatherStream(g)
	}
}

// writeFailed records that a write to the socket has failed with err: from now on nothing is
// written. receive reports PeerDown after it has read all that the peer had sent.
func (c *conn) writeFailed(err error) {
	c.wrErr = err
	if errors.Is(err, unix.EPIPE) {
		c.wrErr = errNoBye
	}
	c.err = c.d.peerError("send", c.rank, down(c.wrErr))
}

func (c *conn) gatherFrames(g *gather) {
	if b := c.frames[c.framesOff:]; len(b) > 0 {
		g.add(b)
		g.planned(fromFrames, len(b))
	}
}

func (c *conn) gatherMsgs(g *gather) {
	i, bytes := 0, 0
	for op := c.msgs.head; op != nil && i < gatherMsgs && bytes < chunkSize; op = op.Next {
		h := g.hdrs[i][:]
		h = h[:putMsg(h, op, op.HeaderLen+len(op.Data))]
		c.sign.Sign(h, wire.TCPMessages, c.sign.Next(wire.TCPMessages)+uint64(i))
		done := int(op.Scratch)
		left := len(h) + len(op.Data) - done
		if done < len(h) {
			g.add(h[done:])
			g.add(op.Data)
		} else {
			g.add(op.Data[done-len(h):])
		}
		g.planned(fromMsgs, left)
		bytes += left
		i++
	}
}

func (c *conn) gatherStream(g *gather) {
	if c.cur == nil && !c.pickStream() {
		return
	}
	s := c.cur
	if !s.ready {
		c.prepare(s)
	}
	before := g.total
	g.add(s.hdr[s.hoff:s.hlen])
	g.add(s.chunk)
	for z := s.zeros; z > 0; z -= len(zeroPage) {
		g.add(zeroPage[:min(z, len(zeroPage))])
	}
	if s.tlen > 0 {
		if s.tlen == len(s.tail) {
			end := wire.TCPFrame{Type: wire.TCPEnd, Status: s.failed}
			end.Put(s.tail[:])
			c.sign.Sign(s.tail[:], wire.TCPBulk, s.endN)
		}
		g.add(s.tail[len(s.tail)-s.tlen:])
	}
	g.planned(fromStream, g.total-before)
}

// pickStream sets c.cur to the stream whose chunk is written next. It alternates between replies
// and writes, and takes the streams of each queue in turn. It returns false if there is no reply,
// and no write that may send a chunk now.
func (c *conn) pickStream() bool {
	for range 2 {
		c.writesFirst = !c.writesFirst
		if c.writesFirst {
			if c.writes.head != nil && c.rma.tokens > 0 {
				c.cur = c.writes.pop()
				return true
			}
		} else if c.replies.head != nil {
			c.cur = c.replies.pop()
			return true
		}
	}
	return false
}

// prepare makes the next chunk of a stream: it takes the chunk's data from s.src and writes the
// header to s.hdr.
func (c *conn) prepare(s *stream) {
	n := min(len(s.src), chunkSize)
	s.chunk, s.src = s.src[:n], s.src[n:]
	f := wire.TCPFrame{Type: wire.TCPData, ID: s.id, Length: uint32(n)}
	if s.write {
		f.Type, f.Key, f.Addr, f.Total, f.Offset = wire.TCPWrite, s.key, s.addr, uint64(s.total), uint64(s.off)
		c.rma.tokens--
		c.rma.slots[s.slot].unacked++
	} else if n > 0 {
		s.tlen = len(s.tail)
	}
	s.off += n
	s.hlen, s.hoff, s.ready = f.Put(s.hdr[:]), 0, true
	c.sign.SignNext(s.hdr[:s.hlen], wire.TCPBulk)
	if s.tlen > 0 {
		s.endN = c.sign.Next(wire.TCPBulk)
		c.sign.Skip(wire.TCPBulk)
	}
}

// written removes the first n bytes of g from their sources, because a system call has written them
// or they are in a record, and completes the messages of msgs that are now wholly written.
func (c *conn) written(g *gather, n int) {
	c.partlyWritten = fromNone
	for i := 0; i < g.nplan && n > 0; i++ {
		k := min(n, g.plan[i].left)
		n -= k
		whole := k == g.plan[i].left
		switch g.plan[i].from {
		case fromFrames:
			c.framesOff += k
			// Compare with the end of frames, not with the end of the plan, because frames may
			// have grown since gather.
			if c.framesOff == len(c.frames) {
				c.frames, c.framesOff = c.frames[:0], 0
			}
		case fromMsgs:
			if whole {
				c.sign.Skip(wire.TCPMessages)
				c.d.opDone(c.msgs.pop(), nil)
			} else {
				c.msgs.head.Scratch += uint64(k)
			}
		case fromStream:
			whole = c.streamed(k)
		case fromNone:
		}
		if !whole {
			c.partlyWritten = g.plan[i].from
		}
	}
}

// streamed removes k written bytes from the chunk of c.cur, and reports whether the chunk is now
// wholly written. If it is, streamed queues the stream for its next chunk, or ends the stream.
func (c *conn) streamed(k int) bool {
	s := c.cur
	h := min(k, s.hlen-s.hoff)
	s.hoff += h
	k -= h
	if s.zeros > 0 {
		h = min(k, s.zeros)
		s.zeros -= h
	} else {
		h = min(k, len(s.chunk))
		s.chunk = s.chunk[h:]
	}
	s.tlen -= k - h
	if s.hoff < s.hlen || len(s.chunk) > 0 || s.zeros > 0 || s.tlen > 0 {
		return false
	}
	c.cur, s.ready = nil, false
	switch {
	case s.write:
		slot := &c.rma.slots[s.slot]
		if len(s.src) == 0 || slot.status != wire.TCPOK {
			slot.sent = true
			c.d.freeStream(s)
		} else {
			c.writes.push(s)
		}
	case len(s.src) == 0: // the reply is complete, or dropRegion has dropped the rest
		if s.refuse {
			c.control(wire.TCPFrame{Type: wire.TCPRefuse, ID: s.id, Status: wire.TCPKey})
		}
		c.endReply(s)
	default:
		c.replies.push(s)
	}
	return true
}

// endReply ends the reply to a read by the peer.
func (c *conn) endReply(s *stream) {
	c.rma.serving--
	c.d.freeStream(s)
}

// control appends f, which is not a message and has no payload, to frames. If the connection is not
// up, it does nothing.
func (c *conn) control(f wire.TCPFrame) {
	if c.state != connUp {
		return
	}
	b := c.extend(wire.TCPMaxHeader)
	n := f.Put(b)
	c.sign.SignNext(b[:n], wire.TCPControls)
	c.frames = c.frames[:len(c.frames)-len(b)+n]
}

// extend makes frames n bytes longer and returns the new bytes. It also calls wantOutput.
func (c *conn) extend(n int) []byte {
	if cap(c.frames)-len(c.frames) < n && c.framesOff > 0 {
		c.frames = c.frames[:copy(c.frames, c.frames[c.framesOff:])]
		c.framesOff = 0
	}
	if cap(c.frames)-len(c.frames) < n {
		grown := make([]byte, len(c.frames), 2*cap(c.frames)+n+16*wire.TCPMaxHeader)
		copy(grown, c.frames)
		c.frames = grown
	}
	c.wantOutput()
	at := len(c.frames)
	c.frames = c.frames[:at+n]
	return c.frames[at:]
}
