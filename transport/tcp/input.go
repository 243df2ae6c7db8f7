package tcp

import (
	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// What comes from a peer lies in the connection's buffer, and messages are
// given to the user there. Bytes of reads and writes go where they belong by
// the kernel's hand, but for those that came along with their frame's header:
//
//	while a reply or write is under way:  readv( rest of its place, buffer )
//	while a reply is awaited:             recv( buffer, a little )
//	else:                                 recv( buffer )

// If a domain has many connections, a connection without unread bytes has no buffer:
//
//	poll: borrow ──► read, parse ──► nothing left ──► the next Read of the queue: give back
//
// The connection keeps the buffer until that Read, because the user may use messages in it.

// maxFreeBufs bounds the buffers that a domain keeps for later.
const maxFreeBufs = 32

// borrow returns a buffer for a connection.
func (d *domain) borrow() []byte {
	n := len(d.freeBufs)
	if n == 0 {
		return make([]byte, bufSize)
	}
	b := d.freeBufs[n-1]
	d.freeBufs[n-1] = nil
	d.freeBufs = d.freeBufs[:n-1]
	return b
}

// collect takes back the buffers of connections that have ended or have no unread bytes.
func (d *domain) collect() {
	for i, c := range d.drained {
		d.drained[i] = nil
		if c.buf == nil || c.rpos < c.wpos && c.fd >= 0 {
			continue
		}
		if len(d.freeBufs) < maxFreeBufs {
			d.freeBufs = append(d.freeBufs, c.buf)
		}
		c.buf, c.rpos, c.wpos = nil, 0, 0
	}
	d.drained = d.drained[:0]
}

// poll reads and parses the bytes that have arrived. It runs once per connection in a Read
// of the queue: messages that earlier Reads returned are no longer valid.
func (c *conn) poll() {
	d := c.d
	c.polled = d.round
	if c.live < 0 {
		return
	}
	if c.buf == nil {
		c.buf = d.borrow()
	}
	c.receive()
	if c.rpos == c.wpos && c.live >= 0 && len(d.live) > directConns {
		d.drained = append(d.drained, c)
	}
}

// receive reads and parses the bytes that have arrived. It stops after workPerRead bytes,
// or when the user's completions are full.
func (c *conn) receive() {
	d := c.d
	// Small messages that wait for room in the user's completions stay where they
	// are: they would be moved once for every few that the user takes.
	if c.rpos > 0 && (!c.more || len(c.buf)-c.wpos < bufSize/2) {
		c.wpos = copy(c.buf, c.buf[c.rpos:c.wpos])
		c.rpos = 0
	}
	if c.more && !c.parse() {
		return
	}
	for budget := workPerRead; budget > 0 && !c.more && c.state < connGone; {
		var n, asked int
		var err error
		switch {
		case c.open != nil:
			if !c.roomForRecord() {
				c.more, d.anyMore = true, true // the next Read brings room
				return
			}
			n, asked, err = c.recvRecords()
			if c.state == connGone {
				return
			}
		case len(c.in.dst) > 0:
			n, asked, err = c.recvInto(budget)
		default:
			if c.wpos == len(c.buf) {
				c.more, d.anyMore = true, true // the next Read brings room
				return
			}
			limit := readSize
			if c.rma != nil && c.rma.reads > 0 {
				limit = bulkRead
			}
			asked = min(limit+c.need, len(c.buf)-c.wpos)
			n, err = recv(c.fd, c.buf[c.wpos:c.wpos+asked])
			if n > 0 {
				c.wpos += n
			}
		}
		switch {
		case err == errAgain: //nolint:errorlint // the very value, on the hot path
			if c.wrErr != nil {
				c.fail("send", c.wrErr)
			}
			return
		case err != nil:
			c.ended(err)
			return
		case n == 0:
			c.ended(nil)
			return
		}
		if !c.parse() || n < asked {
			return
		}
		budget -= n
		if d.done.Full() {
			return
		}
	}
}

// recvInto reads into the place of the bytes under way and, behind them, the
// buffer, which is empty at that time.
func (c *conn) recvInto(budget int) (n, asked int, err error) {
	d := c.d
	dst := c.in.dst[:min(len(c.in.dst), max(budget, longCopy))]
	iov := d.gather.iov[:1]
	iov[0].Base = &dst[0]
	iov[0].SetLen(len(dst))
	asked = len(dst)
	if spare := min(bulkRead, len(c.buf)-c.wpos); spare > 0 && len(dst) == len(c.in.dst) {
		iov = d.gather.iov[:2]
		iov[1].Base = &c.buf[c.wpos]
		iov[1].SetLen(spare)
		asked += spare
	}
	n, err = recvv(c.fd, iov, asked)
	if n <= 0 {
		return n, asked, err
	}
	k := min(n, len(dst))
	c.in.dst = c.in.dst[k:]
	c.wpos += n - k
	if len(c.in.dst) == 0 {
		c.landed()
	}
	return n, asked, nil
}

// ended notes the end of the stream; cause is nil for one in good order.
func (c *conn) ended(cause error) {
	switch {
	case c.state == connLeft, c.bye && cause == nil:
		// One side has said goodbye and the other has taken all of it.
		c.closeFD()
		c.state = connGone
		if c.err == nil {
			c.err = transport.ErrClosed
		}
		c.endOps()
	case c.wrErr != nil:
		c.fail("send", c.wrErr)
	case cause != nil:
		c.fail("receive", cause)
	default:
		c.fail("receive", errLost)
	}
}

// parse takes the frames that are in the buffer. It answers false where no
// more may be read in this round.
func (c *conn) parse() bool {
	d := c.d
	c.more, c.need = false, 0
	for {
		if c.state >= connLeft {
			c.rpos = c.wpos
			return c.state == connLeft
		}
		b := c.buf[c.rpos:c.wpos]
		switch c.in.kind {
		case landData, landWrite:
			k := copy(c.in.dst, b)
			c.rpos += k
			if c.in.dst = c.in.dst[k:]; len(c.in.dst) > 0 {
				return true
			}
			c.landed()
			continue
		case landSkip:
			k := min(c.in.skip, len(b))
			c.rpos += k
			if c.in.skip -= k; c.in.skip > 0 {
				return true
			}
			c.landed()
			continue
		case landNone, landEnd:
		}
		if len(b) < wire.TCPPrefixSize {
			c.need = wire.TCPPrefixSize - len(b)
			return true
		}
		class := wire.TCPType(b[0]).Class()
		if !c.check.WordHolds(b, class) {
			c.fail("receive", errChanged)
			return false
		}
		if head, n, ok := wire.TCPMsgLen(b); ok && c.in.kind == landNone {
			end := wire.TCPPrefixSize + n
			if len(b) < end {
				c.need = end - len(b)
				return true
			}
			if !d.drop && d.done.Full() {
				c.more, d.anyMore = true, true
				return false
			}
			if !c.check.HeaderHolds(b[:wire.TCPPrefixSize+head], class) {
				c.fail("receive", errChanged)
				return false
			}
			if d.drop {
				c.rpos += end
				continue
			}
			msg := b[wire.TCPPrefixSize:end:end]
			d.done.Out = append(d.done.Out, transport.Completion{Kind: transport.RecvDone, Peer: c.rank, Msg: msg})
			c.rpos += end
			continue
		}
		f := &d.frame
		n, err := f.Parse(b)
		if err == nil && n == 0 {
			c.need = wire.TCPMaxHeader - len(b)
			return true
		}
		switch {
		case n > 0 && !c.check.HeaderHolds(b[:n], class):
			err = errChanged
		case err != nil:
			err = violated("%w", err)
		default:
			c.rpos += n
			err = c.take(f)
		}
		if err != nil {
			c.fail("receive", err)
			return false
		}
	}
}

// take handles a frame other than a message; its bytes are still to come.
func (c *conn) take(f *wire.TCPFrame) error {
	if (c.in.kind == landEnd) != (f.Type == wire.TCPEnd) {
		return violated("frame of type %d in place of, or without, the end of a reply's bytes", f.Type)
	}
	if c.bye && (f.Type == wire.TCPRead || f.Type == wire.TCPWrite) { // nobody hears our answer
		c.in.kind, c.in.skip, c.in.ack = landSkip, int(f.Length), false
		return nil
	}
	switch f.Type {
	case wire.TCPRead:
		return c.onRead(f)
	case wire.TCPData:
		return c.onData(f)
	case wire.TCPEnd:
		return c.onEnd(f.Status)
	case wire.TCPRefuse:
		return c.onRefuse(f)
	case wire.TCPWrite:
		return c.onWrite(f)
	case wire.TCPAck:
		return c.onAck(f)
	case wire.TCPBye:
		if f.Counts != c.check.Counts() {
			return errCut
		}
		c.leave()
		return nil
	case wire.TCPGiveUp:
		return errPeerGaveUp
	case wire.TCPMsg: // parse has taken all that are valid
	}
	return violated("frame of type %d", f.Type)
}

// setOut has Wait end when there is room to write too, or no longer.
func (c *conn) setOut(on bool) {
	if c.asksOut == on || c.live < 0 {
		return
	}
	want := sys.In
	if on {
		want |= sys.Out
	}
	// It cannot fail for a descriptor that is there; if it did, the next Arm
	// would try again.
	if c.d.poller.Modify(c.fd, int(c.rank), want) == nil {
		c.asksOut = on
	}
}
