//go:build libfabric

package libfabric

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// addressVector implements transport.AddressVector with an address vector of the type that
// [domain.avType] returns. It numbers the inserted addresses 0, 1, 2 and so on; these numbers are the
// indices. A provider may assign an fi_addr_t that differs from the index: always with FI_AV_MAP, and
// with FI_AV_TABLE for example if an address is inserted twice. Then addressVector keeps a table from
// index to fi_addr_t.
type addressVector struct {
	d     *domain
	av    *fi.AV
	n     int       // number of inserted addresses
	index []fi.Addr // fi_addr_t by index; nil: every fi_addr_t equals its index
	// addrs holds the addresses of Insert by index: rxd cannot look up an address before it has a
	// connection to that peer, and shm of libfabric 2.x returns addresses without fi_shm://. An address of
	// InsertSym is empty or missing there.
	addrs []transport.Address
	// further are the vectors of the further lanes, with the same indices. In such a vector a peer without
	// that lane has the address of another one of its lanes.
	further []*addressVector
	widths  []uint8 // number of lanes of each peer, by index
}

// of returns the vector of the lane with index i.
func (v *addressVector) of(i int) *addressVector {
	if i == 0 {
		return v
	}
	return v.further[i-1]
}

// avType returns the type of address vectors: a map if the provider has no tables, else a table.
func (d *domain) avType() fi.AVType {
	if d.info.Domain.AVType == fi.AVMap {
		return fi.AVMap
	}
	return fi.AVTable
}

// OpenAV opens an empty address vector (fi_av_open). The size of the job is its expected size.
func (d *domain) OpenAV() (transport.AddressVector, error) {
	if d.closed {
		return nil, fmt.Errorf("libfabric: open address vector: %w", transport.ErrClosed)
	}
	var v *addressVector
	for _, l := range d.lanes {
		av, err := l.fid.OpenAV(fi.AVAttr{Type: d.avType(), Count: d.cfg.Size})
		if err != nil {
			return nil, fmt.Errorf("libfabric: open address vector: %w", err)
		}
		w := &addressVector{d: d, av: av}
		d.avs = append(d.avs, w)
		if v == nil {
			v = w
		} else {
			v.further = append(v.further, w)
		}
	}
	return v, nil
}

// Insert gives the addresses the next indices and returns the first of these (fi_av_insert). After
// an error no address has an index.
func (v *addressVector) Insert(addrs []transport.Address) (transport.Addr, error) {
	if v.d.closed {
		return 0, transport.ErrClosed
	}
	if len(addrs) == 0 {
		return transport.Addr(v.n), nil
	}
	byLane := make([][]transport.Address, 1+len(v.further))
	widths := make([]uint8, len(addrs))
	for i, a := range addrs {
		list := laneAddresses(v.d.info.AddrFormat, a)
		if len(list) > maxLanes {
			return 0, fmt.Errorf("insert: %q has more than %d addresses: %w", a, maxLanes, transport.ErrAddress)
		}
		widths[i] = uint8(len(list))
		for k := range byLane {
			byLane[k] = append(byLane[k], list[k%len(list)])
		}
	}
	n := v.n
	var undo []func() error
	for k := range byLane {
		w := v.of(k)
		fresh, err := w.insert(byLane[k])
		if err != nil {
			for _, f := range undo {
				err = errors.Join(err, f())
			}
			return 0, err
		}
		undo = append(undo, func() error { return w.truncate(n, fresh) })
	}
	for len(v.addrs) < n { // those of InsertSym
		v.addrs, v.widths = append(v.addrs, ""), append(v.widths, 1)
	}
	v.addrs, v.widths = append(v.addrs, addrs...), append(v.widths, widths...)
	return transport.Addr(n), nil
}

// width returns the number of lanes of the peer with index a.
func (v *addressVector) width(a transport.Addr) int {
	if int(a) < len(v.widths) {
		return int(v.widths[a])
	}
	return 1
}

// truncate ends the use of the indices from n on, and removes the addresses in fresh.
func (v *addressVector) truncate(n int, fresh []fi.Addr) error {
	v.n = n
	if v.index != nil {
		v.index = v.index[:n]
	}
	return v.av.Remove(fresh)
}

