package tcp

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"sort"
	"strconv"

	"github.com/weft-hpc/weft/transport"
)

// addressVector is a table of addresses "host:port". For a call of InsertSym it stores only the
// arguments, and computes an address in Lookup, so these addresses need no memory per rank.
type addressVector struct {
	parts []avPart // in the order of their indexes, without gaps
	n     int      // number of addresses in all parts
}

// avPart holds the addresses that one call of Insert or InsertSym added.
type avPart struct {
	first, n int                 // index of the first address, number of addresses
	addrs    []transport.Address // the arguments of Insert; nil: InsertSym added the part

	// The arguments of InsertSym.
	node     netip.Addr // IP address of the first host; the other hosts have the addresses after it
	port     int        // the first port of each host
	services int        // number of ports of each host
}

func (v *addressVector) Insert(addrs []transport.Address) (transport.Addr, error) {
	for _, a := range addrs {
		host, port, err := net.SplitHostPort(string(a))
		if err != nil || host == "" {
			return 0, fmt.Errorf("insert %q: not of the form host:port: %w", a, transport.ErrAddress)
		}
		if _, err := parsePort(port); err != nil {
			return 0, fmt.Errorf("insert %q: %w", a, err)
		}
	}
	own := append([]transport.Address(nil), addrs...)
	return v.add(avPart{n: len(own), addrs: own}), nil
}

func (v *addressVector) InsertSym(node string, nodes int, service string, services int) (transport.Addr, error) {
	ip, err := netip.ParseAddr(node)
	if err != nil {
		return 0, fmt.Errorf("insert %q: %w: %w", node, transport.ErrAddress, err)
	}
	port, err := parsePort(service)
	if err != nil {
		return 0, fmt.Errorf("insert port %q: %w", service, err)
	}
	if nodes < 1 || services < 1 || services > 1<<16-port {
		return 0, fmt.Errorf("insert %d nodes and %d services from %s port %d: %w", nodes, services, node, port, transport.ErrAddress)
	}
	if _, ok := addrAdd(ip, uint64(nodes-1)); !ok {
		return 0, fmt.Errorf("insert %d nodes from %s: %w", nodes, node, transport.ErrAddress)
	}
	over, n := bits.Mul64(uint64(nodes), uint64(services))
	if over != 0 || n > 1<<31 {
		return 0, fmt.Errorf("insert %d × %d addresses: %w", nodes, services, transport.ErrAddress)
	}
	return v.add(avPart{n: int(n), node: ip, port: port, services: services}), nil
}

func (v *addressVector) add(p avPart) transport.Addr {
	p.first = v.n
	if p.n > 0 {
		v.parts = append(v.parts, p)
		v.n += p.n
	}
	return transport.Addr(p.first)
}

func (v *addressVector) Lookup(a transport.Addr) (transport.Address, error) {
	if v == nil || a < 0 || int(a) >= v.n {
		return "", fmt.Errorf("index %d: %w", a, transport.ErrAddress)
	}
	p := &v.parts[sort.Search(len(v.parts), func(i int) bool { return v.parts[i].first > int(a) })-1]
	i := int(a) - p.first
	if p.addrs != nil {
		return p.addrs[i], nil
	}
	ip, _ := addrAdd(p.node, uint64(i/p.services))
	return transport.Address(netip.AddrPortFrom(ip, uint16(p.port+i%p.services)).String()), nil
}

func (v *addressVector) Len() int {
	if v == nil {
		return 0
	}
	return v.n
}

func parsePort(s string) (int, error) {
	p, err := strconv.ParseUint(s, 10, 16)
	if err != nil || p == 0 {
		return 0, fmt.Errorf("port %q is not a number from 1 to 65535: %w", s, transport.ErrAddress)
	}
	return int(p), nil
}

// addrAdd returns the n-th IP address after ip, and true. If that is beyond the last address, it
// returns false.
func addrAdd(ip netip.Addr, n uint64) (netip.Addr, bool) {
	if ip.Is4() {
		b := ip.As4()
		v := uint64(binary.BigEndian.Uint32(b[:]))
		if n > 1<<32-1-v {
			return netip.Addr{}, false
		}
		binary.BigEndian.PutUint32(b[:], uint32(v+n))
		return netip.AddrFrom4(b), true
	}
	b := ip.As16()
	lo, carry := bits.Add64(binary.BigEndian.Uint64(b[8:]), n, 0)
	hi, carry := bits.Add64(binary.BigEndian.Uint64(b[:8]), 0, carry)
	binary.BigEndian.PutUint64(b[:8], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	return netip.AddrFrom16(b).WithZone(ip.Zone()), carry == 0
}
