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

// connState is how far the connection with a peer is.
//
//	     first use            handshake done          bye            end of stream
//	new ──────────► waiting ────────────────► up ────────────► left ─────────────► gone
//	                   └──────── failed ──────┴──► gone ◄─ failed ─┘
//
// In left and gone, c.err is what operations with the peer are answered.
type connState uint8

const (
	connNew     connState = iota
	connWaiting           // operations queue up until the handshake's outcome
	connUp
	connLeft // the peer has said goodbye; its stream is read to the end
	connGone
)

// Sizes of a connection's input.
const (
	bufSize  = 2 * wire.TCPMaxMsg // room for a message behind others that were just delivered
	readSize = 64 << 10           // asked for at once
	bulkRead = 4 << 10            // asked for beside bytes that have a better place to go
)

// loopbackSendBuf is the send buffer of a connection within the host, in bytes.
// The kernel's own choice lets several megabytes be under way, which then are
// written to and read from memory instead of the second-level cache: a stream
// of 1 MiB messages takes 1.5 times as long. Between hosts the kernel chooses,
// because it knows the delay. transport.tcp.send_buffer overrides both.
const loopbackSendBuf = 150_000

// landing is where the bytes go that belong to the frame under way.
type landing uint8

const (
	landNone  landing = iota // between frames
	landData                 // bytes of a reply to a read: into op.Data
	landEnd                  // the end after these bytes
	landWrite                // bytes of a peer's write: into a region
	landSkip                 // bytes that are dropped
)

// conn is all that a domain knows of one peer.
type conn struct {
	d     *domain
	rank  transport.Addr
	state connState
	fd    int // -1 unless connected
	live  int // index in d.live, -1 if not there
	err   error
	wrErr error // writing has failed; what the peer sent before is still read

	// Security, see record.go.
	sign, check *wire.TCPCheck  // of frames written and read
	seal, open  *wire.TCPSealer // of records written and read; nil: no records
	out         *record         // being written
	partial     *record         // read, with less than a record

	// Input. Bytes buf[rpos:wpos] have been read and not parsed. Until the next Read, the
	// bytes before rpos may be messages that the user still uses.
	buf        []byte // borrowed from the domain while needed
	rpos, wpos int
	polled     uint // the last round of progress that polled it
	need       int  // bytes missing of the frame at rpos, as far as is known
	more       bool // buf may hold a whole frame
	in         struct {
		kind   landing
		dst    []byte // what is still to be filled
		skip   int
		slot   uint32 // landData
		region *region
		id     uint64 // to acknowledge: landWrite, landSkip if ack
		ack    bool
		status wire.TCPStatus
	}

	// Output, see output.go.
	msgs      opQueue
	frames    []byte // whole frames: control and copies of small messages; frames[:framesOff] is written
	framesOff int
	batched   bool          // frames has messages that no write has been tried with
	sentIn    uint          // the round of progress in which inBurst was last asked
	sentAt    time.Duration // when that was; 0: that was the first time in the round
	replies   streamQueue
	writes    streamQueue
	cur       *stream // the stream whose chunk is next or under way
	turn      bool    // whose turn it is: true for writes
	mid       source  // which source has a frame partly written
	inOut     bool    // is in d.outq
	asksOut   bool
	bye       bool // goodbye is in frames or written
	shut      bool // SHUT_WR done

	rmaWait opQueue // operations that have found no room in rma
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

// peer returns the connection with a rank, made where it is not there yet.
func (d *domain) peer(a transport.Addr) *conn {
	c := d.conns[a]
	if c == nil {
		c = &conn{d: d, rank: a, fd: -1, live: -1}
		d.conns[a] = c
	}
	return c
}

// use starts the connection if nobody has, for an operation that will queue or
// to hear of the peer's end.
func (c *conn) use() error {
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

// adopt takes an authenticated socket.
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

// tune sets the options of a connection's socket. sendBuf is the size of the send
// buffer that the user has set, in bytes; 0: none.
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
		// A host that was cut off must be noticed while nothing is under way;
		// where something is, the kernel gives up after its retransmissions.
		// TCP_USER_TIMEOUT would be quicker, but takes a rank that computes and
		// lets its window fill for a dead one. A kernel that cannot do this
		// notices later.
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

// unpoll takes the socket out of polling; it stays open.
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
	c.asksOut = false
	c.more = false
}

// closeFD ends the socket; idempotent.
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

// fail ends the connection because of cause and reports the peer down, once.
// Views of its buffer that were given out stay as they are.
func (c *conn) fail(op string, cause error) {
	if c.state == connGone {
		return
	}
	had := c.state
	if had == connUp && !c.shut && errors.Is(cause, transport.ErrProtocol) {
		c.control(wire.TCPFrame{Type: wire.TCPGiveUp}) // lost if the socket does not take it now
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
		c.d.links.gone(c.rank)
	}
}

// leave notes the peer's goodbye: nothing follows, nobody takes what we send.
// The end of our stream tells it that all of its own has been taken.
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

// endOutput tells the peer that it has read all that we had for it.
func (c *conn) endOutput() {
	if !c.shut {
		c.shut = true
		// It fails where the peer has reset the connection; reading tells.
		_ = unix.Shutdown(c.fd, unix.SHUT_WR)
	}
}

// endOps completes every operation with the peer with c.err and forgets what
// it asked of us.
func (c *conn) endOps() {
	c.settle()
	for c.msgs.head != nil {
		c.d.opDone(c.msgs.pop(), c.err)
	}
	c.frames, c.framesOff, c.batched, c.mid = c.frames[:0], 0, false, fromNone
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

// settle forgets the frame whose bytes are under way.
func (c *conn) settle() {
	if c.in.region != nil {
		c.in.region.uses--
	}
	c.in.kind, c.in.dst, c.in.region = landNone, nil, nil
}
