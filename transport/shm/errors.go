//go:build linux && !portable

package shm

import (
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/transport"
)

var (
	errDied         = fmt.Errorf("%w: its process ended before it called Finalize", transport.ErrPeerDown)
	errRefused      = fmt.Errorf("%w: peer has given this rank up", transport.ErrPeerDown)
	errDisconnected = fmt.Errorf("%w: it was given up", transport.ErrPeerDown)
)

// The ways in which a peer can break the protocol.
var (
	errCard     = errors.New("its card does not prove that it is of this job")
	errState    = errors.New("its card is in no state that there is")
	errWord     = errors.New("a message out of sequence, or of no kind")
	errLength   = errors.New("a message longer than the ring has room for")
	errProgress = errors.New("it has freed what it was not sent")
)

// peerError says what failed with whom. It is made when a peer ends, not per
// operation.
func (d *domain) peerError(op string, peer transport.Addr, cause error) error {
	return &transport.Error{Provider: name, Op: op, Peer: peer, Err: cause}
}

// breach is the reason to give up a peer that did what no correct peer does.
func protocolError(how error) error {
	return fmt.Errorf("%w: %w: %w", transport.ErrPeerDown, transport.ErrProtocol, how)
}
