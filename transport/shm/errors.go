//go:build linux && !portable

package shm

import (
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/transport"
)

var (
	errDied         = fmt.Errorf("%w: its process ended before it called Finalize", transport.ErrPeerDown)
	errRefused      = fmt.Errorf("%w: it has marked this rank as failed", transport.ErrPeerDown)
	errDisconnected = fmt.Errorf("%w: it was reported as failed", transport.ErrPeerDown)
)

// Causes of protocol errors.
var (
	errCard     = errors.New("it does not prove that it belongs to this job")
	errState    = errors.New("its state is invalid")
	errWord     = errors.New("a message is out of sequence or of unknown kind")
	errLength   = errors.New("a message is longer than the ring")
	errProgress = errors.New("it has freed more than this rank has sent")
)

// peerError returns an error that wraps cause and names the operation and the peer.
func (d *domain) peerError(op string, peer transport.Addr, cause error) error {
	return &transport.Error{Provider: name, Op: op, Peer: peer, Err: cause}
}

// protocolError returns an error for a peer that broke the protocol. how says in which way.
func protocolError(how error) error {
	return fmt.Errorf("%w: %w: %w", transport.ErrPeerDown, transport.ErrProtocol, how)
}
