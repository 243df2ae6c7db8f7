package tcp

import (
	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Received frames are in the connection's input buffer, and Read returns messages as views of it.
// If transport.tcp.security is "none" (else see record.go), the data of RMA reads and writes go
// from the kernel straight to their destination, except the bytes that arrive in the same system
// call as their frame's header. Which system call receive makes, and where the bytes go, depends on
// the state of the connection:
//
//	the data of a reply or write are being received:  readv( rest of the destination, buffer )
//	a reply to a read by this rank is expected:       recv( buffer, bulkRead )
//	otherwise:                                        recv( buffer, readSize )

// If a domain has more than directConns connections, a connection whose bytes are all parsed gives
// its buffer back to the domain:
//
//	poll: borrow ──► read, parse ──► all bytes parsed ──► the next Read of the queue: collect
//
// The connection keeps the buffer until that Read, because the caller may use messages in it.

// maxFreeBufs bounds the number of unused buffers that a domain keeps.
const maxFreeBufs = 32

// borrow returns an input buffer of bufSize bytes: one of d.freeBufs, or a new one if there is
// none.
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

// collect takes back the input buffers of connections in d.drained that have ended or whose bytes
// are all parsed.
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

// poll reads and parses the bytes that have arrived. It runs at most once per connection in a Read
// of the queue, so it may overwrite the messages that the last Read returned, but not those of this
// Read.
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

// receive reads and parses the bytes that have arrived. It stops when the socket has no more bytes,
// after workPerRead bytes, when the slice that the caller has passed to Read is full, when buf has
// no room, or when the connection ends.
func (c *conn) receive() {
	d := c.d
	// Move the unparsed bytes to the beginning of buf. But if buf may hold whole messages (c.more),
	// leave them where they are as long as there is room behind them. Otherwise each Read that takes
	// a few messages would move all the others.
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
				c.more, d.anyMore = true, true // the next Read makes room
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
				c.more, d.anyMore = true, true // the next Read makes room
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
		case err == errAgain: //nolint:errorlint // never wrapped
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

// recvInto reads the data of a read or write to their destination, c.in.dst. If it asks for all the
// missing data, it also reads bytes that follow them, to the buffer, which has no unparsed bytes at
// that time. It asks for at most budget bytes of the data, or longCopy if that is more. It returns
// the number of bytes read, and the number of bytes that it has asked for.
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
		c.frameReceived()
	}
	return n, asked, nil
}

// ended handles the end of the peer's bytes. If recv has returned an error, cause is that error; if
// recv has returned 0, cause is nil.
func (c *conn) ended(cause error) {
	switch {
	case c.state == connLeft, c.byeSent && cause == nil:
		// The peer has sent its bye, or this rank has, so the connection ends in good order.
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
		c.fail("receive", errNoBye)
	}
}

// parse handles the frames in the buffer. It returns false if receive must not read more in this
// Read: the connection has ended, or the slice that the caller has passed to Read is full.
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
		case recvReply, recvWrite:
			k := copy(c.in.dst, b)
			c.rpos += k
			if c.in.dst = c.in.dst[k:]; len(c.in.dst) > 0 {
				return true
			}
			c.frameReceived()
			continue
		case recvDrop:
			k := min(c.in.skip, len(b))
			c.rpos += k
			if c.in.skip -= k; c.in.skip > 0 {
				return true
			}
			c.frameReceived()
			continue
		case recvFrame, recvEnd:
		}
		if len(b) < wire.TCPPrefixSize {
			c.need = wire.TCPPrefixSize - len(b)
			return true
		}
		class := wire.TCPType(b[0]).Class()
		if !c.check.WordHolds(b, class) {
			c.fail("receive", errHeaderCheck)
			return false
		}
		if head, n, ok := wire.TCPMsgLen(b); ok && c.in.kind == recvFrame {
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
				c.fail("receive", errHeaderCheck)
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
			err = errHeaderCheck
		case err != nil:
			err = protocolError("%w", err)
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

// take handles the header of a frame that is not a message. It returns a protocol error if the
// frame is not valid now. The payload of the frame, if any, has not been parsed yet.
func (c *conn) take(f *wire.TCPFrame) error {
	if (c.in.kind == recvEnd) != (f.Type == wire.TCPEnd) {
		return protocolError("frame of type %d in place of, or without, the end of a reply's bytes", f.Type)
	}
	// A rank sends nothing after its bye, so it does not answer.
	if c.byeSent && (f.Type == wire.TCPRead || f.Type == wire.TCPWrite) {
		c.in.kind, c.in.skip, c.in.ack = recvDrop, int(f.Length), false
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
			return errFramesMissing
		}
		c.leave()
		return nil
	case wire.TCPGiveUp:
		return errPeerEnded
	case wire.TCPMsg: // not reached: parse handles messages
	}
	return protocolError("frame of type %d", f.Type)
}

// setOutEvents sets whether the poller, and so Wait, also reports that the socket has room for
// output.
func (c *conn) setOutEvents(on bool) {
	if c.outEvents == on || c.live < 0 {
		return
	}
	want := sys.In
	if on {
		want |= sys.Out
	}
	// Modify should not fail for a descriptor that the poller has. If it fails all the same, the
	// next call of setOutEvents tries again.
	if c.d.poller.Modify(c.fd, int(c.rank), want) == nil {
		c.outEvents = on
	}
}
