package shm

import "github.com/weft-hpc/weft/transport"

// What one-sided transfers add to the domain's attributes.
const (
	rmaCaps    transport.Caps = 0
	maxRMASize                = 1 << 40
)

// RegisterMemory lets peers with the region's key access buf.
func (d *domain) RegisterMemory(_ []byte, _ transport.Access) (transport.MemoryRegion, error) {
	return nil, transport.ErrNotSupported
}

// transfers is what the domain holds for one-sided operations.
type transfers struct{}

// initTransfers is called when the segment is mapped and this rank's card has
// not yet been shown to the others.
func (d *domain) initTransfers() error { return nil }

// closeTransfers is called by Close before anything is unmapped.
func (d *domain) closeTransfers() {}

// control acts on a control message from a peer; an error is a breach of the
// protocol for which the peer is given up. b is valid during the call.
func (d *domain) control(p *peer, kind uint8, b []byte) error {
	_, _, _ = p, kind, b
	return transport.ErrProtocol
}

// advance moves transfers on, by at most some 64 KiB of copying; busy says that
// some are under way that need further calls.
func (d *domain) advance() (busy bool) { return false }

// dropTransfers ends all that is under way with a peer that is down.
func (d *domain) dropTransfers(p *peer, err error) { _, _ = p, err }
