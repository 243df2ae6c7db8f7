package tcp

import (
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

const name = "tcp"

var (
	errLost      = fmt.Errorf("%w: connection ended without a goodbye", transport.ErrPeerDown)
	errStranger  = errors.New("a stranger connected: not a member of this job")
	errNotProven = fmt.Errorf("%w: peer does not know the job's secret, or refuses ours", transport.ErrPeerDown)
	errGivenUp   = fmt.Errorf("%w: it was given up", transport.ErrPeerDown)
	errRefused   = fmt.Errorf("%w: peer has given this rank up", transport.ErrPeerDown)
	errNoOther   = fmt.Errorf("%w: peer said that it would connect, and did not", transport.ErrPeerDown)
	errDomain    = errors.New("tcp domain has failed")
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

// violated wraps what a peer did that no correct peer does.
func violated(format string, args ...any) error {
	return fmt.Errorf("%w: %w", transport.ErrProtocol, fmt.Errorf(format, args...))
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
