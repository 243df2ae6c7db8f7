//go:build libfabric

package libfabric

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
	"github.com/weft-hpc/weft/transport/transporttest"
)

// withLanes returns the provider of this package over the libfabric provider prov, with n NICs of each
// rank: those in ifaces, if there are any. Reads and writes of partMin bytes or more are divided.
func withLanes(t testing.TB, prov string, n int, ifaces ...string) transport.Provider {
	t.Helper()
	set := &params.Set{}
	for key, value := range map[string]string{
		"provider": prov, "nics": fmt.Sprint(n), "interface": strings.Join(ifaces, ","), "stripe_min": fmt.Sprint(partMin),
	} {
		require.NoError(t, set.Set("transport.libfabric."+key, value, params.FromFlag))
	}
	return withParams{New(), set}
}

// TestConformanceLanes runs the conformance tests with ranks that have several NICs.
func TestConformanceLanes(t *testing.T) {
	const bounds = "FI_EACCES reports a wrong range and a wrong right alike, as from verbs: both are ErrKey"
	for script, nics := range map[string]int{"verbs,pin=20": 2, "cxi,late=100": 3, "plain,eagain=30": 8} {
		t.Run(script, func(t *testing.T) {
			transporttest.Run(t, transporttest.OpenWith(func(t testing.TB) (transport.Provider, func(int)) {
				t.Helper()
				return libfabrictest.WithScript(withLanes(t, libfabrictest.Name, nics), fmt.Sprintf("%s,nics=%d", script, nics)), nil
			}), transporttest.WithRanks(2, 3),
				transporttest.Except("refused reads", bounds), transporttest.Except("refused writes", bounds))
		})
	}
}

// interfaces returns the names of two interfaces of this host.
func interfaces(t testing.TB) []string {
	t.Helper()
	all, err := net.Interfaces()
	require.NoError(t, err)
	var names []string
	for _, i := range all {
		addrs, err := i.Addrs()
		require.NoError(t, err)
		if i.Flags&net.FlagUp != 0 && len(addrs) > 0 {
			names = append(names, i.Name)
		}
	}
	require.GreaterOrEqual(t, len(names), 2, "the host has only %v", names)
	return names[:2]
}

// TestConformanceInterfaces runs the conformance tests with ranks that use two interfaces of the host.
func TestConformanceInterfaces(t *testing.T) {
	for _, prov := range []string{"tcp;ofi_rxm", libfabrictest.XNet()} {
		t.Run(prov, func(t *testing.T) {
			transporttest.Run(t, transporttest.OpenWith(func(t testing.TB) (transport.Provider, func(int)) {
				t.Helper()
				return withLanes(t, prov, 0, interfaces(t)...), nil
			}), append(refusals(connectionEnds), transporttest.WithRanks(2), transporttest.Except("close with operations in flight",
				"the provider leaves a socket open if an endpoint is closed while a connection is made, here that of the second interface"))...)
		})
	}
}

// laneJob opens as many ranks over testprov as there are numbers: those of the NICs of each rank.
func laneJob(t testing.TB, script string, nics ...int) []*node {
	t.Helper()
	var nodes []*node
	var addrs []transport.Address
	for r, n := range nics {
		p := libfabrictest.WithScript(withLanes(t, libfabrictest.Name, n), script)
		nodes = append(nodes, openNode(t, p, config(r, len(nics))))
		require.Len(t, nodes[r].dom.lanes, n)
		addrs = append(addrs, nodes[r].ep.Address())
	}
	for _, n := range nodes {
		_, err := n.dom.av.Insert(addrs)
		require.NoError(t, err)
		for r, a := range addrs {
			got, err := n.dom.av.Lookup(transport.Addr(r))
			require.NoError(t, err)
			require.Equal(t, a, got)
		}
	}
	return nodes
}

// writeAndRead writes size bytes from a to a region of peer and reads them back, and returns in how many
// further lanes of a parts of the write were in flight.
func writeAndRead(t *testing.T, a *node, peer transport.Addr, size int, nodes []*node) (lanes int) {
	t.Helper()
	to := nodes[peer]
	mem := make([]byte, size)
	mr, err := to.dom.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
	require.NoError(t, err)
	from, back := pattern(make([]byte, size), size), make([]byte, size)
	ep := a.ep.(transport.RMAEndpoint)
	do := func(what func(*transport.Op) error, data []byte) {
		local, err := a.dom.RegisterMemory(data, transport.Local)
		require.NoError(t, err)
		op := &transport.Op{Peer: peer, RemoteKey: mr.Key(), RemoteAddr: mr.Base(), Data: data, Region: local}
		require.NoError(t, access(t, what, op, a, nodes...))
		require.NoError(t, local.Close())
	}
	do(func(op *transport.Op) error {
		err := ep.Write(op)
		for _, l := range a.dom.lanes {
			lanes += l.inFlight
		}
		return err
	}, from)
	require.Equal(t, from, mem)
	do(ep.Read, back)
	require.Equal(t, from, back)
	require.NoError(t, mr.Close())
	require.Zero(t, a.dom.arena.busy)
	return lanes
}

