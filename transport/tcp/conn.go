package tcp

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// connState is the state of the connection with a peer. A bye is the last frame of a rank that
// shuts down. The end of the peer's bytes comes when the peer has closed its sending side.
//
//	     first use            handshake done        bye received      end of the peer's bytes
//	new ──────────► waiting ────────────────► up ────────────► left ──────────────────────► gone
//	                   └──────── failed ──────┴──► gone ◄─ failed ─┘
//
// The diagram shows the usual transitions. A connection that the peer makes may go from new to up.
// From every state a failure leads to gone. In the states left and gone, operations with the peer
// return c.err.
type connState uint8

const (
	connNew     connState = iota
	connWaiting           // operations are queued until the handshake ends
	connUp
	connLeft // the peer has sent its bye; poll reads and drops the bytes that follow
	connGone
)

// Sizes of a connection's input, in bytes. One recv asks for readSize or bulkRead bytes, and in
// addition for the missing bytes of a frame that has arrived in part (conn.need).
const (
	// bufSize is the size of the input buffer. The largest message fits behind messages that the
	// caller of Read still uses.
	bufSize  = 2 * wire.TCPMaxMsg
	readSize = 64 << 10
	// bulkRead is used while this rank awaits replies to reads, so that most of their bytes go
	// straight to op.Data.
	bulkRead = 4 << 10
)

// loopbackSendBuf is the size in bytes of the send buffer of a connection with a loopback address.
// With the kernel's default, several megabytes are in transit, more than the second-level cache
// holds, and a series of 1 MiB messages takes 1.5 times as long. For other addresses the kernel
// chooses the size, because it measures the round-trip time. transport.tcp.send_buffer overrides
// both.
const loopbackSendBuf = 150_000

// recvState says what the next bytes from the peer are.
type recvState uint8

const (
	recvFrame recvState = iota // a frame
	recvReply                  // data of a reply to a read by this rank; they go to op.Data
	recvEnd                    // the end frame (wire.TCPEnd) that follows the data of a reply
	recvWrite                  // data of a write by the peer; they go to a memory region
	// recvDrop: data of a write by the peer that this rank drops, for example because the write
	// has no valid target.
	recvDrop
)

// conn is the state of the connection with one peer, and of the operations with that peer.
type conn struct {
	d     *domain
	rank  transport.Addr // of the peer
	state connState
	fd    int // the socket; -1: none
	live  int // index in d.live; -1: not in d.live
	// err is nil until the peer has left, the connection or a write has failed, or the domain was
	// closed. Then it is the error of operations with the peer.
	err error
	// wrErr is the error of a write to the socket, or nil if no write has failed. After such an
	// error, poll still reads what the peer has sent.
	wrErr error

	// Security, see record.go.
	// sign computes the checks of the frames written, and check verifies the checks of the frames
	// read.
	sign, check *wire.TCPCheck
	// seal makes the records written, and open opens the records read. Both are nil with security
	// "none".
	seal, open *wire.TCPSealer
	out        *record // the record that is not wholly written yet; nil: none
	partial    *record // bytes from the socket that are not a whole record yet; nil: none

	// Input. Bytes buf[rpos:wpos] have been read from the socket and not parsed. Until the next
	// Read, the bytes before rpos may be messages that the caller of Read still uses.
	buf        []byte // borrowed from the domain ([domain.borrow]); nil while the connection needs no buffer
	rpos, wpos int
	polled     uint // d.round at the last poll of this connection
	need       int  // an estimate of how many bytes of the frame at rpos have not been read
	// more: receive has stopped early, so buf may hold a whole frame, or has no room. The next
	// Read calls poll even without new input.
	more bool
	in   struct {
		kind   recvState
		dst    []byte  // recvReply, recvWrite: the memory still to be filled
		skip   int     // recvDrop: number of bytes still to be dropped
		slot   uint32  // recvReply, recvEnd: index in rma.slots of the read
		region *region // recvWrite: the region that the data go to; nil in the other states
		id     uint64  // recvWrite, recvDrop: the id of the write
		// ack is for recvWrite and recvDrop: this rank acknowledges the write when its data have
		// arrived.
		ack    bool
		status wire.TCPStatus // recvWrite, recvDrop: the status in that acknowledgement
	}

	// Output, see output.go.
	msgs opQueue // messages that are not copied to frames, and not wholly written
	// frames has whole frames: control frames and copies of small messages. frames[:framesOff] is
	// written.
	frames    []byte
	framesOff int  // number of written bytes of frames
	batched   bool // frames has messages that no call of [conn.push] has tried to write yet
	sentIn    uint // d.round at the last call of [conn.inBurst]
	// sentAt is the time of that call, since d.created. It is 0 if that call was the first one of
	// inBurst with this value of d.round.
	sentAt        time.Duration
	replies       streamQueue // replies to the peer's reads that wait for their next chunk
	writes        streamQueue // writes by this rank that wait for their next chunk
	cur           *stream     // the reply or write whose chunk is next or is partly written; nil: none
	writesFirst   bool        // the last step of [conn.pickStream] tried writes; false: it tried replies
	partlyWritten source      // the source whose first frame is partly written; fromNone if there is none
	inOut         bool        // this connection is in d.outq
	outEvents     bool        // the poller reports when the socket has room for output
	byeSent       bool        // the bye is in frames or written
	shut          bool        // endOutput has closed the sending side of the socket

	// rmaWait has the reads and writes that have not started, because there is no connection yet
	// or the window is full.
	rmaWait opQueue
	rma     *rma // state of the reads and writes; nil until the first one in either direction
}

