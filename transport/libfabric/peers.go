//go:build libfabric

package libfabric

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// peer is the state of another rank.
type peer struct {
	tx, rx            uint64    // tokens of messages to it and from it; 0: not computed yet
	sent              uint32    // number of messages to it
	got               uint32    // number of messages from it that were handled, in order
	early             *early    // messages that arrived out of order; nil: none
	err               error     // the result of every further operation with it; nil: it is reachable
	noRoomSince       time.Time // when the fabric began to refuse operations with it; zero: it took the last one
	lastTry           time.Time // when the fabric last refused an operation with it
	nextProbe         time.Time // when noRoom calls peerGone next
	nextShutdownProbe time.Time // when probeInShutdown calls peerGone next; zero: not started
	rmaKind           operation // opRead or opWrite: the kind of RMA in flight, if alternateRMA
	rmaInFlight       int       // reads and writes in flight
	contacted         bool      // at least one message was sent to it or received from it
	closeSent         bool      // our close message was posted
	closeReceived     bool      // its close message has arrived
	closeAcked        bool      // it has acknowledged our close message
}

// If a connection is lost or cannot be made, providers try for ever and return FI_EAGAIN. So if a
// peer has been without room for a while, noRoom checks whether the peer still exists:
//
//	FI_EAGAIN ── probeAfter ──► connect(2) to its address ── refused ──► it is down, if it was
//	   ▲                           │ no refusal                          contacted before or the
//	   └─────── probeInterval ─────┘                                     connect timeout has passed
const (
	probeAfter    = 100 * time.Millisecond
	probeInterval = 500 * time.Millisecond
)

// tokens returns the peer, with its tokens computed.
func (d *domain) tokens(r transport.Addr) *peer {
	p := &d.peers[r]
	if p.tx == 0 {
		p.tx = token(d.cfg.Secret, d.cfg.JobID, d.cfg.Self, r)
		p.rx = token(d.cfg.Secret, d.cfg.JobID, r, d.cfg.Self)
	}
	return p
}

// clearNoRoom records that the fabric has accepted an operation with the peer.
func (p *peer) clearNoRoom() {
	if !p.noRoomSince.IsZero() {
		p.noRoomSince = time.Time{}
	}
}

// frame returns the frame of the next message to the peer.
func (d *domain) frame(p *peer, k kind) frame {
	return frame{p.tx, uint32(d.cfg.Self), k, (p.sent + 1) & numberMask}
}

// posted records that the fabric has accepted a message to the peer.
func (p *peer) posted() {
	p.sent++
	p.contacted = true
	p.clearNoRoom()
}

// noRoom returns ErrAgain, or the peer's error if the peer turns out to be down.
func (d *domain) noRoom(r transport.Addr) error {
	p := &d.peers[r]
	now := time.Now()
	if p.noRoomSince.IsZero() {
		p.noRoomSince, p.lastTry, p.nextProbe = now, now, now.Add(probeAfter)
		return transport.ErrAgain
	}
	// Time without calls does not count, because the fabric makes no progress then.
	if away := now.Sub(p.lastTry) - probeInterval; away > 0 {
		p.noRoomSince = p.noRoomSince.Add(away)
	}
	p.lastTry = now
	if now.Before(p.nextProbe) {
		return transport.ErrAgain
	}
	p.nextProbe = now.Add(probeInterval)
	refused := d.peerGone(r)
	late := now.Sub(p.noRoomSince) > d.cfg.Params.Duration("transport.tcp.connect_timeout")
	switch {
	case refused && (p.contacted || late):
		d.peerDown(r, "connect", errRefused)
	case late && !p.contacted:
		d.peerDown(r, "connect", fmt.Errorf("%w for %v", errUnreachable, now.Sub(p.noRoomSince).Round(time.Second)))
	default:
		return transport.ErrAgain
	}
	return p.err
}

// peerGone reports whether no process uses a peer's address any more. It asks the kernel by
// connect(2) or kill(2). The kernel answers at once for the same host, and soon for another one. If
// there is no answer within 2 ms, peerGone returns false.
func (d *domain) peerGone(r transport.Addr) bool {
	text, err := d.av.Lookup(r)
	if err != nil {
		return false
	}
	if name, ok := strings.CutPrefix(string(text), shmScheme); ok {
		return processEnded(name)
	}
	if !isIP(d.info.AddrFormat) || strings.Contains(d.info.Fabric.ProvName, "udp") {
		return false
	}
	at, err := netip.ParseAddrPort(string(text))
	if err != nil {
		return false
	}
	family := unix.AF_INET6
	var sa unix.Sockaddr = &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	if at.Addr().Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	err = unix.Connect(fd, sa)
	if err == unix.EINPROGRESS { //nolint:errorlint // the very value
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if n, _ := unix.Poll(fds, 2); n == 0 {
			return false
		}
		var e int
		if e, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && e != 0 {
			err = unix.Errno(e)
		}
	}
	return err == unix.ECONNREFUSED //nolint:errorlint // the very value
}

// shmScheme is the prefix of an address of shm. The process id follows it.
const shmScheme = "fi_shm://"

// processEnded reports whether the process has ended that an address of shm names.
func processEnded(name string) bool {
	digits, _, _ := strings.Cut(name, ":")
	pid, err := strconv.Atoi(digits)
	return err == nil && unix.Kill(pid, 0) == unix.ESRCH
}

// peerDown marks a peer as failed and reports that once to the user.
func (d *domain) peerDown(r transport.Addr, op string, cause error) {
	p := &d.peers[r]
	if p.err != nil || r == d.cfg.Self {
		return
	}
	p.err = d.peerError(op, r, cause)
	d.done.Later(transport.Completion{Kind: transport.PeerDown, Peer: r, Err: p.err})
}
