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
	errNoBye            = fmt.Errorf("%w: the connection ended before the peer called Finalize", transport.ErrPeerDown)
	errNotMember        = errors.New("a process that is not a member of this job has connected")
	errNotProven        = fmt.Errorf("%w: the process that listens at its address does not know the job's secret", transport.ErrPeerDown)
	errDisconnected     = fmt.Errorf("%w: this rank has disconnected from it", transport.ErrPeerDown)
	errPeerDisconnected = fmt.Errorf("%w: it has disconnected from this rank", transport.ErrPeerDown)
	errNotConnected     = fmt.Errorf("%w: it announced a connection, but did not connect", transport.ErrPeerDown)
	errHeaderCheck      = protocolError("a frame header failed its check: its bytes were changed on the way, or the peer did not send them")
	errFramesMissing    = protocolError("the peer sent more frames than arrived: some were dropped on the way")
	errPeerEnded        = fmt.Errorf("%w: the peer ended the connection: the bytes were changed on the way, or this rank broke the protocol", transport.ErrPeerDown)
	errDomain           = errors.New("tcp domain has failed")
	errThisHost         = errors.New("this host, not the peer, has failed")
)

// peerError returns the error of an operation with a peer. It allocates. When a connection ends,
// the caller makes one error for all operations on that connection.
func (d *domain) peerError(op string, peer transport.Addr, cause error) error {
	a, _ := d.av.Lookup(peer)
	return &transport.Error{Provider: name, Op: op, Peer: peer, Address: a, Err: cause}
}

// down returns an error that wraps cause and [transport.ErrPeerDown]. If cause already is an
// ErrPeerDown or an ErrPeerLeft, down returns cause.
func down(cause error) error {
	if errors.Is(cause, transport.ErrPeerDown) || errors.Is(cause, transport.ErrPeerLeft) {
		return cause
	}
	return fmt.Errorf("%w: %w", transport.ErrPeerDown, cause)
}

// isHostFailure reports whether err, the error of an attempt to connect or to accept, is due to
// this host or this process, and not to the peer or its host. For ENETUNREACH it returns false,
// because that error may come from a router on the way to the peer.
func isHostFailure(err error) bool {
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

// hostError returns the error of a domain that cannot connect with a peer because this host has
// failed. The error's text says what the user may change.
func (d *domain) hostError(peer transport.Addr, cause error) error {
	hint := "check the network of this host"
	switch {
	case errors.Is(cause, syscall.EMFILE):
		hint = "raise the limit of open files (ulimit -n): each peer takes one"
		var l unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) == nil {
			hint = fmt.Sprintf("raise the limit of open files (ulimit -n), which is %d: each peer takes one", l.Cur)
		}
	case errors.Is(cause, syscall.ENFILE):
		hint = "raise the host's limit of open files (sysctl fs.file-max)"
	case errors.Is(cause, syscall.ENOBUFS), errors.Is(cause, syscall.ENOMEM):
		hint = "this host has no memory left for sockets"
	case errors.Is(cause, syscall.EADDRNOTAVAIL), errors.Is(cause, syscall.EAGAIN):
		hint = "this host has no local port left (sysctl net.ipv4.ip_local_port_range)"
	case errors.Is(cause, syscall.EACCES), errors.Is(cause, syscall.EPERM):
		hint = "a firewall of this host may forbid the connection"
	}
	return d.peerError("connect", peer, fmt.Errorf("%w: %w; %s", errThisHost, cause, hint))
}

// protocolError returns an error that wraps [transport.ErrProtocol]. Its text, made from format and
// args, says what the peer did wrong.
func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", transport.ErrProtocol, fmt.Errorf(format, args...))
}

// errSecurityDiffers returns the error for a connection between two ranks that have different
// values of transport.tcp.security.
func errSecurityDiffers(own wire.TCPSecurity, peer transport.Addr, theirs wire.TCPSecurity) error {
	return fmt.Errorf("transport.tcp.security is %q here and %q on rank %d; give all ranks the same", own, theirs, peer)
}

// statusErr returns the error of a read or write that its target answered with status s. For
// TCPOK it returns nil, for an unknown status ErrKey.
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
