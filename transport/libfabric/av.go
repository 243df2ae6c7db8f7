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

// addressVector is one of libfabric, of type table: what is inserted i-th is
// i. Only where a provider numbers otherwise is there a table of our own.
type addressVector struct {
	d     *domain
	av    *fi.AV
	n     int
	index []fi.Addr           // nil: the identity
	texts []transport.Address // nil: libfabric knows them
}

// OpenAV opens an address vector with room for the job (fi_av_open).
func (d *domain) OpenAV() (transport.AddressVector, error) {
	if d.closed {
		return nil, fmt.Errorf("libfabric: open address vector: %w", transport.ErrClosed)
	}
	av, err := d.fid.OpenAV(fi.AVAttr{Type: fi.AVTable, Count: d.cfg.Size})
	if err != nil {
		return nil, fmt.Errorf("libfabric: open address vector: %w", err)
	}
	v := &addressVector{d: d, av: av}
	d.avs = append(d.avs, v)
	return v, nil
}

// Insert adds addresses (fi_av_insert), all or none.
func (v *addressVector) Insert(addrs []transport.Address) (transport.Addr, error) {
	if v.d.closed {
		return 0, transport.ErrClosed
	}
	if len(addrs) == 0 {
		return transport.Addr(v.n), nil
	}
	raw := make([][]byte, len(addrs))
	for i, a := range addrs {
		var err error
		if raw[i], err = encode(v.d.info.AddrFormat, a); err != nil {
			return 0, fmt.Errorf("insert: %w", err)
		}
	}
	out := nowhere(len(raw))
	_, err := v.av.Insert(raw, out, 0, 0)
	fresh := slices.Clone(out)
	var some *fi.InsertError
	if errors.As(err, &some) {
		err = nil
		for i, e := range some.Errs {
			if errors.Is(e, fi.ErrAlready) && out[i] != fi.AddrNotAvail {
				fresh[i] = fi.AddrNotAvail // libfabric takes an address once: another index of ours leads there
			} else {
				err = errors.Join(err, e)
			}
		}
	}
	first, err := v.inserted(out, fresh, err)
	if err == nil && !v.looksUp() {
		v.texts = append(v.texts, addrs...)
	}
	return first, err
}

// looksUp says whether libfabric knows what has been inserted: rxd forgets it
// until there is a connection, so there it is kept here.
func (v *addressVector) looksUp() bool {
	if v.texts != nil {
		return false
	}
	_, err := v.av.Lookup(v.at(0))
	return err == nil
}

// InsertSym adds nodes × services addresses in one call (fi_av_insertsym).
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
	out := nowhere(nodes * services)
	n, err := v.av.InsertSym(node, nodes, service, services, out, 0)
	if err == nil && n != len(out) {
		err = fmt.Errorf("%d of %d addresses: %w", n, len(out), transport.ErrAddress)
	}
	return v.inserted(out, out, err)
}

// nowhere is n addresses that are not there.
func nowhere(n int) []fi.Addr {
	l := make([]fi.Addr, n)
	for i := range l {
		l[i] = fi.AddrNotAvail
	}
	return l
}

// inserted takes over what libfabric has called the addresses; the fresh ones of
// a failed insertion are removed again.
func (v *addressVector) inserted(out, fresh []fi.Addr, err error) (transport.Addr, error) {
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

// at is what libfabric calls the address at an index that is there.
func (v *addressVector) at(a transport.Addr) fi.Addr {
	if v.index != nil {
		return v.index[a]
	}
	return fi.Addr(a)
}

// Lookup asks libfabric (fi_av_lookup).
func (v *addressVector) Lookup(a transport.Addr) (transport.Address, error) {
	if v.d.closed {
		return "", transport.ErrClosed
	}
	if a < 0 || int(a) >= v.n {
		return "", fmt.Errorf("index %d: %w", a, transport.ErrAddress)
	}
	if v.texts != nil {
		return v.texts[a], nil
	}
	b, err := v.av.Lookup(v.at(a))
	if err != nil {
		return "", fmt.Errorf("index %d: %w", a, err)
	}
	return decode(v.d.info.AddrFormat, b)
}

func (v *addressVector) Len() int { return v.n }
