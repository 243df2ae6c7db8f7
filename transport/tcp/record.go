package tcp

import (
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// With transport.tcp.security = "none", frames are written and read as they are. With "integrity"
// and "encrypt", a layer below the frames seals the bytes that gather has collected into records,
// as TLS does, and opens received records into frames (see wire.TCPSealer):
//
//	gather ── seal ──► record ── send ──► recv ──► record ── open ──► buf, or the data's destination
//
// A record holds copies, so a message is complete when its last byte is in a record. If the socket
// takes only a part of a record, the rest is written before anything else.

// record is a buffer. An output buffer (conn.out) has room for the largest sealed record, and an
// input buffer (conn.partial) has room for two.
type record struct {
	b []byte
	// For output, b[off:at] is still to be written. For input, b[off:at] was read from the socket
	// and is not opened yet.
	off, at int
	next    *record // the next unused record in a recordPool
}

// recordRoom is the size of the largest record in bytes.
const recordRoom = wire.TCPRecordHead + wire.TCPMaxRecord + wire.TCPRecordTag

// keptRecords is the largest number of unused records that a recordPool keeps.
const keptRecords = 4

// recordPool holds unused records of one size.
type recordPool struct {
	size int     // of each record, in bytes
	free *record // the unused records, linked by next
	n    int     // number of unused records
}

func (p *recordPool) get() *record {
	r := p.free
	if r == nil {
		return &record{b: make([]byte, p.size)}
	}
	p.free, r.next = r.next, nil
	p.n--
	return r
}

// put returns *r, which may be nil, to the pool, and sets *r to nil.
func (p *recordPool) put(r **record) {
	if *r != nil && p.n < keptRecords {
		(*r).off, (*r).at, (*r).next = 0, 0, p.free
		p.free = *r
		p.n++
	}
	*r = nil
}

// protect sets the keys of a new connection, which come from its handshake.
func (c *conn) protect(p *wire.TCPProtection) {
	c.sign, c.check, c.seal, c.open = p.SignFrames, p.CheckFrames, p.Seal, p.Open
}

// sendSealed sends a message of size bytes as records, on a connection that has no pending output.
// It copies a small message and returns true: the caller may reuse op. It queues a larger message
// and returns false: a completion follows.
//
// Hot path: no allocation, at most one system call.
func (c *conn) sendSealed(op *transport.Op, size int) (bool, error) {
	small := size <= batchMsg
	if small {
		c.copyMsg(op, size)
	} else {
		c.msgs.push(op)
		c.wantOutput()
	}
	c.pushRecords()
	return small, nil
}

// pushRecords does what push does, on a connection whose output is sealed into records.
func (c *conn) pushRecords() {
	g := &c.d.gather
	for budget := workPerRead; budget > 0 && c.state == connUp && c.hasOutput(); {
		if c.out == nil {
			if c.gather(g); g.total == 0 {
				return
			}
			if err := c.sealGathered(g); err != nil {
				c.writeFailed(err)
				return
			}
		}
		r := c.out
		n, err := send(c.fd, r.b[r.off:r.at])
		if err == errAgain { //nolint:errorlint // never wrapped
			return
		}
		if err != nil {
			c.writeFailed(err)
			return
		}
		budget -= n
		if r.off += n; r.off < r.at {
			return
		}
		c.d.sealed.put(&c.out)
	}
}

// sealGathered seals the first bytes of g, as many as a record holds, into a record, and stores the
// record in c.out.
func (c *conn) sealGathered(g *gather) error {
	r := c.d.sealed.get()
	src := bytesOf(&g.iov[0])
	n := min(len(src), wire.TCPMaxRecord)
	// If there are several iovecs, copy them to the record, where they are sealed in place.
	if n < wire.TCPMaxRecord && g.niov > 1 {
		body := r.b[wire.TCPRecordHead:][:wire.TCPMaxRecord]
		n = 0
		for i := 0; i < g.niov && n < len(body); i++ {
			n += copy(body[n:], bytesOf(&g.iov[i]))
		}
		src = body
	}
	c.out = r
	var err error
	r.at, err = c.seal.Seal(r.b, src[:n])
	c.written(g, n)
	return err
}

// roomForRecord reports whether buf has room for the bytes of the largest record.
func (c *conn) roomForRecord() bool { return len(c.buf)-c.wpos >= recordRoom }

// recvRecords reads from the socket once, and opens and parses all whole records. If the slice that
// the caller has passed to Read is full, the opened bytes stay in buf; recvRecords reads no more
// than fits there. It returns the number of bytes read, and the number of bytes that it has asked
// for. If a record is not valid, recvRecords makes the connection fail.
func (c *conn) recvRecords() (n, asked int, err error) {
	if c.partial == nil {
		c.partial = c.d.received.get()
	}
	r := c.partial
	if len(r.b)-r.at < recordRoom {
		r.at = copy(r.b, r.b[r.off:r.at])
		r.off = 0
	}
	asked = min(recordRoom, len(c.buf)-c.wpos-(r.at-r.off))
	n, err = recv(c.fd, r.b[r.at:r.at+asked])
	if n <= 0 {
		if r.off == r.at {
			c.d.received.put(&c.partial)
		}
		return n, asked, err
	}
	r.at += n
	for blocked := false; ; {
		size, err := c.open.Size(r.b[r.off:r.at])
		if err != nil {
			c.fail("receive", protocolError("%w", err))
			return n, asked, nil
		}
		if size == 0 || size > r.at-r.off {
			break
		}
		rec := r.b[r.off : r.off+size]
		r.off += size
		if err := c.openRecord(rec); err != nil {
			c.fail("receive", protocolError("%w", err))
			return n, asked, nil
		}
		blocked = blocked || !c.parse()
		if c.state == connGone {
			return n, asked, nil
		}
	}
	if r.off == r.at {
		c.d.received.put(&c.partial)
	}
	return n, asked, nil
}

// openRecord opens a record. If the record holds only data of the read or write that is being
// received, openRecord writes them to their destination, otherwise to buf.
func (c *conn) openRecord(rec []byte) error {
	n := len(rec) - wire.TCPRecordHead - wire.TCPRecordTag
	if c.rpos == c.wpos && n <= len(c.in.dst) {
		if err := c.open.Open(c.in.dst[:n], rec); err != nil {
			return err
		}
		if c.in.dst = c.in.dst[n:]; n > 0 && len(c.in.dst) == 0 {
			c.frameReceived()
		}
		return nil
	}
	if err := c.open.Open(c.buf[c.wpos:c.wpos+n], rec); err != nil {
		return err
	}
	c.wpos += n
	return nil
}
