package tcp

import (
	"golang.org/x/sys/unix"

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

// poll reads what has come, up to workPerRead or until the user's completions
// are full. It runs once per connection in a Read of the queue: the messages
// given out before it are void.
func (c *conn) poll() {
	d := c.d
	c.polled = d.round
	if c.live < 0 {
		return
	}
	if c.rpos > 0 {
		c.wpos = copy(c.buf, c.buf[c.rpos:c.wpos])
		c.rpos = 0
	}
	if c.more && !c.parse() {
		return
	}
	for budget := workPerRead; budget > 0 && !c.more && c.state < connGone; {
		var n, asked int
		var err error
		if len(c.in.dst) > 0 {
			n, asked, err = c.recvInto(budget)
		} else {
			if c.wpos == len(c.buf) {
				c.more, d.anyMore = true, true // room comes with the next Read
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
		case landVerdict:
			if len(b) == 0 {
				c.need = 1
				return true
			}
			c.rpos++
			if err := c.judged(wire.TCPStatus(b[0])); err != nil {
				c.fail("receive", err)
				return false
			}
			continue
		case landSkip:
			k := min(c.in.skip, len(b))
			c.rpos += k
			if c.in.skip -= k; c.in.skip > 0 {
				return true
			}
			c.landed()
			continue
		case landNone:
		}
		if len(b) < wire.TCPHeaderSize {
			c.need = wire.TCPHeaderSize - len(b)
			return true
		}
		if n, ok := wire.TCPMsgLen(b); ok {
			end := wire.TCPHeaderSize + n
			if len(b) < end {
				c.need = end - len(b)
				return true
			}
			if d.drop {
				c.rpos += end
				continue
			}
			if d.done.Full() {
				c.more, d.anyMore = true, true
				return false
			}
			msg := b[wire.TCPHeaderSize:end:end]
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
		if err == nil {
			c.rpos += n
			err = c.take(f)
		} else {
			err = violated("%w", err)
		}
		if err != nil {
			c.fail("receive", err)
			return false
		}
	}
}

// take handles a frame other than a message; its bytes are still to come.
func (c *conn) take(f *wire.TCPFrame) error {
	if c.bye && (f.Type == wire.TCPRead || f.Type == wire.TCPWrite) { // nobody hears our answer
		c.in.kind, c.in.skip, c.in.ack = landSkip, int(f.Length), false
		return nil
	}
	switch f.Type {
	case wire.TCPRead:
		return c.onRead(f)
	case wire.TCPData:
		return c.onData(f)
	case wire.TCPWrite:
		return c.onWrite(f)
	case wire.TCPAck:
		return c.onAck(f)
	case wire.TCPBye:
		c.leave()
		return nil
	case wire.TCPMsg: // parse has taken all that are valid
	}
	return violated("frame of type %d", f.Type)
}

// setOut asks epoll for room to write too, or no longer.
func (c *conn) setOut(on bool) {
	if c.epollOut == on || c.live < 0 {
		return
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(c.rank)}
	if on {
		ev.Events |= unix.EPOLLOUT
	}
	// It cannot fail for a descriptor that is there; if it did, the next Arm
	// would try again.
	if unix.EpollCtl(c.d.epfd, unix.EPOLL_CTL_MOD, c.fd, &ev) == nil {
		c.epollOut = on
	}
}
