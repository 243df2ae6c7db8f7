package tcp

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Output comes from three sources:
//
//	frames                   copies: small messages, reads, acks, refusals, bye
//	msgs                     messages in the user's memory, later than those in frames
//	replies, writes ► cur    bulk data: one chunk of one stream at a time, in turns
//
// One sendmsg gathers from all of them. The socket may take any part of it. So each source
// stores how much of it is written, and the next sendmsg begins with the frame that is partly
// written. partlyWritten names the source of that frame.

type source uint8

const (
	fromNone source = iota
	fromFrames
	fromMsgs
	fromStream
)

const (
	chunkSize   = 512 << 10                                      // most bytes of an RMA write or read reply that are written before other frames get a turn
	gatherMsgs  = 14                                             // messages in one sendmsg
	gatherIovs  = 1 + 2*gatherMsgs + 2 + chunkSize/len(zeroPage) // copied frames; messages; header, zeros and end of a chunk
	workPerRead = 1 << 20                                        // bytes written, and bytes read, per connection in one Read of the queue
)

// Batches. A write takes some microseconds, and the copy of a small message a few nanoseconds.
// So Send copies small messages to frames if they come in a burst or the socket is full. One
// write sends all of them: at the next Read, before a larger message or RMA, or when frames
// reaches batchSize.
//
//	        Read   msg   msg    msg    msg    msg    Read
//	write            ▲     ▲      └──────┴──────┴───────▲
//
// Send writes the first two messages after a Read at once: its caller may compute next, and a
// batch that begins with the second message saves no write. A later message goes to a batch if
// less than burstGap has passed since the one before.
const (
	batchMsg  = 16<<10 + transport.HeaderSize // largest header and data that Send copies
	batchSize = 64 << 10                      // largest size of frames to which Send copies a message
	burstGap  = 20 * time.Microsecond         // between messages of a burst
)

// gather holds the arguments of a sendmsg, and which sources its bytes are from. A domain has
// one.
type gather struct {
	iov   [gatherIovs]unix.Iovec
	niov  int
	total int
	plan  [gatherMsgs + 2]struct {
		from source
		left int
	}
	nplan int
	hdrs  [gatherMsgs][wire.TCPPrefixSize + transport.HeaderSize]byte
	msg   unix.Msghdr
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

// stream is the output of one RMA operation: the bytes of a write, or the reply to a peer's
// read.
type stream struct {
	next   *stream
	id     uint64
	write  bool
	src    []byte  // the bytes that are not in a chunk yet
	region *region // of a reply
	slot   uint32  // of a write, as the fields below
	key    uint64
	addr   uint64
	total  int
	off    int
	// The current chunk.
	hdr    [wire.TCPMaxHeader]byte
	hlen   int // size of hdr
	hoff   int // bytes of hdr that are written
	chunk  []byte
	zeros  int                      // zeros to write instead of chunk, whose region was closed
	failed wire.TCPStatus           // status of the end frame in that case
	tail   [wire.TCPPrefixSize]byte // the end frame after a reply's chunk
	tlen   int                      // bytes of tail still to be written
	endN   uint64                   // number of the end frame; see wire.TCPCheck
	refuse bool                     // a refuse follows instead of the rest of the reply
	ready  bool                     // prepare has cut the chunk
}

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

// zeroPage is written instead of the bytes of a region that was closed.
var zeroPage [64 << 10]byte

// hasOutput reports whether there is something to write, and writing has not failed.
func (c *conn) hasOutput() bool {
	return c.wrErr == nil && (c.out != nil || c.msgs.head != nil || len(c.frames) > c.framesOff || c.cur != nil || c.replies.head != nil ||
		c.writes.head != nil && c.rma.tokens > 0)
}

// wantOutput adds the connection to d.outq, whose connections each Read pushes.
func (c *conn) wantOutput() {
	if !c.inOut {
		c.inOut = true
		c.d.outq = append(c.d.outq, c)
	}
}

// addToBatch copies a small message to frames if the message is part of a burst or the connection
// has output. If addToBatch returns false, the caller writes or queues the message. The caller has
// checked that the connection is up and writing has not failed.
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

// copyMsg appends a copy of a message to frames.
func (c *conn) copyMsg(op *transport.Op, size int) {
	b := c.extend(wire.TCPPrefixSize + size)
	h := putMsg(b, op, size)
	c.sign.SignNext(b[:h], wire.TCPMessages)
	copy(b[h:], op.Data)
}

// putMsg writes the prefix of a message without its checks, and its header, to b. It
// returns the size of both.
func putMsg(b []byte, op *transport.Op, size int) int {
	wire.PutTCPMsg(b, op.HeaderLen, size)
	return wire.TCPPrefixSize + copy(b[wire.TCPPrefixSize:], op.Header[:op.HeaderLen])
}

// inBurst reports whether a message that is sent now is part of a burst: at least two messages
// have been sent since the last Read, the last of them less than burstGap ago. For the first
// message since a Read, inBurst does not read the clock.
func (c *conn) inBurst() bool {
	if c.sentIn != c.d.round {
		c.sentIn, c.sentAt = c.d.round, 0
		return false
	}
	now, last := time.Since(c.d.created), c.sentAt
	c.sentAt = now
	return last > 0 && now-last < burstGap
}

// push writes output until the socket is full or workPerRead bytes are written.
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

// gather collects the frames and data to be written next.
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

// writeFailed ends the output. receive reports the peer down after it has read all that the peer
// had sent.
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

// pickStream sets cur to the stream of the next chunk. It alternates between replies and writes,
// and takes the streams of each in turns. It returns false if no stream can go on.
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

// prepare cuts the next chunk of a stream and writes its header.
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

// written removes the first n gathered bytes from their sources, and completes the messages that
// are now wholly written.
func (c *conn) written(g *gather, n int) {
	c.partlyWritten = fromNone
	for i := 0; i < g.nplan && n > 0; i++ {
		k := min(n, g.plan[i].left)
		n -= k
		whole := k == g.plan[i].left
		switch g.plan[i].from {
		case fromFrames:
			c.framesOff += k
			if c.framesOff == len(c.frames) { // frames may have grown since gather
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

// streamed removes k written bytes from the current chunk, and reports whether the chunk is now
// wholly written.
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
	case len(s.src) == 0: // also if dropRegion has dropped the rest
		if s.refuse {
			c.control(wire.TCPFrame{Type: wire.TCPRefuse, ID: s.id, Status: wire.TCPKey})
		}
		c.endReply(s)
	default:
		c.replies.push(s)
	}
	return true
}

// endReply ends the answer to a peer's read.
func (c *conn) endReply(s *stream) {
	c.rma.serving--
	c.d.freeStream(s)
}

// control queues a frame other than a message, without bytes behind its header.
func (c *conn) control(f wire.TCPFrame) {
	if c.state != connUp {
		return
	}
	b := c.extend(wire.TCPMaxHeader)
	n := f.Put(b)
	c.sign.SignNext(b[:n], wire.TCPControls)
	c.frames = c.frames[:len(c.frames)-len(b)+n]
}

// extend makes frames n bytes longer and returns these bytes.
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