// TestLanes checks that large reads and writes use as many lanes as both ranks have, and small ones the
// main lane only, with keys of the provider's choice and of weft's.
func TestLanes(t *testing.T) {
	for _, script := range []string{"verbs,nics=2", "cxi,nics=2", "psm,nics=2"} {
		t.Run(script, func(t *testing.T) {
			nodes := laneJob(t, script, 2, 1, 2)
			for from, a := range nodes {
				for to, b := range nodes {
					want := min(len(a.dom.lanes), len(b.dom.lanes)) - 1
					if from == to {
						want = 0
					}
					require.Equal(t, want, writeAndRead(t, a, transport.Addr(to), 1<<20+1, nodes), "%d to %d", from, to)
					require.Equal(t, want, writeAndRead(t, a, transport.Addr(to), 2*partMin, nodes), "%d to %d", from, to)
					require.Zero(t, writeAndRead(t, a, transport.Addr(to), partMin-1, nodes))
				}
			}
			for _, n := range nodes {
				require.Empty(t, n.dom.waiting)
			}
		})
	}
}

// TestLaneVanishes checks that reads and writes continue in the main lane when a NIC fails, and that
// the endpoint reports the NIC once.
func TestLaneVanishes(t *testing.T) {
	nodes := laneJob(t, "verbs,nics=2,vanish=5", 2, 2)
	a := nodes[0]
	lanes := 0
	for range 20 {
		lanes += writeAndRead(t, a, 1, 100_000, nodes)
	}
	require.Positive(t, lanes)
	require.Zero(t, writeAndRead(t, a, 1, 100_000, nodes))
	var notices []error
	for _, c := range a.seen {
		if c.Kind == transport.PeerNotice {
			notices = append(notices, c.Err)
		}
		require.NotEqual(t, transport.PeerDown, c.Kind)
	}
	require.Len(t, notices, 1)
	require.ErrorContains(t, notices[0], "uses only verbs with this peer: libfabric testprov on verbs1: ")
	require.ErrorContains(t, notices[0], "the adapter is gone")
}

// TestLaneKey checks that a divided read with a key that the peer does not have is refused, in whichever
// lane the peer notices it first, and that nothing stays in flight.
func TestLaneKey(t *testing.T) {
	nodes := laneJob(t, "verbs,nics=2", 2, 2)
	a, b := nodes[0], nodes[1]
	mr, err := b.dom.RegisterMemory(make([]byte, 1000), transport.RemoteRead)
	require.NoError(t, err)
	data := make([]byte, 1000)
	local, err := a.dom.RegisterMemory(data, transport.Local)
	require.NoError(t, err)
	const own = 1<<32 - 1
	for _, key := range []uint64{mr.Key() ^ 1<<31, mr.Key() ^ 1<<63, mr.Key() & own, mr.Key() &^ own} {
		op := &transport.Op{Peer: 1, RemoteKey: key, RemoteAddr: mr.Base(), Data: data, Region: local}
		require.ErrorIs(t, access(t, a.ep.(transport.RMAEndpoint).Read, op, a, b), transport.ErrKey)
		require.Zero(t, a.dom.arena.busy)
		require.Zero(t, a.dom.lanes[1].inFlight)
	}
	require.False(t, a.dom.peers[1].narrow)
}

// TestDivide checks that the parts of a division cover all bytes once, and that there are at most as many
// as lanes.
func TestDivide(t *testing.T) {
	for lanes := 2; lanes <= maxLanes; lanes++ {
		for total := partMin; total < 3*maxLanes*partMin; total++ {
			v := divide(total, lanes)
			require.LessOrEqual(t, v.parts, lanes)
			end := 0
			for k := range v.parts {
				from, to := v.bounds(k)
				require.Equal(t, end, from)
				require.Less(t, from, to)
				end = to
			}
			require.Equal(t, total, end, "%d bytes in %d lanes", total, lanes)
		}
	}
}

// TestSecondInterface checks that an interface that does not exist is an error, wherever it is in the list.
func TestSecondInterface(t *testing.T) {
	_, err := withLanes(t, "tcp;ofi_rxm", 0, "lo", "no_such0").Open(transport.Config{Size: 1, OneHost: true})
	require.ErrorContains(t, err, `"no_such0"`)
}
