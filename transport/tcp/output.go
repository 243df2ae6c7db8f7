package tcp

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// What waits to be written comes from three sources:
//
//	ctl                      frames without bytes: reads, acks, refusals, bye
//	msgs                     messages, in the order sent
//	replies, writes ► cur    bulk data, a chunk of one stream at a time, in turns
//
// One sendmsg takes from all of them. The socket may take any part of it, so
// each source remembers how far it is, and what is asked for next begins with
// the frame that was cut, which mid names.

type source uint8

const (
	fromNone source = iota
	fromCtl
	fromMsgs
	fromStream
)

const (
	chunkSize   = 512 << 10 // bytes of a stream between other frames
	gatherMsgs  = 14        // messages in one sendmsg
	gatherIovs  = 1 + 2*gatherMsgs + 1 + 8
	workPerRead = 1 << 20 // bytes written, and bytes read, per connection in one Read
)

// gather is the room in which a sendmsg is put together; a domain has one.
type gather struct {
	iov   [gatherIovs]unix.Iovec
	niov  int
	total int
	plan  [gatherMsgs + 2]struct {
		from source
		left int
	}
	nplan int
	hdrs  [gatherMsgs][wire.TCPHeaderSize + transport.HeaderSize]byte
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

// stream is bulk data on its way out.
type stream struct {
	next   *stream
	id     uint64
	write  bool
	src    []byte // not yet put in chunks
	region *region
	slot   uint32
	key    uint64
	addr   uint64
	total  int
	off    int
	// The chunk under way.
	hdr    [wire.TCPMaxHeader]byte
	hlen   int // of hdr
	hoff   int // written of hdr
	chunk  []byte
	zeros  int            // to write in place of a chunk whose region has gone
	failed wire.TCPStatus // what that makes of the reply
	tail   [1]byte        // the status behind a reply's chunk
	tlen   int            // of tail, still to be written
	ready  bool           // the chunk is prepared
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

// zeroPage stands in for memory that must not be touched any more.
var zeroPage [64 << 10]byte

// hasOutput says whether a write could get anywhere.
func (c *conn) hasOutput() bool {
	return c.wrErr == nil && (c.msgs.head != nil || len(c.ctl) > c.ctlOff || c.cur != nil || c.replies.head != nil ||
		c.writes.head != nil && c.rma.tokens > 0)
}

// wantOutput puts the connection among those that every Read pushes.
func (c *conn) wantOutput() {
	if !c.inOut {
		c.inOut = true
		c.d.outq = append(c.d.outq, c)
	}
}

// push writes what the socket takes, up to workPerRead.
func (c *conn) push() {
	g := &c.d.gather
	for budget := workPerRead; budget > 0 && c.state == connUp && c.hasOutput(); {
		g.niov, g.total, g.nplan = 0, 0, 0
		switch c.mid {
		case fromMsgs:
			c.gatherMsgs(g)
			c.gatherCtl(g)
			c.gatherStream(g)
		case fromStream:
			c.gatherStream(g)
			c.gatherCtl(g)
			c.gatherMsgs(g)
		default:
			c.gatherCtl(g)
			c.gatherMsgs(g)
			c.gatherStream(g)
		}
		if g.total == 0 {
			return
		}
		n, err := sendv(c.fd, &g.msg, g.iov[:g.niov], g.total)
		if err == errAgain { //nolint:errorlint // the very value, on the hot path
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

// writeFailed stops writing. The peer is declared down when what it had sent
// has been read.
func (c *conn) writeFailed(err error) {
	c.wrErr = err
	if errors.Is(err, unix.EPIPE) {
		c.wrErr = errLost
	}
	c.err = c.d.peerError("send", c.rank, down(c.wrErr))
}

func (c *conn) gatherCtl(g *gather) {
	if b := c.ctl[c.ctlOff:]; len(b) > 0 {
		g.add(b)
		g.planned(fromCtl, len(b))
	}
}

func (c *conn) gatherMsgs(g *gather) {
	i, bytes := 0, 0
	for op := c.msgs.head; op != nil && i < gatherMsgs && bytes < chunkSize; op = op.Next {
		h := g.hdrs[i][:wire.TCPHeaderSize+op.HeaderLen]
		wire.PutTCPMsg(h, op.HeaderLen+len(op.Data))
		copy(h[wire.TCPHeaderSize:], op.Header[:op.HeaderLen])
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
	z := s.zeros
	for ; z > 0 && g.niov < gatherIovs-1; z -= len(zeroPage) {
		g.add(zeroPage[:min(z, len(zeroPage))])
	}
	if z <= 0 && s.tlen > 0 {
		s.tail[0] = byte(s.failed)
		g.add(s.tail[:])
	}
	g.planned(fromStream, g.total-before)
}

// pickStream chooses the stream of the next chunk: replies and writes in
// turns, each kind in a round.
func (c *conn) pickStream() bool {
	for range 2 {
		c.turn = !c.turn
		if c.turn {
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

// prepare cuts the next chunk.
func (c *conn) prepare(s *stream) {
	n := min(len(s.src), chunkSize)
	s.chunk, s.src = s.src[:n], s.src[n:]
	f := wire.TCPFrame{Type: wire.TCPData, ID: s.id, Length: uint32(n)}
	if s.write {
		f.Type, f.Key, f.Addr, f.Total, f.Offset = wire.TCPWrite, s.key, s.addr, uint64(s.total), uint64(s.off)
		c.rma.tokens--
		c.rma.slots[s.slot].unacked++
	} else if n > 0 {
		s.tlen = 1
	}
	s.off += n
	s.hlen, s.hoff, s.ready = f.Put(s.hdr[:]), 0, true
}

// written accounts for n bytes of what was gathered.
func (c *conn) written(g *gather, n int) {
	c.mid = fromNone
	for i := 0; i < g.nplan && n > 0; i++ {
		k := min(n, g.plan[i].left)
		n -= k
		whole := k == g.plan[i].left
		switch g.plan[i].from {
		case fromCtl:
			c.ctlOff += k
			if c.ctlOff == len(c.ctl) { // more may have come behind what was gathered
				c.ctl, c.ctlOff = c.ctl[:0], 0
			}
		case fromMsgs:
			if whole {
				c.d.opDone(c.msgs.pop(), nil)
			} else {
				c.msgs.head.Scratch += uint64(k)
			}
		case fromStream:
			whole = c.streamed(k)
		case fromNone:
		}
		if !whole {
			c.mid = g.plan[i].from
		}
	}
}

// streamed accounts for k bytes of the current stream; true if its chunk is
// complete.
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
	case len(s.src) == 0: // also where the rest was given up
		c.endReply(s)
	default:
		c.replies.push(s)
	}
	return true
}

func (c *conn) endReply(s *stream) {
	c.rma.serving--
	c.d.freeStream(s)
}

// control queues a frame without bytes.
func (c *conn) control(f wire.TCPFrame) {
	if c.state != connUp {
		return
	}
	if cap(c.ctl)-len(c.ctl) < wire.TCPMaxHeader {
		if c.ctlOff > 0 {
			c.ctl = c.ctl[:copy(c.ctl, c.ctl[c.ctlOff:])]
			c.ctlOff = 0
		}
		if cap(c.ctl)-len(c.ctl) < wire.TCPMaxHeader {
			grown := make([]byte, len(c.ctl), 2*cap(c.ctl)+16*wire.TCPMaxHeader)
			copy(grown, c.ctl)
			c.ctl = grown
		}
	}
	n := len(c.ctl)
	c.ctl = c.ctl[:n+wire.TCPMaxHeader]
	c.ctl = c.ctl[:n+f.Put(c.ctl[n:])]
	c.wantOutput()
}
