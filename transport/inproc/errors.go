package inproc

import (
	"fmt"
	"strconv"

	"github.com/weft-hpc/weft/transport"
)

const name = "inproc"

var (
	errDisconnected = fmt.Errorf("%w: it was given up", transport.ErrPeerDown)
	errRefused      = fmt.Errorf("%w: peer has given this rank up", transport.ErrPeerDown)
)

// fail wraps a failure of an operation with a peer.
func fail(op string, peer transport.Addr, err error) error {
	return &transport.Error{Provider: name, Op: op, Peer: peer, Address: addressOf(int(peer)), Err: err}
}

// addressOf is the address of a rank: its number.
func addressOf(rank int) transport.Address { return transport.Address(strconv.Itoa(rank)) }
