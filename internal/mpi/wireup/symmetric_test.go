package wireup

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/transport"
)

// symVector is an address vector that notes the calls.
type symVector struct {
	vector
	calls []string
	fails int // number of calls of InsertSym that succeed before one fails; negative: none fails
}

func (v *symVector) Lookup(a transport.Addr) (transport.Address, error) { return v.addrs[a], nil }

func (v *symVector) Insert(addrs []transport.Address) (transport.Addr, error) {
	v.calls = append(v.calls, fmt.Sprintf("%d addresses", len(addrs)))
	return v.vector.Insert(addrs)
}

func (v *symVector) InsertSym(node string, nodes int, service string, services int) (transport.Addr, error) {
	v.calls = append(v.calls, fmt.Sprintf("%s × %d, %s × %d", node, nodes, service, services))
	if v.fails--; v.fails == -1 {
		return 0, errors.New("no room")
	}
	first, ip := len(v.addrs), netip.MustParseAddr(node)
	for range nodes {
		port, err := strconv.Atoi(service)
		if err != nil {
			return 0, err
		}
		for i := range services {
			v.addrs = append(v.addrs, transport.Address(netip.AddrPortFrom(ip, uint16(port+i)).String()))
		}
		ip = ip.Next()
	}
	return transport.Addr(first), nil
}

// TestInsertSymmetric: one call inserts the ranks of hosts with consecutive addresses that have equally
// many ranks. If there are more such blocks than hosts, or if InsertSym fails, one call of Insert inserts the
// remaining addresses. The addresses are the same in each case.
func TestInsertSymmetric(t *testing.T) {
	const sym, bulk = "symmetrically, from port 4000 on", "in bulk, computed from port 4000 on"
	row := []string{"10.0.0.254", "10.0.0.255", "10.0.1.0"}
	for name, x := range map[string]struct {
		hosts  []string
		hostOf []int
		fails  int
		how    string
		calls  []string
	}{
		"one host":            {[]string{"127.0.0.1"}, []int{0, 0, 0}, -1, sym, []string{"127.0.0.1 × 1, 4000 × 3"}},
		"equal hosts":         {row, []int{0, 0, 1, 1, 2, 2}, -1, sym, []string{"10.0.0.254 × 3, 4000 × 2"}},
		"IPv6":                {[]string{"fd00::a", "fd00::b"}, []int{0, 0, 1, 1}, -1, sym, []string{"fd00::a × 2, 4000 × 2"}},
		"last host has fewer": {row, []int{0, 0, 1, 1, 2}, -1, sym, []string{"10.0.0.254 × 2, 4000 × 2", "10.0.1.0 × 1, 4000 × 1"}},
		"gap":                 {[]string{"10.0.0.1", "10.0.0.3", "10.0.0.4"}, []int{0, 1, 2}, -1, sym, []string{"10.0.0.1 × 1, 4000 × 1", "10.0.0.3 × 2, 4000 × 1"}},
		"descending":          {[]string{"10.0.0.2", "10.0.0.1"}, []int{0, 0, 1, 1}, -1, sym, []string{"10.0.0.2 × 1, 4000 × 2", "10.0.0.1 × 1, 4000 × 2"}},
		"other port":          {row, []int{0, 0, 1, 0, 2}, -1, bulk, []string{"5 addresses"}},
		"by node":             {row, []int{0, 1, 2, 0, 1, 2}, -1, sym, []string{"10.0.0.254 × 3, 4000 × 1", "10.0.0.254 × 3, 4001 × 1"}},
		"by node, gap":        {[]string{"10.0.0.1", "10.0.0.9"}, []int{0, 1, 0, 1}, -1, bulk, []string{"4 addresses"}},
		"failure":             {row, []int{0, 0, 1, 1, 2, 2}, 0, bulk, []string{"10.0.0.254 × 3, 4000 × 2", "6 addresses"}},
		"second failure":      {row, []int{0, 0, 1, 1, 2}, 1, bulk, []string{"10.0.0.254 × 2, 4000 × 2", "10.0.1.0 × 1, 4000 × 1", "1 addresses"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := &bootstrap.World{Size: len(x.hostOf), Hosts: x.hosts, HostOf: x.hostOf, BasePort: 4000}
			v := &symVector{fails: x.fails}
			how, err := insertSymmetric(w, v)
			require.NoError(t, err)
			require.Equal(t, x.how, how)
			require.Equal(t, x.calls, v.calls)
			next := make([]uint16, len(x.hosts))
			for rank, host := range x.hostOf {
				want := netip.AddrPortFrom(netip.MustParseAddr(x.hosts[host]), 4000+next[host])
				require.Equal(t, want.String(), string(v.addrs[rank]), "rank %d", rank)
				next[host]++
			}
		})
	}
}