// insert inserts addresses of one lane. It returns the values of those that the vector did not contain
// before.
func (v *addressVector) insert(addrs []transport.Address) ([]fi.Addr, error) {
	raw := make([][]byte, len(addrs))
	for i, a := range addrs {
		var err error
		if raw[i], err = encode(v.d.info.AddrFormat, a); err != nil {
			return nil, fmt.Errorf("insert: %w", err)
		}
	}
	out := unsetAddrs(len(raw))
	_, err := v.av.Insert(raw, out, 0, 0)
	fresh := slices.Clone(out)
	var some *fi.InsertError
	if errors.As(err, &some) {
		err = nil
		for i, e := range some.Errs {
			if errors.Is(e, fi.ErrAlready) && out[i] != fi.AddrNotAvail {
				// libfabric's vector contained this address already, so this is no error. If
				// Insert fails, commitInsert must not remove the address for this entry.
				fresh[i] = fi.AddrNotAvail
			} else {
				err = errors.Join(err, e)
			}
		}
	}
	if _, err = v.commitInsert(out, fresh, err); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(fresh, func(a fi.Addr) bool { return a == fi.AddrNotAvail }), nil
}

// InsertSym adds nodes × services addresses in one call (fi_av_insertsym) and returns the first
// index. node is the first of nodes consecutive IP addresses. Each of these is combined with
// services consecutive ports, the first of which is service. After an error no address has an
// index.
func (v *addressVector) InsertSym(node string, nodes int, service string, services int) (transport.Addr, error) {
	if v.d.closed {
		return 0, transport.ErrClosed
	}
	if !v.d.attr.Caps.Has(transport.CapSymmetric) {
		return 0, fmt.Errorf("insert symmetrically: %w", transport.ErrNotSupported)
	}
	ip, err := netip.ParseAddr(node)
	if err != nil || ip.Is4() != (v.d.info.AddrFormat == fi.SockaddrIn) {
		return 0, fmt.Errorf("insert %q: not a numeric address of this fabric: %w", node, transport.ErrAddress)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("insert port %q: %w", service, transport.ErrAddress)
	}
	if nodes < 1 || services < 1 || services > 1<<16-int(port) || nodes > (1<<31-1)/services {
		return 0, fmt.Errorf("insert %d nodes and %d services from %s port %d: %w", nodes, services, node, port, transport.ErrAddress)
	}
	out := unsetAddrs(nodes * services)
	n, err := v.av.InsertSym(node, nodes, service, services, out, 0)
	if err == nil && n != len(out) {
		err = fmt.Errorf("%d of %d addresses: %w", n, len(out), transport.ErrAddress)
	}
	return v.commitInsert(out, out, err)
}

// unsetAddrs returns n addresses with the value FI_ADDR_NOTAVAIL.
func unsetAddrs(n int) []fi.Addr {
	l := make([]fi.Addr, n)
	for i := range l {
		l[i] = fi.AddrNotAvail
	}
	return l
}

// commitInsert completes an insertion into libfabric's vector, which has stored its fi_addr_t
// values in out and has returned err. If err is nil, commitInsert gives the values in out the next
// indices and returns the first of these. Otherwise it removes the addresses in fresh from
// libfabric's vector, and returns an error that wraps ErrAddress and err. fresh is out with
// FI_ADDR_NOTAVAIL in place of each address that the vector contained before.
func (v *addressVector) commitInsert(out, fresh []fi.Addr, err error) (transport.Addr, error) {
	if err != nil {
		fresh = slices.DeleteFunc(fresh, func(a fi.Addr) bool { return a == fi.AddrNotAvail })
		return 0, errors.Join(fmt.Errorf("insert: %w: %w", transport.ErrAddress, err), v.av.Remove(fresh))
	}
	first := v.n
	for i, a := range out {
		if v.index == nil && a != fi.Addr(first+i) {
			v.index = make([]fi.Addr, first+i, first+len(out))
			for j := range v.index {
				v.index[j] = fi.Addr(j)
			}
		}
		if v.index != nil {
			v.index = append(v.index, a)
		}
	}
	v.n += len(out)
	return transport.Addr(first), nil
}

// at returns the fi_addr_t of index a, which must be in the vector.
func (v *addressVector) at(a transport.Addr) fi.Addr {
	if v.index != nil {
		return v.index[a]
	}
	return fi.Addr(a)
}

// Lookup returns the address at index a (fi_av_lookup).
func (v *addressVector) Lookup(a transport.Addr) (transport.Address, error) {
	if v.d.closed {
		return "", transport.ErrClosed
	}
	if a < 0 || int(a) >= v.n {
		return "", fmt.Errorf("index %d: %w", a, transport.ErrAddress)
	}
	if int(a) < len(v.addrs) && v.addrs[a] != "" {
		return v.addrs[a], nil
	}
	b, err := v.av.Lookup(v.at(a))
	if err != nil {
		return "", fmt.Errorf("index %d: %w", a, err)
	}
	return decode(v.d.info.AddrFormat, b)
}

func (v *addressVector) Len() int { return v.n }