// opQueue is a first-in, first-out queue of operations, linked by Op.Next.
type opQueue struct{ head, tail *transport.Op }

func (q *opQueue) push(op *transport.Op) {
	op.Next = nil
	if q.tail == nil {
		q.head = op
	} else {
		q.tail.Next = op
	}
	q.tail = op
}

func (q *opQueue) pop() *transport.Op {
	op := q.head
	q.head = op.Next
	if q.head == nil {
		q.tail = nil
	}
	op.Next = nil
	return op
}

// peer returns the conn of a rank. It makes one if there is none yet.
func (d *domain) peer(a transport.Addr) *conn {
	c := d.conns[a]
	if c == nil {
		c = &conn{d: d, rank: a, fd: -1, live: -1}
		d.conns[a] = c
	}
	return c
}

// startConnect starts to connect with the peer, if that has not begun yet. It does not wait. If the
// peer has left or failed, startConnect returns c.err. If the address vector has no address for the
// peer, it returns an error.
func (c *conn) startConnect() error {
	switch c.state {
	case connNew:
		addr, err := c.d.av.Lookup(c.rank)
		if err != nil {
			return err
		}
		c.state = connWaiting
		c.d.links.connect(c.rank, addr)
	case connLeft, connGone:
		return c.err
	case connWaiting, connUp:
	}
	return nil
}

// adopt makes fd the socket of the connection. The handshake on fd has succeeded, and p holds the
// keys that came out of it. If the peer has left or failed meanwhile, adopt closes fd. If a system
// call fails, adopt closes fd, and the connection or the domain fails.
func (c *conn) adopt(fd int, p *wire.TCPProtection) {
	if c.state > connWaiting {
		_ = unix.Close(fd)
		return
	}
	if err := tune(fd, c.d.sendBuf); err != nil {
		_ = unix.Close(fd)
		c.fail("connect", err)
		return
	}
	if err := c.d.poller.Add(fd, int(c.rank), sys.In); err != nil {
		_ = unix.Close(fd)
		c.d.fail(c.d.hostError(c.rank, err))
		return
	}
	c.fd, c.state = fd, connUp
	c.protect(p)
	c.live = len(c.d.live)
	c.d.live = append(c.d.live, c)
	c.startRMA()
	if c.hasOutput() {
		c.wantOutput()
	}
}

// tune sets the options of a connection's socket. sendBuf is transport.tcp.send_buffer in bytes. If
// it is 0, the send buffer has loopbackSendBuf bytes if the peer has a loopback address or the
// socket is a Unix socket, and the kernel's default otherwise.
func tune(fd, sendBuf int) error {
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("set non-blocking: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("set TCP_NODELAY: %w", err)
	}
	if sa, err := unix.Getpeername(fd); err == nil && loopback(sa) {
		if sendBuf == 0 {
			sendBuf = loopbackSendBuf
		}
	} else if err == nil {
		// Keepalive probes detect a host that was cut off while no bytes are in transit. If
		// bytes are in transit, the kernel ends the connection after its retransmissions.
		// TCP_USER_TIMEOUT would be quicker, but would also end the connection with a rank
		// that computes and does not read for a while. If the kernel refuses an option, this
		// rank detects the failure later.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, sys.KeepIdle, 5)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 2)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 3)
	}
	if sendBuf > 0 {
		// If this fails, the only harm is a slower connection.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuf)
	}
	return nil
}

