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

// peer is what is known of another rank.
type peer struct {
	tx, rx uint64    // tokens of messages to it and from it; 0: not computed yet
	sent   uint32    // messages to it
	got    uint32    // messages from it, in order
	early  *early    // messages that came before others that they follow
	err    error     // why nothing can be sent to it any more
	stuck  time.Time // since when the fabric has had no room for it; zero: it has
	tried  time.Time // when that was last seen
	probe  time.Time // when to look again whether it is there
	look   time.Time // when Shutdown is to do so
	access operation // what the accesses to it that are in flight are, if they take turns
	flying int       // how many of them there are
	met    bool      // messages have been exchanged
	told   bool      // our bye has been sent
	left   bool      // its bye has come
	acked  bool      // it has answered our bye
}

// Providers of connections that lose one, or cannot make one, try again for
// ever and answer FI_EAGAIN meanwhile. So who has been without room for a while
// is looked for by other means:
//
//	no room ── probeAfter ──► connect(2) to its address: refused ──► it is down
//	   ▲                         │ somebody listens                  (it was there
//	   └──────── probeEvery ─────┘                                    before, or
//	                                                                  time is up)
const (
	probeAfter = 100 * time.Millisecond
	probeEvery = 500 * time.Millisecond
)

// tokens makes sure that the peer's tokens are there.
func (d *domain) tokens(r transport.Addr) *peer {
	p := &d.peers[r]
	if p.tx == 0 {
		p.tx = token(d.cfg.Secret, d.cfg.JobID, d.cfg.Self, r)
		p.rx = token(d.cfg.Secret, d.cfg.JobID, r, d.cfg.Self)
	}
	return p
}

// roomy notes that the fabric has room for operations with the peer.
func (p *peer) roomy() {
	if !p.stuck.IsZero() {
		p.stuck = time.Time{}
	}
}

// frame is that of the next message to the peer.
func (d *domain) frame(p *peer, k kind) frame {
	return frame{p.tx, uint32(d.cfg.Self), k, (p.sent + 1) & numberMask}
}

// posted notes that the fabric has taken a message for the peer.
func (p *peer) posted() {
	p.sent++
	p.met = true
	p.roomy()
}

// noRoom answers ErrAgain, or that the peer has turned out to be down.
func (d *domain) noRoom(r transport.Addr) error {
	p := &d.peers[r]
	now := time.Now()
	if p.stuck.IsZero() {
		p.stuck, p.tried, p.probe = now, now, now.Add(probeAfter)
		return transport.ErrAgain
	}
	// While this process does something else, nothing can get on.
	if away := now.Sub(p.tried) - probeEvery; away > 0 {
		p.stuck = p.stuck.Add(away)
	}
	p.tried = now
	if now.Before(p.probe) {
		return transport.ErrAgain
	}
	p.probe = now.Add(probeEvery)
	refused := d.refuses(r)
	late := now.Sub(p.stuck) > d.cfg.Params.Duration("transport.tcp.connect_timeout")
	switch {
	case refused && (p.met || late):
		d.peerDown(r, "connect", errRefused)
	case late && !p.met:
		d.peerDown(r, "connect", fmt.Errorf("%w for %v", errUnreachable, now.Sub(p.stuck).Round(time.Second)))
	default:
		return transport.ErrAgain
	}
	return p.err
}

// refuses says whether nobody is at a peer's address any more. It asks the
// kernel, which answers at once on the same host and on a network soon; where
// there is no answer yet, the peer is not said to be gone.
func (d *domain) refuses(r transport.Addr) bool {
	text, err := d.av.Lookup(r)
	if err != nil {
		return false
	}
	if name, ok := strings.CutPrefix(string(text), shmScheme); ok {
		return ended(name)
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

// shmScheme is how addresses of shm begin; the number of the process follows.
const shmScheme = "fi_shm://"

// ended says whether the process of an address of shm is no more.
func ended(name string) bool {
	digits, _, _ := strings.Cut(name, ":")
	pid, err := strconv.Atoi(digits)
	return err == nil && unix.Kill(pid, 0) == unix.ESRCH
}

// peerDown gives a peer up and reports that once.
func (d *domain) peerDown(r transport.Addr, op string, cause error) {
	p := &d.peers[r]
	if p.err != nil || r == d.cfg.Self {
		return
	}
	p.err = d.peerError(op, r, cause)
	d.done.Later(transport.Completion{Kind: transport.PeerDown, Peer: r, Err: p.err})
}
