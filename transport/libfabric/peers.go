//go:build libfabric

package libfabric

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// peer is what this rank knows about one rank of the job, which may be this rank itself.
type peer struct {
	tx, rx uint64 // tokens of messages to the peer and from the peer; 0: not computed yet
	// sent is the number of messages that were sent to the peer, close messages and acknowledgments
	// included.
	sent uint32
	// got is the number of messages from the peer that were handled, in the order of their numbers.
	got   uint32
	early *early // messages that arrived out of order and wait for a missing one; nil: none
	// err is the error of every further operation with the peer; nil: the peer has not failed or
	// left.
	err error
	// noRoomSince is the time from which on the fabric has refused all operations with the peer.
	// [domain.noRoom] moves it forward by pauses in which the caller tried none. It is zero if the
	// fabric does not refuse operations with the peer.
	noRoomSince time.Time
	lastTry     time.Time // when [domain.noRoom] was last called for the peer
	nextProbe   time.Time // [domain.noRoom] does not call [domain.peerGone] before this time
	// [domain.probeInShutdown] does nothing before this time. It is zero if probeInShutdown was not called
	// for the peer yet.
	nextShutdownProbe time.Time
	// rmaKind is the kind of the last read or write that was posted to the peer: opRead or opWrite.
	rmaKind       operation
	rmaInFlight   int  // number of reads and writes in flight with the peer
	narrow        bool // reads and writes with the peer are not divided any more, because a lane has failed
	resends       int  // number of messages to the peer that have failed and are not through yet
	repeats       bool // the peer has sent a message again
	contacted     bool // at least one message was sent to the peer or received from it
	closeSent     bool // this rank's close message to the peer was posted
	closeReceived bool // the peer's close message has arrived
	closeAcked    bool // the peer has acknowledged this rank's close message
}

// A peer counts as failed if an operation with it fails and the error says that the peer has ended
// ([domain.meansPeerGone]), or if the launcher says so. Three providers give no such error:
//
//   - net, tcp, and tcp;ofi_rxm above it: if a connection is lost or cannot be made, they try again without
//     end, and meanwhile return FI_EAGAIN for each operation, as they do if the peer is busy;
//   - shm, whose operations with a process that has ended stay in flight.
//
// So if such a fabric has refused all operations with a peer for probeAfter, [domain.noRoom] asks
// the kernel then, and again after each probeInterval, whether any process uses the peer's address
// ([domain.peerGone]).
const (
	probeAfter    = 100 * time.Millisecond
	probeInterval = 500 * time.Millisecond
)

// tokens returns the state of peer r, and computes the peer's tokens if that has not been done yet.
func (d *domain) tokens(r transport.Addr) *peer {
	p := &d.peers[r]
	if p.tx == 0 {
		p.tx = token(d.cfg.Secret, d.cfg.JobID, d.cfg.Self, r)
		p.rx = token(d.cfg.Secret, d.cfg.JobID, r, d.cfg.Self)
	}
	return p
}

// clearNoRoom records that the fabric does not refuse operations with the peer any more.
func (p *peer) clearNoRoom() {
	if !p.noRoomSince.IsZero() {
		p.noRoomSince = time.Time{}
	}
}

// frame returns the frame of the next message to peer p. The message is of kind k.
func (d *domain) frame(p *peer, k kind) frame {
	return frame{p.tx, uint32(d.cfg.Self), k, (p.sent + 1) & numberMask}
}

// posted records that the fabric has accepted a message to the peer.
func (p *peer) posted() {
	p.sent++
	p.contacted = true
	p.clearNoRoom()
}

