//go:build libfabric

package libfabric

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

const name = "libfabric"

var (
	errRefused = fmt.Errorf("%w: no process listens at its address any more", transport.ErrPeerDown)
	errToken   = errors.New("libfabric: dropped a message without the job's token")
	errQueue   = errors.New("the completion queue failed")
	errBuffers = errors.New("too many receives failed: no receive buffer is left")
	errBuffer  = errors.New("libfabric: the provider reports a message outside of its buffer")
)

// peerError returns a *transport.Error for an operation op with a peer that has failed because of
// cause. It allocates, so callers do not use it for ErrAgain.
func (d *domain) peerError(op string, peer transport.Addr, cause error) error {
	var at transport.Address
	if d.av != nil {
		at, _ = d.av.Lookup(peer)
	}
	return &transport.Error{Provider: d.where(), Op: op, Peer: peer, Address: at, Err: cause}
}

// where names the provider of libfabric and its domain, for errors.
func (d *domain) where() string { return d.attr.Provider + " on " + d.info.Domain.Name }

// queueFailed returns the error of a lane whose completion queue cannot be read any more because of cause.
func (d *domain) queueFailed(l *lane, cause error) error {
	return fmt.Errorf("%s on %s: %w: %w", d.attr.Provider, l.info.Domain.Name, errQueue, cause)
}

// noBuffers returns the error of a domain without receive buffers. The last failure of a receive is its
// cause.
func (d *domain) noBuffers(last *fi.RawError) error {
	return fmt.Errorf("%s: %w: %w", d.where(), errBuffers, last)
}

// meansGone reports whether the errno e of an operation means that the operation's peer has ended or
// cannot be reached.
func meansGone(e fi.Errno) bool {
	switch e {
	case fi.ErrConnRefused, fi.ErrConnReset, fi.ErrConnAborted, fi.ErrNotConnected, fi.ErrShutdown,
		fi.ErrHostUnreach, fi.ErrTimedOut,
		fi.Errno(unix.EPIPE), fi.Errno(unix.EHOSTDOWN), fi.Errno(unix.ENETUNREACH),
		fi.ErrCanceled, // this package cancels no operation, so the connection has ended
		fi.ErrNoEntry:  // sockets reports a lost connection with this errno
		return true
	default:
		return false
	}
}

// verbsRetryExceeded is the status of verbs for an operation that the peer's adapter did not
// acknowledge (IBV_WC_RETRY_EXC_ERR).
const verbsRetryExceeded = 12

// meansPeerGone reports whether the failure e of an operation means that its peer has ended or
// cannot be reached. Two providers have only FI_EIO for that: verbs with a status of its own, and
// sockets, which uses it for nothing else.
func (d *domain) meansPeerGone(e *fi.RawError) bool {
	if meansGone(e.Err) {
		return true
	}
	core, _, _ := strings.Cut(d.info.Fabric.ProvName, ";")
	return e.Err == fi.ErrIO && (core == "sockets" || core == "verbs" && e.ProvErrno == verbsRetryExceeded)
}

// meansRefused reports whether e means that the target refused an access to its memory. Providers
// do not distinguish an unknown key from a range outside of the region, so the error is ErrKey for
// both.
func meansRefused(e fi.Errno) bool {
	switch e {
	case fi.ErrAccess, fi.ErrPermission, fi.ErrNoKey, fi.ErrInvalid, fi.ErrRemoteIO, fi.ErrFault, fi.Errno(unix.EKEYREJECTED):
		return true
	default:
		return false
	}
}
