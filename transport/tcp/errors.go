package tcp

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

const name = "tcp"

var (
	errLost       = fmt.Errorf("%w: the connection ended before the peer called Finalize", transport.ErrPeerDown)
	errStranger   = errors.New("a stranger connected: not a member of this job")
	errNotProven  = fmt.Errorf("%w: what listens at its address does not know the job's secret", transport.ErrPeerDown)
	errGivenUp    = fmt.Errorf("%w: it was given up", transport.ErrPeerDown)
	errRefused    = fmt.Errorf("%w: peer has given this rank up", transport.ErrPeerDown)
	errNoOther    = fmt.Errorf("%w: peer said that it would connect, and did not", transport.ErrPeerDown)
	errChanged    = violated("the header of a frame failed its check: its bytes were changed on the way, or are not the peer's")
	errCut        = violated("the peer sent more frames than have come: some were left out on the way")
	errPeerGaveUp = fmt.Errorf("%w: the peer gave the connection up: what it received is not what this rank sent, or this rank broke the protocol", transport.ErrPeerDown)
	errDomain     = errors.New("tcp domain has failed")
	errHere       = errors.New("the failure is of this host, not of the peer")
)

// peerError says what failed with whom. It is made when a connection ends, not
// per operation.
func (d *domain) peerError(op string, peer transport.Addr, cause error) error {
	a, _ := d.av.Lookup(peer)
	return &transport.Error{Provider: name, Op: op, Peer: peer, Address: a, Err: cause}
}

// down makes cause an ErrPeerDown, with cause still to be found in it.
func down(cause error) error {
	if errors.Is(cause, transport.ErrPeerDown) || errors.Is(cause, transport.ErrPeerLeft) {
		return cause
	}
	return fmt.Errorf("%w: %w", transport.ErrPeerDown, cause)
}

// ofThisHost reports whether a connection failed because of this host or this process, and
// not because of the peer or its host. ENETUNREACH is not such an error: it may come from a
// router on the way to the peer.
func ofThisHost(err error) bool {
	for _, e := range []syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL, syscall.EAGAIN,
		syscall.EACCES, syscall.EPERM, syscall.ENETDOWN, syscall.EAFNOSUPPORT,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// hostError returns the error of a domain that cannot connect with a peer because of this
// host. Its text says what to change.
func (d *domain) hostError(peer transport.Addr, cause error) error {
	hint := "look at the network of this host"
	switch {
	case errors.Is(cause, syscall.EMFILE):
		hint = "raise the limit of open files (ulimit -n), each peer takes one"
		var l unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) == nil {
			hint = fmt.Sprintf("raise the limit of open files (ulimit -n), which is %d: each peer takes one", l.Cur)
		}
	case errors.Is(cause, syscall.ENFILE):
		hint = "raise the host's limit of open files (sysctl fs.file-max)"
	case errors.Is(cause, syscall.ENOBUFS), errors.Is(cause, syscall.ENOMEM):
		hint = "this host lacks memory for sockets"
	case errors.Is(cause, syscall.EADDRNOTAVAIL), errors.Is(cause, syscall.EAGAIN):
		hint = "this host has no local port left (sysctl net.ipv4.ip_local_port_range)"
	case errors.Is(cause, syscall.EACCES), errors.Is(cause, syscall.EPERM):
		hint = "a firewall of this host may forbid the connection"
	}
	return d.peerError("connect", peer, fmt.Errorf("%w: %w; %s", errHere, cause, hint))
}

// violated wraps what a peer did that no correct peer does.
func violated(format string, args ...any) error {
	return fmt.Errorf("%w: %w", transport.ErrProtocol, fmt.Errorf(format, args...))
}

// errUnlike returns the error of two ranks whose transport.tcp.security differs.
func errUnlike(own wire.TCPSecurity, peer transport.Addr, peers wire.TCPSecurity) error {
	return fmt.Errorf("transport.tcp.security is %q here and %q on rank %d; give all ranks the same", own, peers, peer)
}

// statusErr is the error of a read or write that its target refused.
func statusErr(s wire.TCPStatus) error {
	switch s {
	case wire.TCPOK:
		return nil
	case wire.TCPBounds:
		return transport.ErrBounds
	case wire.TCPAccess:
		return transport.ErrAccess
	case wire.TCPKey:
	}
	return transport.ErrKey
}
