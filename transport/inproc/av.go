package inproc

import (
	"fmt"
	"strconv"

	"github.com/weft-hpc/weft/transport"
)

// addressVector is a table of addresses. For each address it holds the [mailbox] of the rank with
// that address.
type addressVector struct {
	dom       *domain
	mailboxes []*mailbox // by index in the vector
}

// Insert adds addresses. Each is a rank, written as a decimal number. If one of them is not the
// address of a rank of the job, Insert adds none and returns ErrAddress.
func (v *addressVector) Insert(addrs []transport.Address) (transport.Addr, error) {
	if v.dom.ended() {
		return 0, transport.ErrClosed
	}
	first := len(v.mailboxes)
	for _, a := range addrs {
		rank, err := strconv.Atoi(string(a))
		if err != nil || rank < 0 || rank >= len(v.dom.fabric.mailboxes) {
			v.mailboxes = v.mailboxes[:first]
			return 0, fmt.Errorf("inproc: insert %q: %w", a, transport.ErrAddress)
		}
		v.mailboxes = append(v.mailboxes, v.dom.fabric.mailboxes[rank])
	}
	return transport.Addr(first), nil
}

// InsertSym adds the addresses of consecutive ranks: services is their number, and service is the
// first rank, written as a decimal number. nodes must be 1, because all ranks are in one process.
// node is ignored.
func (v *addressVector) InsertSym(node string, nodes int, service string, services int) (transport.Addr, error) {
	if v.dom.ended() {
		return 0, transport.ErrClosed
	}
	base, err := strconv.Atoi(service)
	size := len(v.dom.fabric.mailboxes)
	if err != nil || nodes != 1 || base < 0 || services < 1 || services > size || base > size-services {
		return 0, fmt.Errorf("inproc: insert %d nodes × %d services from node %q, service %q: %w", nodes, services, node, service, transport.ErrAddress)
	}
	first := len(v.mailboxes)
	v.mailboxes = append(v.mailboxes, v.dom.fabric.mailboxes[base:base+services]...)
	return transport.Addr(first), nil
}

// Lookup returns the address at an index: a rank, written as a decimal number.
func (v *addressVector) Lookup(a transport.Addr) (transport.Address, error) {
	if a < 0 || int(a) >= len(v.mailboxes) {
		return "", fmt.Errorf("inproc: lookup of index %d of %d: %w", a, len(v.mailboxes), transport.ErrAddress)
	}
	return addressOf(int(v.mailboxes[a].rank)), nil
}

// Len returns the number of addresses inserted.
func (v *addressVector) Len() int { return len(v.mailboxes) }