// noRoom handles an FI_EAGAIN with which the fabric has refused an operation with peer r. It
// returns ErrAgain or, if it finds that the peer has failed, the peer's error. In that case it also
// marks the peer as failed.
func (d *domain) noRoom(r transport.Addr) error {
	p := &d.peers[r]
	now := time.Now()
	if p.noRoomSince.IsZero() {
		p.noRoomSince, p.lastTry, p.nextProbe = now, now, now.Add(probeAfter)
		return transport.ErrAgain
	}
	// If more than probeInterval has passed since the last attempt, the rest of that time does not
	// count: the fabric makes no progress while the caller makes no calls.
	if away := now.Sub(p.lastTry) - probeInterval; away > 0 {
		p.noRoomSince = p.noRoomSince.Add(away)
	}
	p.lastTry = now
	if now.Before(p.nextProbe) {
		return transport.ErrAgain
	}
	p.nextProbe = now.Add(probeInterval)
	// While ranks start, a listener that the launcher has made may be closed and the endpoint at
	// its port not open yet.
	starting := d.at.IsValid() && !p.contacted &&
		now.Sub(p.noRoomSince) < d.cfg.Params.Duration("transport.tcp.connect_timeout")
	if !starting && d.peerGone(r) {
		return d.peerDown(r, "connect", errRefused)
	}
	return transport.ErrAgain
}

// peerGone reports whether it is certain that no process uses the address of peer r any more. For
// shm it asks the kernel by kill(2). For providers over TCP that do not report the end of a peer
// (hidesEnd) it tries connect(2) and returns true if the connection is refused. The answer comes at
// once from the same host, and soon from another one; if there is none within 2 ms, peerGone
// returns false. For other providers it returns false.
func (d *domain) peerGone(r transport.Addr) bool {
	all, err := d.av.Lookup(r)
	if err != nil {
		return false
	}
	text := laneAddresses(d.info.AddrFormat, all)[0]
	if name, ok := strings.CutPrefix(string(text), shmScheme); ok {
		return processEnded(name)
	}
	if !isIP(d.info.AddrFormat) || !hidesEnd(d.info.Fabric.ProvName) {
		return false
	}
	at, err := netip.ParseAddrPort(string(text))
	if err != nil {
		return false
	}
	family := unix.AF_INET6
	zone, _ := strconv.ParseUint(at.Addr().Zone(), 10, 32) // 0 without a zone
	var sa unix.Sockaddr = &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16(), ZoneId: uint32(zone)}
	if at.Addr().Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	err = unix.Connect(fd, sa)
	if err == unix.EINPROGRESS { //nolint:errorlint // unix returns errnos unwrapped
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if n, _ := unix.Poll(fds, 2); n == 0 {
			return false
		}
		var e int
		if e, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && e != 0 {
			err = unix.Errno(e)
		}
	}
	return err == unix.ECONNREFUSED //nolint:errorlint // unix returns errnos unwrapped
}

// hidesEnd reports whether the libfabric provider works over TCP and does not report that a peer
// has ended. The endpoints of these providers listen at the TCP port of their address. Other
// providers use the port in another way: with verbs it belongs to the RDMA connection manager, and
// nothing listens at the TCP port of a healthy peer.
func hidesEnd(provider string) bool {
	core, _, _ := strings.Cut(provider, ";")
	return core == "tcp" || core == "net"
}

// shmScheme is the text with which every address of shm begins. The process id follows it.
const shmScheme = "fi_shm://"

// processEnded reports whether the process of an address of shm has ended. name is the address
// without shmScheme.
func processEnded(name string) bool {
	digits, _, _ := strings.Cut(name, ":")
	pid, err := strconv.Atoi(digits)
	return err == nil && unix.Kill(pid, 0) == unix.ESRCH
}

// peerDown returns the error of operation op with peer r, which failed with cause. It also marks the
// peer as failed and queues a PeerDown for the next Read, unless the peer is this rank itself. If
// the peer has failed or left already, peerDown only returns the error that says so.
func (d *domain) peerDown(r transport.Addr, op string, cause error) error {
	p := &d.peers[r]
	if p.err != nil {
		return p.err
	}
	err := d.peerError(op, r, cause)
	if r != d.cfg.Self {
		p.err = err
		d.done.Later(transport.Completion{Kind: transport.PeerDown, Peer: r, Err: err})
		d.Signal() // the caller of the operation need not be the goroutine in Wait
	}
	return err
}
