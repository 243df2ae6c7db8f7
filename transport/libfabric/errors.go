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
	errRefused     = fmt.Errorf("%w: nobody listens at its address any more", transport.ErrPeerDown)
	errStranger    = errors.New("libfabric: a message that does not carry the job's token was dropped")
	errQueue       = errors.New("libfabric: the completion queue has failed")
	errBuffers     = errors.New("libfabric: too many messages have broken off: there are no receive buffers left")
	errBuffer      = errors.New("libfabric: the provider reports a message outside of its buffer")
)

// peerError says what failed with whom. It is made when something fails for
// good, not per operation.
func (d *domain) peerError(op string, peer transport.Addr, cause error) error {
	var at transport.Address
	if d.av != nil {
		at, _ = d.av.Lookup(peer)
	}
	return &transport.Error{Provider: name, Op: op, Peer: peer, Address: at, Err: cause}
}

// gone says whether an errno means that the peer of the operation has ended or
// cannot be reached.
func gone(e fi.Errno) bool {
	switch e {
	case fi.ErrConnRefused, fi.ErrConnReset, fi.ErrConnAborted, fi.ErrNotConnected, fi.ErrShutdown,
		fi.ErrHostUnreach, fi.ErrTimedOut, fi.Errno(unix.EPIPE),
		fi.ErrNoEntry: // sockets: no connection any more
		return true
	default:
		return false
	}
}

// rmaError is the contract's word for what a provider says of an access that
// was refused; nil where it means something else. Providers do not tell an
// unknown key from a range outside of the region.
func rmaError(e fi.Errno) error {
	switch e {
	case fi.ErrAccess, fi.ErrPermission, fi.ErrNoKey, fi.ErrInvalid, fi.ErrRemoteIO, fi.ErrFault, fi.Errno(unix.EKEYREJECTED):
		return fmt.Errorf("%w: %w", transport.ErrKey, e)
	default:
		return nil
	}
}
