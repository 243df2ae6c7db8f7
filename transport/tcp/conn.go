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

// connState is the state of the connection with a peer.
//
//	     first use            handshake done        bye received       end of stream
//	new ──────────► waiting ────────────────► up ────────────► left ─────────────► gone
//	                   └──────── failed ──────┴──► gone ◄─ failed ─┘
//
// In left and gone, operations with the peer return c.err.
type connState uint8

const (
	connNew     connState = iota
	connWaiting           // operations are queued until the handshake ends
	connUp
	connLeft // the peer has sent its bye; poll reads its stream to the end
	connGone
)

// Sizes of a connection's input.
const (
	bufSize  = 2 * wire.TCPMaxMsg // room for a message behind others that the user still uses
	readSize = 64 << 10           // bytes that one recv asks for
	bulkRead = 4 << 10            // the same while replies to reads are expected, whose bytes should not go through the buffer
)

// loopbackSendBuf is the send buffer of a connection within the host, in bytes. With the
// kernel's default, several megabytes are in transit, more than the second-level cache holds: a
// stream of 1 MiB messages takes 1.5 times as long. Between hosts the kernel chooses the size,
// because it measures the delay. transport.tcp.send_buffer overrides both.
const loopbackSendBuf = 150_000

// recvState says what the next received bytes are.
type recvState uint8

const (
	recvFrame recvState = iota // a frame
	recvReply                  // bytes of a reply to a read, for op.Data
	recvEnd                    // the end frame after these bytes
	recvWrite                  // bytes of a peer's write, for a region
	recvDrop                   // bytes to drop
)

// conn is the state of the connection with one peer, and of the operations with that peer.
type conn struct {
	d     *domain
	rank  transport.Addr
	state connState
	fd    int // -1 unless connected
	live  int // index in d.live, -1 if not there
	err   error
	wrErr error // writing has failed; poll still reads what the peer has sent

	// Security, see record.go.
	sign, check *wire.TCPCheck  // of frames written and read
	seal, open  *wire.TCPSealer // of records written and read; nil: no records
	out         *record         // the record that is partly written
	partial     *record         // the bytes of a record that is partly read

	// Input. Bytes buf[rpos:wpos] have been read and not parsed. Until the next Read, the
	// bytes before rpos may be messages that the user still uses.
	buf        []byte // from the domain's freeBufs, while needed
	rpos, wpos int
	polled     uint // the last round of progress that polled this connection
	need       int  // an estimate of the bytes that the frame at rpos still lacks
	more       bool // buf may hold a whole frame
	in         struct {
		kind   recvState
		dst    []byte  // recvReply, recvWrite: the memory still to be filled
		skip   int     // recvDrop: bytes still to be dropped
		slot   uint32  // recvReply: of the read
		region *region // recvWrite: that the bytes are for
		id     uint64  // recvWrite, and recvDrop if ack: of the write to acknowledge
		ack    bool
		status wire.TCPStatus // status of that acknowledgement
	}

	// Output, see output.go.
	msgs          opQueue
	frames        []byte // whole frames: control and copies of small messages; frames[:framesOff] is written
	framesOff     int
	batched       bool          // frames has messages that no write has included yet
	sentIn        uint          // the round of progress of the last call of inBurst
	sentAt        time.Duration // the time of that call; 0: it was the first in its round
	replies       streamQueue   // answers to the peer's reads
	writes        streamQueue   // this rank's writes
	cur           *stream       // the stream of the next chunk, or of the chunk that is partly written
	writesFirst   bool          // pickStream tried writes first the last time
	partlyWritten source        // the source whose next frame is partly written
	inOut         bool          // this connection is in d.outq
	outEvents     bool          // the poller reports when the socket has room for output
	byeSent       bool          // the bye is in frames or written
	shut          bool          // SHUT_WR done

	rmaWait opQueue // operations that wait for a free slot in rma
	rma     *rma
}

// opQueue is a list of operations through Op.Next.
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

// startConnect starts to connect if no earlier call has. If the peer has left or failed,
// startConnect returns c.err.
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

// adopt makes fd, an authenticated socket, the connection's own.
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

// tune sets the options of a connection's socket. sendBuf is the size of the send buffer in
// bytes; 0: the default.
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
		// If this fails, the connection is slower and nothing else.
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

// fail ends the connection because of cause, and reports the peer down once. Messages that Read
// has returned stay valid.
func (c *conn) fail(op string, cause error) {
	if c.state == connGone {
		return
	}
	had := c.state
	if had == connUp && !c.shut && errors.Is(cause, transport.ErrProtocol) {
		c.control(wire.TCPFrame{Type: wire.TCPGiveUp}) // lost if the socket has no room for it now
		c.push()
	}
	if had != connLeft { // set after push, because a push that fails sets c.err too
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

// leave handles the peer's bye: the peer sends no more frames and drops what it receives. leave
// ends this rank's stream, so the peer learns that this rank has received all frames.
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

// endOutput ends this rank's stream: when the peer has read all of it, it reads the end.
func (c *conn) endOutput() {
	if !c.shut {
		c.shut = true
		// This fails if the peer has reset the connection. Then recv reports the reset.
		_ = unix.Shutdown(c.fd, unix.SHUT_WR)
	}
}

// endOps completes every operation with the peer with c.err, and drops the peer's requests.
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

// endFrame returns to the state between frames. It drops the frame whose bytes are being received.
func (c *conn) endFrame() {
	if c.in.region != nil {
		c.in.region.uses--
	}
	c.in.kind, c.in.dst, c.in.region = recvFrame, nil, nil
}
