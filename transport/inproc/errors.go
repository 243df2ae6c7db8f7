package inproc

import (
	"fmt"
	"strconv"

	"github.com/weft-hpc/weft/transport"
)

const name = "inproc"

var (
	errDisconnected = fmt.Errorf("%w: it was reported as failed", transport.ErrPeerDown)
	errRefused      = fmt.Errorf("%w: it has marked this rank as failed", transport.ErrPeerDown)
)

// fail returns a transport.Error that wraps err and names the operation op and the peer.
func fail(op string, peer transport.Addr, err error) error {
	return &transport.Error{Provider: name, Op: op, Peer: peer, Address: addressOf(int(peer)), Err: err}
}

// addressOf returns the address of a rank: the rank as a decimal number.
func addressOf(rank int) transport.Address { return transport.Address(strconv.Itoa(rank)) }
