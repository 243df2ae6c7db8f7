package transport

import (
	"errors"
	"fmt"
)

// The errors of the contract. A provider returns them alone or wrapped together with the cause, so
// callers test for them with errors.Is.
var (
	ErrAgain        = errors.New("resource temporarily unavailable") // -FI_EAGAIN
	ErrNotSupported = errors.New("not supported by the transport")   // -FI_ENOSYS, -FI_EOPNOTSUPP
	// Open returns ErrUnavailable if this process cannot use the fabric. Other processes of the
	// job may be able to use it.
	ErrUnavailable = errors.New("not available on this host")
	// ErrPeerDown: the peer has failed. For example, its process has ended or its connection is
	// lost.
	ErrPeerDown = errors.New("peer is unreachable")
	ErrPeerLeft = errors.New("peer has left the job")             // the peer has called Shutdown
	ErrKey      = errors.New("no such memory region at the peer") // -FI_EKEYREJECTED
	// ErrBounds is -FI_EINVAL of an RMA operation. Alloc returns it if the number of bytes is not
	// positive.
	ErrBounds   = errors.New("access outside the memory region")
	ErrAccess   = errors.New("memory region does not permit access")  // -FI_EACCES
	ErrTooLarge = errors.New("message larger than the domain allows") // -FI_EMSGSIZE
	ErrAddress  = errors.New("no such address")                       // -FI_EADDRNOTAVAIL
	ErrProtocol = errors.New("peer broke the protocol")               // the peer sent bytes that no correct peer sends
	ErrClosed   = errors.New("transport is closed")                   // -FI_EBADF
)

// ErrAbsent wraps [ErrAgain]: the peer has not opened its endpoint yet. When the peer opens it, a
// Wait of the caller's completion queue ends. The caller need not repeat the operation before that.
var ErrAbsent = fmt.Errorf("peer has not opened its endpoint yet: %w", ErrAgain)

// Error is the failure of an operation that involves a peer.
type Error struct {
	Provider string
	Op       string // the name of the operation, for example "connect", "send" or "read"
	Peer     Addr
	Address  Address // the peer's address; empty if it is not known
	Err      error
}

// Error returns the provider, the operation, the peer's rank, the peer's address if it is known,
// and the cause.
func (e *Error) Error() string {
	if e.Address != "" {
		return fmt.Sprintf("%s: %s rank %d at %s: %v", e.Provider, e.Op, e.Peer, e.Address, e.Err)
	}
	return fmt.Sprintf("%s: %s rank %d: %v", e.Provider, e.Op, e.Peer, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