func loopback(sa unix.Sockaddr) bool {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return sa.Addr[0] == 127
	case *unix.SockaddrInet6:
		return net.IP(sa.Addr[:]).IsLoopback()
	case *unix.SockaddrUnix:
		return true
	}
	return false
}

// unpoll removes the socket from the poller and from d.live. The socket stays open.
func (c *conn) unpoll() {
	if c.live < 0 {
		return
	}
	c.d.poller.Remove(c.fd)
	last := len(c.d.live) - 1
	c.d.live[c.live] = c.d.live[last]
	c.d.live[c.live].live = c.live
	c.d.live[last] = nil
	c.d.live = c.d.live[:last]
	c.live = -1
	c.outEvents = false
	c.more = false
}

// closeFD closes the socket. It is idempotent.
func (c *conn) closeFD() {
	if c.fd >= 0 {
		c.unpoll()
		_ = unix.Close(c.fd)
		c.fd = -1
		c.d.sealed.put(&c.out)
		c.d.received.put(&c.partial)
		c.d.drained = append(c.d.drained, c)
	}
}

// fail ends the connection because of cause, an error that occurred in the operation op. It reports
// PeerDown unless the peer's end was reported before. Messages that Read has returned stay valid
// until the next Read.
func (c *conn) fail(op string, cause error) {
	if c.state == connGone {
		return
	}
	had := c.state
	if had == connUp && !c.shut && errors.Is(cause, transport.ErrProtocol) {
		c.control(wire.TCPFrame{Type: wire.TCPGiveUp}) // lost if the socket has no room for it now
		c.push()
	}
	// Set c.err after the push, because a push that fails overwrites c.err.
	if had != connLeft {
		c.err = c.d.peerError(op, c.rank, down(cause))
	}
	c.closeFD()
	c.state = connGone
	c.endOps()
	if had != connLeft {
		c.d.done.Emit(transport.Completion{Kind: transport.PeerDown, Peer: c.rank, Err: c.err})
		c.d.links.refuse(c.rank)
	}
}

// leave handles the peer's bye, and the verdict that the peer has left the job. After its bye the
// peer sends no more frames and drops what it receives. If there is a connection, leave closes the
// sending side of its socket. When the peer reads that end, it knows that this rank has received
// all its frames.
func (c *conn) leave() {
	if c.state >= connLeft {
		return
	}
	c.err = c.d.peerError("send", c.rank, transport.ErrPeerLeft)
	if c.fd < 0 {
		c.state = connGone
	} else {
		c.state = connLeft
		c.endOutput()
	}
	c.endOps()
	c.d.done.Emit(transport.Completion{Kind: transport.PeerLeft, Peer: c.rank})
}

// endOutput closes the sending side of the socket. When the peer has read all bytes, its next recv
// returns 0.
func (c *conn) endOutput() {
	if !c.shut {
		c.shut = true
		// This fails if the peer has reset the connection. Then recv reports the reset.
		_ = unix.Shutdown(c.fd, unix.SHUT_WR)
	}
}

// endOps completes every operation of this rank with the peer, with the error c.err. It drops the
// requests of the peer.
func (c *conn) endOps() {
	c.endFrame()
	for c.msgs.head != nil {
		c.d.opDone(c.msgs.pop(), c.err)
	}
	c.frames, c.framesOff, c.batched, c.partlyWritten = c.frames[:0], 0, false, fromNone
	if c.cur != nil {
		c.d.freeStream(c.cur)
		c.cur = nil
	}
	for c.replies.head != nil {
		c.d.freeStream(c.replies.pop())
	}
	for c.writes.head != nil {
		c.d.freeStream(c.writes.pop())
	}
	if r := c.rma; r != nil {
		for i := range r.slots {
			if s := &r.slots[i]; s.op != nil {
				op := s.op
				s.op = nil
				c.d.opDone(op, c.err)
			}
		}
	}
	for c.rmaWait.head != nil {
		c.d.opDone(c.rmaWait.pop(), c.err)
	}
}

// endFrame makes recvFrame the state of the input. If the data of a frame are being received,
// endFrame removes the reference to their destination.
func (c *conn) endFrame() {
	if c.in.region != nil {
		c.in.region.uses--
	}
	c.in.kind, c.in.dst, c.in.region = recvFrame, nil, nil
}
