package transport

import (
	"errors"
	"fmt"
)

// The errors of the contract, found by errors.Is. Providers wrap them with
// their cause.
var (
	ErrAgain        = errors.New("resource temporarily unavailable")      // -FI_EAGAIN
	ErrNotSupported = errors.New("not supported by the transport")        // -FI_ENOSYS, -FI_EOPNOTSUPP
	ErrUnavailable  = errors.New("not available on this host")            // of Open: other processes of the job may have it
	ErrPeerDown     = errors.New("peer is unreachable")                   // connection lost, refused or not authenticated
	ErrPeerLeft     = errors.New("peer has left the job")                 // after its Shutdown
	ErrKey          = errors.New("no such memory region at the peer")     // -FI_EKEYREJECTED
	ErrBounds       = errors.New("access outside the memory region")      // -FI_EINVAL of RMA
	ErrAccess       = errors.New("memory region does not permit access")  // -FI_EACCES
	ErrTooLarge     = errors.New("message larger than the domain allows") // -FI_EMSGSIZE
	ErrAddress      = errors.New("no such address")                       // -FI_EADDRNOTAVAIL
	ErrProtocol     = errors.New("peer broke the protocol")               // bytes that no correct peer sends
	ErrClosed       = errors.New("transport is closed")                   // -FI_EBADF
)

// ErrAbsent is an ErrAgain whose cause is a peer that has not come yet. A Wait ends when
// it has: nobody needs to try again before.
var ErrAbsent = fmt.Errorf("peer has not come yet: %w", ErrAgain)

// Error is a failure of an operation with a peer.
type Error struct {
	Provider string
	Op       string // "connect", "send", "read"
	Peer     Addr
	Address  Address // empty where unknown
	Err      error
}

// Error gives provider, operation, peer and cause in one line.
func (e *Error) Error() string {
	if e.Address != "" {
		return fmt.Sprintf("%s: %s rank %d at %s: %v", e.Provider, e.Op, e.Peer, e.Address, e.Err)
	}
	return fmt.Sprintf("%s: %s rank %d: %v", e.Provider, e.Op, e.Peer, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
