package transporttest

import (
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

var basicCases = []testCase{
	{name: "attributes", run: testAttributes},
	{name: "address vector", run: testAddressVector},
	{name: "symmetric insert", needs: transport.CapSymmetric, run: testInsertSym},
}

func testAttributes(w *world) {
	t := w.t
	for _, r := range w.ranks {
		a := r.attr
		a.Name = w.attr.Name // each rank may use its own device
		require.Equal(t, w.attr, a, "all ranks have the same attributes")
		require.NotEmpty(t, a.Provider)
		require.GreaterOrEqual(t, a.MaxMsgSize, transport.HeaderSize)
		require.GreaterOrEqual(t, a.EagerLimit, 0)
		require.LessOrEqual(t, a.EagerLimit, a.MaxMsgSize-transport.HeaderSize, "a header and EagerLimit must fit a message")
		require.Positive(t, a.LatencyNs)
		rma := a.Caps&(transport.CapRead|transport.CapWrite) != 0
		require.Equal(t, rma, r.rma != nil, "RMAEndpoint goes with CapRead, CapWrite")
		if rma {
			require.Positive(t, a.MaxRMASize)
		}
		_, atomics := r.ep.(transport.AtomicEndpoint)
		require.Equal(t, a.Caps.Has(transport.CapAtomic), atomics, "AtomicEndpoint goes with CapAtomic")
		if a.Caps.Has(transport.CapSharedMemory) {
			require.Implements(t, (*transport.SharedMemoryDomain)(nil), r.dom)
		}
		_, fd := r.cq.FD()
		require.Equal(t, a.Caps.Has(transport.CapWaitFD), fd, "FD goes with CapWaitFD")
	}
}

func testAddressVector(w *world) {
	t := w.t
	n := len(w.ranks)
	addrs := make([]transport.Address, n)
	for i, r := range w.ranks {
		addrs[i] = r.ep.Address()
		for _, a := range addrs[:i] {
			require.NotEqual(t, a, addrs[i], "two ranks have the same address")
		}
	}
	for _, r := range w.ranks {
		av, err := r.dom.OpenAV()
		require.NoError(t, err)
		rounds := 0
		if av.Len() > 0 { // OpenAV has inserted all addresses
			require.Equal(t, n, av.Len())
			rounds++
		}
		for round := rounds; round < 2; round++ {
			first, err := av.Insert(addrs)
			require.NoError(t, err)
			require.EqualValues(t, round*n, first)
			require.Equal(t, (round+1)*n, av.Len())
		}
		for i := range 2 * n {
			a, err := av.Lookup(transport.Addr(i))
			require.NoError(t, err)
			require.Equal(t, addrs[i%n], a)
		}
		for _, i := range []transport.Addr{-1, transport.Addr(2 * n), 1 << 40} {
			_, err := av.Lookup(i)
			require.ErrorIs(t, err, transport.ErrAddress)
		}
		_, err = av.Insert([]transport.Address{addrs[0], "no address of any fabric"})
		require.ErrorIs(t, err, transport.ErrAddress)
		require.Equal(t, 2*n, av.Len(), "a failed Insert inserts nothing")
		first, err := av.Insert(nil)
		require.NoError(t, err)
		require.EqualValues(t, 2*n, first)

		for _, p := range []transport.Addr{-1, transport.Addr(n), 1 << 40} {
			err := r.again(func() error { _, err := r.ep.Send(&transport.Op{Peer: p}); return err })
			require.ErrorIs(t, err, transport.ErrAddress)
		}
		if !w.attr.Caps.Has(transport.CapSymmetric) {
			_, err := av.InsertSym("127.0.0.1", 1, "1", n)
			require.ErrorIs(t, err, transport.ErrNotSupported)
		}
	}
}

func testInsertSym(w *world) {
	t := w.t
	if !w.symmetric() {
		t.Skip("the opener has not set Node and Service")
	}
	n := len(w.ranks)
	for _, r := range w.ranks {
		av, err := r.dom.OpenAV()
		require.NoError(t, err)
		first, err := av.InsertSym(w.job.Node, 1, w.job.Service, n)
		require.NoError(t, err)
		require.Zero(t, first)
		require.Equal(t, n, av.Len())
		for i, p := range w.ranks {
			a, err := av.Lookup(transport.Addr(i))
			require.NoError(t, err)
			require.Equal(t, p.ep.Address(), a)
		}
		_, err = av.InsertSym(w.job.Node, 1, "no service", n)
		require.ErrorIs(t, err, transport.ErrAddress)
		_, err = av.InsertSym(w.job.Node, -1, w.job.Service, n)
		require.ErrorIs(t, err, transport.ErrAddress)
		require.Equal(t, n, av.Len())
	}
}
