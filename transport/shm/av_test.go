//go:build linux && !portable

package shm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// found opens n ranks without a memory file in Config, so that they find each other by their
// addresses, and inserts all addresses at each rank. host returns a number that is added to the
// host number in a rank's address: ranks with different numbers are on different hosts. change may
// alter the addresses that a rank inserts.
func found(t *testing.T, n int, host func(rank int) uint64, change func(rank int, addrs []transport.Address)) []*node {
	t.Helper()
	all := make([]*node, n)
	addrs := make([]transport.Address, n)
	for i := range all {
		var err error
		all[i], err = newNode(New(), config(i, n))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, all[i].Close()) })
		all[i].address.host += host(i)
		addrs[i] = all[i].ep.Address()
	}
	for i, x := range all {
		own := append([]transport.Address(nil), addrs...)
		change(i, own)
		_, err := x.av.Insert(own[:1])
		require.NoError(t, err)
		require.Nil(t, x.seg)
		_, err = x.av.Insert(own[1:])
		require.NoError(t, err)
		require.NotNil(t, x.seg)
	}
	return all
}

// reached returns the ranks for which Reaches of rank n returns true. It sends a message to every
// rank, and checks that Send succeeds for exactly these ranks.
func (n *node) reached(t *testing.T) (l []int) {
	t.Helper()
	for i := range n.size {
		_, err := n.ep.Send(&transport.Op{Peer: transport.Addr(i), Data: []byte{byte(n.rank)}})
		if n.av.(transport.Reacher).Reaches(transport.Addr(i)) {
			require.NoError(t, err)
			l = append(l, i)
		} else {
			require.Error(t, err)
		}
	}
	return l
}

// TestHosts has the ranks of two hosts insert all addresses. An address holds a process id and a
// descriptor, which mean nothing on the other host. Each rank must reach exactly the ranks of its
// own host.
func TestHosts(t *testing.T) {
	all := found(t, 5, func(rank int) uint64 { return uint64(rank % 2) }, func(int, []transport.Address) {})
	want := [][]int{{0, 2, 4}, {1, 3}}
	for i, n := range all {
		require.Equal(t, want[i%2], n.reached(t))
		require.Equal(t, len(want[i%2]), n.seg.n)
		require.False(t, n.av.(transport.Reacher).Reaches(-1))
		require.False(t, n.av.(transport.Reacher).Reaches(5))
	}
	for i, n := range all {
		var from []int
		n.comp = n.comp[:1]
		for range want[i%2] {
			c := n.await(t, transport.RecvDone)
			require.Equal(t, []byte{byte(c.Peer)}, c.Msg)
			from = append(from, int(c.Peer))
		}
		require.ElementsMatch(t, want[i%2], from)
	}
}

// TestHiddenProcess has rank 1 insert an address of rank 0 whose descriptor does not exist, so rank
// 1 cannot open the memory file of rank 0. Rank 1 then reaches only itself, and the other ranks do
// not reach rank 1.
func TestHiddenProcess(t *testing.T) {
	all := found(t, 3, func(int) uint64 { return 0 }, func(rank int, addrs []transport.Address) {
		if rank == 1 {
			a, _ := parseAddress(addrs[0])
			a.fd = 1 << 20
			addrs[0] = a.text()
		}
	})
	require.Equal(t, []int{0, 2}, all[0].reached(t))
	require.Equal(t, []int{1}, all[1].reached(t))
	require.Equal(t, []int{0, 2}, all[2].reached(t))
}

// TestInsertRefuses inserts invalid addresses, and complete lists in which the address at an index
// is that of another rank, or is not the one that the rank has announced. Insert returns
// ErrAddress.
func TestInsertRefuses(t *testing.T) {
	open := func() *node {
		n, err := newNode(New(), config(1, 3))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, n.Close()) })
		return n
	}
	n := open()
	own := n.ep.Address()
	for _, a := range []transport.Address{"shm:", "shm:x", "shm:-1", "shm:3", "tcp:1", "shm:1/2", own + "/", own[:len(own)-1]} {
		_, err := n.av.Insert([]transport.Address{"shm:0", a})
		require.ErrorIs(t, err, transport.ErrAddress, a)
		require.Zero(t, n.av.Len())
	}
	for _, l := range [][]transport.Address{{"shm:0", "shm:1", "shm:2"}, {"shm:0", "shm:2", own}} {
		n := open()
		if l[2] == own {
			l[2] = n.ep.Address()
		}
		_, err := n.av.Insert(l)
		require.ErrorIs(t, err, transport.ErrAddress)
	}
}

// TestRankWithoutMemory has ranks 0 and 2 insert an empty address for rank 1, as for a rank whose
// Open has returned ErrUnavailable. Ranks 0 and 2 reach each other, and not rank 1.
func TestRankWithoutMemory(t *testing.T) {
	all := found(t, 3, func(int) uint64 { return 0 }, func(rank int, addrs []transport.Address) {
		if rank == 1 { // in a real job, this rank would use another transport
			addrs[0], addrs[2] = "", ""
		} else {
			addrs[1] = ""
		}
	})
	require.Equal(t, []int{0, 2}, all[0].reached(t))
	require.Equal(t, []int{0, 2}, all[2].reached(t))
	for _, rank := range []transport.Addr{0, 2} {
		a, err := all[rank].av.Lookup(1)
		require.NoError(t, err)
		require.Empty(t, a)
	}
}

func FuzzAddress(f *testing.F) {
	f.Add("shm:3")
	a := address{rank: 3, host: 1 << 63, pid: 77, fd: 0, nonce: 5}
	f.Add(string(a.text()))
	f.Add("shm:3/0000000000000001/2/3/0000000000000004")
	f.Add("shm:3/1/2/3/4")
	f.Fuzz(func(t *testing.T, s string) {
		a, ok := parseAddress(transport.Address(s))
		if !ok {
			require.Zero(t, a)
			return
		}
		again, ok := parseAddress(a.text())
		if a.pid == 0 {
			again, ok = parseAddress(plainAddress(a.rank))
		}
		require.True(t, ok)
		require.Equal(t, a, again)
	})
}
