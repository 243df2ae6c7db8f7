package tcp

import (
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// copyLimit is a size in bytes. Up to this size, it is cheaper to copy a message's data behind
// its header than to pass the data to the kernel as a second iovec.
const copyLimit = 1024

type endpoint struct{ d *domain }

func (e *endpoint) Address() transport.Address { return e.d.address }

// check returns an error if op.Peer is no rank or has no address, if op's header is too long, or if
// the caller has called Shutdown or Close.
func (d *domain) check(op *transport.Op) error {
	switch {
	case d.closed, d.left:
		return transport.ErrClosed
	case uint(op.Peer) >= uint(len(d.conns)), int(op.Peer) >= d.av.Len() && op.Peer != d.self:
		return transport.ErrAddress
	case uint(op.HeaderLen) > transport.HeaderSize:
		return transport.ErrTooLarge
	}
	return nil
}

// Send may add a small message to a batch, if the caller has called EnableBatch (see output.go).
// Otherwise, if the connection is up and has no output, Send writes the message to the socket. Send
// queues a message that it cannot write now, or the rest of it. If there is no connection, Send
// starts to make one. Messages to this rank itself do not use a socket.
//
// Hot path: no allocation; at most one system call, or more if Send first writes a batch.
func (e *endpoint) Send(op *transport.Op) (bool, error) {
	d := e.d
	if err := d.check(op); err != nil {
		return false, err
	}
	size := op.HeaderLen + len(op.Data)
	if size > wire.TCPMaxMsg {
		return false, transport.ErrTooLarge
	}
	if op.Peer == d.self {
		return d.loop.Send(op)
	}
	c := d.peer(op.Peer)
	op.Scratch = 0
	if d.batching && c.state == connUp && c.wrErr == nil {
		if c.addToBatch(op, size) {
			return true, nil
		}
		if c.batched { // earlier messages are in a batch, which must be written first
			c.push()
		}
	}
	if c.state != connUp || c.hasOutput() {
		if err := c.startConnect(); err != nil {
			return false, err
		}
		c.msgs.push(op)
		return false, nil
	}
	if c.wrErr != nil {
		return false, c.err
	}
	if c.seal != nil {
		return c.sendSealed(op, size)
	}
	n, err := c.write(op, size)
	switch {
	case err == errAgain: //nolint:errorlint // never wrapped
	case err != nil:
		c.writeFailed(err)
		return false, c.err
	case n == wire.TCPPrefixSize+size:
		c.sign.Skip(wire.TCPMessages)
		return true, nil
	case n > 0:
		op.Scratch, c.partlyWritten = uint64(n), fromMsgs
	}
	c.msgs.push(op)
	c.wantOutput()
	return false, nil
}

// write writes as much of a message of size bytes as the socket takes. It returns the number of
// bytes written, including the frame's prefix.
func (c *conn) write(op *transport.Op, size int) (int, error) {
	d := c.d
	h := putMsg(d.scratch[:], op, size)
	c.sign.Sign(d.scratch[:h], wire.TCPMessages, c.sign.Next(wire.TCPMessages))
	if len(op.Data) <= copyLimit {
		copy(d.scratch[h:], op.Data)
		return send(c.fd, d.scratch[:h+len(op.Data)])
	}
	iov := d.gather.iov[:2]
	iov[0].Base = &d.scratch[0]
	iov[0].SetLen(h)
	iov[1].Base = &op.Data[0]
	iov[1].SetLen(len(op.Data))
	n, err := sendv(c.fd, &d.gather.msg, iov, h+len(op.Data))
	iov[1] = unix.Iovec{}
	return n, err
}

// EnableBatch implements transport.BatchEndpoint. From now on Send collects the small messages of
// a burst in a batch; see output.go.
func (e *endpoint) EnableBatch() { e.d.batching = true }

// Unsent reports whether a connection has output that the next Read may write.
func (e *endpoint) Unsent() bool { return len(e.d.outq) > 0 }

// Connect starts to connect with a peer, unless there is a connection or an attempt to make one. It
// does not wait.
func (e *endpoint) Connect(peer transport.Addr) error {
	op := transport.Op{Peer: peer}
	if err := e.d.check(&op); err != nil || peer == e.d.self {
		return err
	}
	return e.d.peer(peer).startConnect()
}

// Disconnect marks a peer as failed. It closes the connection with the peer, or ends the attempt to
// make one, and refuses later connections. SO_LINGER with time 0 makes the kernel drop the bytes
// that the peer has not acknowledged. Without it, if the peer's host is cut off, the kernel would
// retransmit these bytes for a quarter of an hour.
func (e *endpoint) Disconnect(peer transport.Addr) error {
	op := transport.Op{Peer: peer}
	switch err := e.d.check(&op); {
	case err != nil:
		return err
	case peer == e.d.self:
		return transport.ErrAddress
	}
	c := e.d.peer(peer)
	if c.fd >= 0 {
		// If this fails, the only harm is that the kernel keeps the bytes for longer.
		_ = unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	c.fail("disconnect", errDisconnected)
	return nil
}

// Read sends a read request to the peer. The peer answers with the bytes, which go to op.Data.
func (e *endpoint) Read(op *transport.Op) error { return e.rma(op, true) }

// Write sends the bytes of op.Data to the peer. The peer stores them in its region and
// acknowledges them.
func (e *endpoint) Write(op *transport.Op) error { return e.rma(op, false) }

func (e *endpoint) rma(op *transport.Op, read bool) error {
	d := e.d
	if err := d.check(op); err != nil {
		return err
	}
	if op.Peer == d.self {
		d.selfRMA(op, read)
		return nil
	}
	c := d.peer(op.Peer)
	if c.wrErr != nil {
		return c.err
	}
	return c.post(op, read)
}
