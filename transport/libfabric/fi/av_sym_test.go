//go:build libfabric

package fi

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAVInsertSvc(t *testing.T) {
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		v := openAV(t, d, AVAttr{})
		a, err := v.InsertSvc("127.0.0.1", "4000", 0)
		if !facts.svc {
			require.ErrorIs(t, err, ErrNotSupported)
			require.ErrorIs(t, err, ErrNotImpl, "the errno is kept")
			require.Equal(t, AddrNotAvail, a)
			return
		}
		require.NoError(t, err)
		require.Equal(t, Addr(0), a)
		a, err = v.InsertSvc("localhost", "4001", 0)
		require.NoError(t, err)
		require.Equal(t, Addr(1), a)
		for i := range 2 {
			got, err := v.Lookup(Addr(i))
			require.NoError(t, err)
			require.Equal(t, sockaddr("127.0.0.1", 4000+i), got)
		}
		for _, wrong := range [][2]string{{"", "4000"}, {"127.0.0.1", ""}, {"127.0.0.1", "0"}, {"256.1.1.1", "4000"}} {
			a, err := v.InsertSvc(wrong[0], wrong[1], 0)
			require.Error(t, err, "%q", wrong)
			require.Equal(t, AddrNotAvail, a)
		}
		a, err = v.InsertSvc("127.0.0.2", "4000", 0)
		require.NoError(t, err)
		require.Equal(t, Addr(2), a, "failures use no index")
	})
}

// TestAVInsertSym inserts four nodes with three services each, whose addresses are in the loopback
// network, and checks at which index Lookup returns each address.
func TestAVInsertSym(t *testing.T) {
	const nodes, services = 4, 3
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		v := openAV(t, d, AVAttr{Flags: FlagSymmetric, EPPerNode: services})
		out := make([]Addr, nodes*services)
		n, err := v.InsertSym("127.0.0.1", nodes, "4000", services, out, 0)
		if !facts.sym {
			require.Zero(t, n)
			require.ErrorIs(t, err, ErrNotSupported)
			require.ErrorIs(t, err, ErrNotImpl, "the errno is kept")
			return
		}
		require.NoError(t, err)
		require.Equal(t, nodes*services, n)
		for node := range nodes {
			for service := range services {
				i := node*services + service
				require.Equal(t, Addr(i), out[i])
				got, err := v.Lookup(Addr(i))
				require.NoError(t, err)
				require.Equal(t, sockaddr(fmt.Sprintf("127.0.0.%d", 1+node), 4000+service), got)
			}
		}
		_, err = v.Lookup(nodes * services)
		require.ErrorIs(t, err, ErrInvalid)
	})
}

func TestAVInsertSymCounts(t *testing.T) {
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		if !facts.sym {
			_, err := openAV(t, d, AVAttr{}).InsertSym("127.0.0.1", 1, "4000", 1, nil, 0)
			require.ErrorIs(t, err, ErrNotSupported)
			return
		}
		for _, shape := range [][2]int{{1, 1}, {1, 5}, {5, 1}, {2, 2}, {20, 10}} {
			nodes, services := shape[0], shape[1]
			v := openAV(t, d, AVAttr{})
			n, err := v.InsertSym("127.0.0.1", nodes, "4000", services, nil, 0)
			require.NoError(t, err, "%v", shape)
			require.Equal(t, nodes*services, n, "%v", shape)
			got, err := v.Lookup(Addr(n - 1))
			require.NoError(t, err)
			require.Equal(t, sockaddr(fmt.Sprintf("127.0.0.%d", nodes), 3999+services), got)

			// Addresses that are inserted later get the next indices.
			out := make([]Addr, 2)
			_, err = v.InsertSym("127.0.1.1", 2, "5000", 1, out, 0)
			require.NoError(t, err)
			require.Equal(t, []Addr{Addr(n), Addr(n + 1)}, out)
		}
	})
}

func TestAVInsertSymWrong(t *testing.T) {
	eachAV(t, func(t *testing.T, facts avFacts, d *Domain) {
		v := openAV(t, d, AVAttr{})
		for _, c := range []struct {
			node     string
			nodes    int
			service  string
			services int
			out      []Addr
		}{
			{"", 1, "4000", 1, nil},
			{"127.0.0.1", 0, "4000", 1, nil},
			{"127.0.0.1", 1, "", 1, nil},
			{"127.0.0.1", 1, "4000", 0, nil},
			{"127.0.0.1", -1, "4000", -1, nil},
			{"127.0.0.1", 1, "4000", 1 << 16, nil},
			{"127.0.0.1", 1 << 30, "4000", 4, nil},
			{"127.0.0.1", 2, "4000", 2, make([]Addr, 3)},
			{"0.0.0.0", 1, "4000", 2, nil},
			{"127.0.0.1", 2, "0", 2, nil},
			{"127.0.0.1", 2, "-1", 2, nil},
			{"127.0.0.1", 2, "65535", 2, nil},
			{"127.0.0.1", 2, "discard", 2, nil},
		} {
			if facts.prov == "shm" && c.services == 2 && c.out == nil {
				continue // InsertSym checks these arguments only for IP formats
			}
			n, err := v.InsertSym(c.node, c.nodes, c.service, c.services, c.out, 0)
			require.ErrorIs(t, err, ErrInvalid, "%+v", c)
			require.Zero(t, n)
		}
	})
}
