//go:build libfabric

package libfabric

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

const name = "libfabric"

var (
	errUnreachable = fmt.Errorf("%w: it does not answer", transport.ErrPeerDown)
	errRefused     = fmt.Errorf("%w: no process listens at its address any more", transport.ErrPeerDown)
	errToken       = errors.New("libfabric: dropped a message without the job's token")
	errQueue       = errors.New("libfabric: the completion queue failed")
	errBuffers     = errors.New("libfabric: too many receives failed: no receive buffer is left")
	errBuffer      = errors.New("libfabric: the provider reports a message outside of its buffer")
)

// peerError returns a *transport.Error for an operation op with a peer that has failed because of
// cause. It allocates, so callers do not use it for ErrAgain.
func (d *domain) peerError(op string, peer transport.Addr, cause error) error {
	var at transport.Address
	if d.av != nil {
		at, _ = d.av.Lookup(peer)
	}
	return &transport.Error{Provider: name, Op: op, Peer: peer, Address: at, Err: cause}
}

// meansPeerGone reports whether the errno e of an operation means that the operation's peer has
// ended or cannot be reached.
func meansPeerGone(e fi.Errno) bool {
	switch e {
	case fi.ErrConnRefused, fi.ErrConnReset, fi.ErrConnAborted, fi.ErrNotConnected, fi.ErrShutdown,
		fi.ErrHostUnreach, fi.ErrTimedOut, fi.Errno(unix.EPIPE),
		fi.ErrNoEntry: // sockets reports a lost connection with this errno
		return true
	default:
		return false
	}
}

// rmaError returns the transport error for e if e means that the target refused an access to its
// memory, else nil. Providers do not distinguish an unknown key from a range outside of the region,
// so the error is ErrKey for both.
func rmaError(e fi.Errno) error {
	switch e {
	case fi.ErrAccess, fi.ErrPermission, fi.ErrNoKey, fi.ErrInvalid, fi.ErrRemoteIO, fi.ErrFault, fi.Errno(unix.EKEYREJECTED):
		return fmt.Errorf("%w: %w", transport.ErrKey, e)
	default:
		return nil
	}
}
