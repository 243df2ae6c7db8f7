package shm

import "github.com/weft-hpc/weft/transport"

// The kinds of what goes through a ring.
const (
	kindMessage  = 1 + iota // a user's header and data
	kindSkip                // the ring goes on at its beginning
	firstControl = 16       // from here on: transfers
)

// peer is what a rank knows of one of its host.
type peer struct {
	rank  transport.Addr // in the world
	local int            // among the ranks of the host
	pid   int            // its process; valid once card is not nil
	card  *card          // nil until it is found authentic
	err   error          // why nothing can be done with it any more
}
