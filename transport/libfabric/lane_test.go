//go:build libfabric

package libfabric

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
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

// TestConformanceInterfaces runs the conformance tests with ranks that use two addresses of the loopback
// interface.
func TestConformanceInterfaces(t *testing.T) {
	for _, prov := range []string{"tcp;ofi_rxm", libfabrictest.XNet()} {
		t.Run(prov, func(t *testing.T) {
			transporttest.Run(t, transporttest.OpenWith(func(t testing.TB) (transport.Provider, func(int)) {
				t.Helper()
				return withLanes(t, prov, 0, "127.0.0.1", "127.0.0.2"), nil
			}), append(refusals(connectionEnds), transporttest.WithRanks(2), transporttest.Except("close with operations in flight",
				"the provider leaves a socket open if an endpoint is closed while a connection is made, here that of the second lane"))...)
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

// parts returns the number of parts that were posted in further lanes.
func (n *node) parts() (sum int) {
	for _, l := range n.dom.lanes {
		sum += int(l.parts)
	}
	return sum
}

// writeAndRead writes size bytes from a to a region of peer and reads them back, and returns how many parts
// of the two were posted in further lanes.
func writeAndRead(t *testing.T, a *node, peer transport.Addr, size int, nodes []*node) (parts int) {
	t.Helper()
	to, before := nodes[peer], a.parts()
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
	do(ep.Write, from)
	require.Equal(t, from, mem)
	do(ep.Read, back)
	require.Equal(t, from, back)
	require.NoError(t, mr.Close())
	require.Zero(t, a.dom.arena.busy)
	return a.parts() - before
}

// TestLanes checks that large reads and writes use as many lanes as both ranks have, and small ones the
// main lane only, with keys of the provider's choice and of weft's.
func TestLanes(t *testing.T) {
	for _, script := range []string{"verbs,nics=2", "cxi,nics=2", "psm,nics=2"} {
		t.Run(script, func(t *testing.T) {
			nodes := laneJob(t, script, 2, 1, 2)
			for from, a := range nodes {
				for to, b := range nodes {
					want := 2 * (min(len(a.dom.lanes), len(b.dom.lanes)) - 1) // of a write and a read
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
	for range 20 {
		writeAndRead(t, a, 1, 100_000, nodes)
	}
	require.Equal(t, 6, a.parts())
	var notices []error
	for _, c := range a.seen {
		if c.Kind == transport.PeerNotice {
			notices = append(notices, c.Err)
		}
		require.NotEqual(t, transport.PeerDown, c.Kind)
	}
	require.Len(t, notices, 1)
	require.ErrorContains(t, notices[0], "uses only verbs with this peer from now on, because of a failure: libfabric testprov on verbs1: ")
	require.ErrorContains(t, notices[0], "the adapter is gone")
}

// TestLaneKey checks that a divided read with a key that the peer does not have is refused, and that one
// whose key is only good for the main lane goes through that.
func TestLaneKey(t *testing.T) {
	nodes := laneJob(t, "verbs,nics=2", 2, 2)
	a, b := nodes[0], nodes[1]
	mr, err := b.dom.RegisterMemory(pattern(make([]byte, 1000), 3), transport.RemoteRead)
	require.NoError(t, err)
	data := make([]byte, 1000)
	local, err := a.dom.RegisterMemory(data, transport.Local)
	require.NoError(t, err)
	read := func(key uint64) error {
		op := &transport.Op{Peer: 1, RemoteKey: key, RemoteAddr: mr.Base(), Data: data, Region: local}
		return access(t, a.ep.(transport.RMAEndpoint).Read, op, a, b)
	}
	const own = 1<<32 - 1
	require.ErrorIs(t, read(mr.Key()^1<<31), transport.ErrKey)
	require.ErrorIs(t, read(mr.Key()&^own), transport.ErrKey)
	require.Zero(t, a.dom.arena.busy)
	require.False(t, a.dom.peers[1].narrow)
	require.NoError(t, read(mr.Key()&own))
	require.Equal(t, pattern(make([]byte, 1000), 3), data)
	require.True(t, a.dom.peers[1].narrow)
}

// TestLanePeerDies checks that divided reads end when the peer dies, those in flight and those of which a
// part waits.
func TestLanePeerDies(t *testing.T) {
	nodes := laneJob(t, "verbs,nics=2,eagain=60", 2, 2)
	a, b := nodes[0], nodes[1]
	mr, err := b.dom.RegisterMemory(make([]byte, 100_000), transport.RemoteRead)
	require.NoError(t, err)
	data := make([]byte, 100_000)
	local, err := a.dom.RegisterMemory(data, transport.Local)
	require.NoError(t, err)
	posted := 0
	for len(a.dom.waiting) == 0 {
		op := &transport.Op{Peer: 1, RemoteKey: mr.Key(), RemoteAddr: mr.Base(), Data: data, Region: local}
		if err := a.ep.(transport.RMAEndpoint).Read(op); err == nil {
			posted++
		} else {
			require.ErrorIs(t, err, transport.ErrAgain)
		}
	}
	require.NoError(t, b.dom.Close())
	until(t, func() bool {
		return kinds(a.seen, transport.OpDone) == posted && kinds(a.seen, transport.PeerDown) == 1
	}, a)
	require.Zero(t, a.dom.arena.busy)
	require.Empty(t, a.dom.waiting)
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

// TestSecondInterface checks that wrong lists of interfaces are errors.
func TestSecondInterface(t *testing.T) {
	for want, ifaces := range map[string][]string{
		`"no_such0"`:                              {"lo", "no_such0"},
		`interface "lo" is named twice`:           {"lo", "lo"},
		"a rank uses interfaces of one kind: 127": {"127.0.0.1", "::1"},
	} {
		_, err := withLanes(t, "tcp;ofi_rxm", 0, ifaces...).Open(transport.Config{Size: 1, OneHost: true})
		require.ErrorContains(t, err, want)
	}
	names := []string{infoOf(t, "shm").Domain.Name, "another"}
	_, err := withLanes(t, "shm", 0, names...).Open(transport.Config{Size: 1, OneHost: true})
	require.ErrorContains(t, err, "a rank uses only one interface of shm")
}

// infoOf returns the info of the first domain of a provider that a rank would use.
func infoOf(t *testing.T, provider string) *fi.Info {
	t.Helper()
	h := hints{provider: provider, oneHost: true}
	infos, err := h.choose()
	require.NoError(t, err)
	return infos[0]
}

// TestSeveralNICsOfAdapters checks that the wish for several NICs does not lead to a provider over sockets
// instead of adapters whose provider chooses the keys.
func TestSeveralNICsOfAdapters(t *testing.T) {
	t.Setenv(testScript, "verbs,nics=2")
	h := hints{nics: 2, oneHost: true}
	infos, err := h.choose()
	require.NoError(t, err)
	h.nics = 0
	alone, err := h.choose()
	require.NoError(t, err)
	require.Equal(t, alone[0].Fabric.ProvName, infos[0].Fabric.ProvName)
	h = hints{provider: libfabrictest.Name, nics: 2, oneHost: true}
	infos, err = h.choose()
	require.NoError(t, err)
	require.Len(t, infos, 2)
	require.NotZero(t, infos[0].Domain.MRMode&fi.MRProvKey)
}

// TestFewerLanesThanInterfaces checks that all ranks of a host have the same main lane if the job names the
// interfaces.
func TestFewerLanesThanInterfaces(t *testing.T) {
	for turn := range 3 {
		p := libfabrictest.WithScript(withLanes(t, libfabrictest.Name, 2, "plain", "plain1", "plain2"), "plain,nics=3")
		d, err := p.Open(transport.Config{Size: 1, OneHost: true, HostRank: turn, HostSize: 3})
		require.NoError(t, err)
		require.Equal(t, "plain,plain1", d.Attr().Name)
		require.NoError(t, d.Close())
	}
}

// TestRegistrationFailsInLane checks that a registration which fails in a further lane ends in the main lane; if it
// cannot end there, the region must be closed with the domain. A region whose fi_close fails in a further lane must
// stay open until Close is called again.
func TestRegistrationFailsInLane(t *testing.T) {
	for _, script := range []string{"cxi", "psm"} {
		n := openNode(t, libfabrictest.WithScript(withLanes(t, libfabrictest.Name, 2), script+",nics=2,emr=1,eclose=1"), config(0, 1))
		d, regions := n.dom, &n.dom.mrs
		mem := make([]byte, 1<<20)
		both := d.mustRegister(t, mem, transport.RemoteRead)
		require.Len(t, both.further, 1)

		_, err := d.RegisterMemory(mem, transport.RemoteRead)
		require.ErrorIs(t, err, fi.ErrNoMemory)
		require.Len(t, regions.stuck, 1, "its fi_close in the main lane has failed")
		_, err = d.RegisterMemory(mem, transport.RemoteRead)
		require.ErrorIs(t, err, fi.ErrNoMemory)
		require.Len(t, regions.stuck, 1)
		require.Len(t, regions.byKey, 1)
		small := d.mustRegister(t, mem[:partMin-1], transport.RemoteRead)
		require.Empty(t, small.further)
		require.NoError(t, small.Close())

		require.ErrorIs(t, both.Close(), fi.ErrBusy)
		require.True(t, both.open)
		require.Len(t, regions.byKey, 1)
		require.NoError(t, both.Close())
		require.Empty(t, regions.byKey)
	}
}

// TestInsertFailsInLane checks that an insertion which fails for a further lane is undone in the lanes before it,
// and that a later one gets the same indices.
func TestInsertFailsInLane(t *testing.T) {
	for _, script := range []string{"verbs", "cxi", "psm"} { // psm: the values of fi_av_insert are no indices
		t.Run(script, func(t *testing.T) {
			p := libfabrictest.WithScript(withLanes(t, libfabrictest.Name, 2), script+",nics=2")
			a, b, c := openNode(t, p, config(0, 3)), openNode(t, p, config(1, 3)), openNode(t, p, config(2, 3))
			own, good := []transport.Address{a.ep.Address()}, []transport.Address{b.ep.Address(), c.ep.Address()}
			main, _, _ := strings.Cut(string(good[1]), ",")
			bad := []transport.Address{good[0], transport.Address(main + ",no address")}
			nodes := []*node{a, b, c}
			for _, n := range nodes {
				v := n.dom.av
				for _, list := range [][]transport.Address{own, good} {
					before := v.Len()
					for range 3 {
						_, err := v.Insert(bad)
						require.ErrorIs(t, err, transport.ErrAddress)
						require.Equal(t, before, v.Len())
						require.Equal(t, before, v.further[0].Len())
					}
					first, err := v.Insert(list)
					require.NoError(t, err)
					require.EqualValues(t, before, first)
				}
				for r, want := range append(own, good...) {
					got, err := v.Lookup(transport.Addr(r))
					require.NoError(t, err)
					require.Equal(t, want, got)
				}
			}
			require.Positive(t, writeAndRead(t, a, 2, 1<<20, nodes))
			require.Positive(t, writeAndRead(t, c, 1, 1<<20, nodes))
		})
	}
}
