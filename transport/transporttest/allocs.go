package transporttest

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// In these cases the test's goroutine makes the calls of all ranks, because
// testing.AllocsPerRun counts the allocations of all goroutines.
var allocationCases = []testCase{
	{name: "no allocation per message", maxRanks: 2, run: testMessageAllocations},
	{name: "no allocation per read", needs: transport.CapRead | capReach, maxRanks: 2, run: testReadAllocations},
}

// requireNoAllocations calls f 200 times, so that buffers grow to their final size, and then checks
// that 500 more calls do not allocate.
func (w *world) requireNoAllocations(f func()) {
	w.t.Helper()
	for range 200 {
		f()
	}
	require.Zero(w.t, testing.AllocsPerRun(500, f))
}

// pollUntil reads the queues of all ranks until cond returns true. After the time timeout it fails
// the test.
func (w *world) pollUntil(cond func() bool) {
	end := time.Now().Add(timeout)
	for !cond() {
		for _, r := range w.ranks {
			if _, err := r.poll(); err != nil {
				require.NoError(w.t, err)
			}
		}
		runtime.Gosched()
		if time.Now().After(end) {
			require.Failf(w.t, "the ranks make no progress", "for %v", timeout)
		}
	}
}

// connectAll has every rank send a message to every rank, so that a fabric with connections has all
// connections afterwards.
func (w *world) connectAll() {
	w.t.Helper()
	w.traffic(traffic{count: 1, sizes: []int{8}, headers: []int{16}, window: 1})
}

func testMessageAllocations(w *world) {
	w.connectAll()
	for _, size := range []int{0, 8, 256, min(w.attr.EagerLimit, 4096)} {
		from, to := w.ranks[0], w.ranks[len(w.ranks)-1]
		got := 0
		to.onMsg = func(transport.Addr, []byte) error { got++; return nil }
		q := &request{}
		data := make([]byte, min(size, w.attr.MaxMsgSize-16))
		sent := 0
		arrived := func() bool { return got == sent && !q.busy }
		w.requireNoAllocations(func() {
			q.op = transport.Op{Peer: to.id, HeaderLen: 16, Data: data}
			if err := from.send(q); err != nil {
				require.NoError(w.t, err)
			}
			sent++
			w.pollUntil(arrived)
		})
		to.onMsg = nil
	}
}

func testReadAllocations(w *world) {
	w.connectAll()
	from, to := w.ranks[0], w.ranks[len(w.ranks)-1]
	src, dst := make([]byte, 4096), make([]byte, 4096)
	q := &request{}
	arrived := func() bool { return !q.busy }
	var local transport.MemoryRegion
	if w.attr.MRMode&transport.MRLocal != 0 {
		var err error
		local, err = from.dom.RegisterMemory(dst, transport.Local)
		require.NoError(w.t, err)
	}
	w.requireNoAllocations(func() {
		mr, err := to.dom.RegisterMemory(src, transport.RemoteRead)
		if err != nil {
			require.NoError(w.t, err)
		}
		q.op = transport.Op{Peer: to.id, RemoteKey: mr.Key(), RemoteAddr: mr.Base(), Data: dst, Region: local}
		if err := from.read(q); err != nil {
			require.NoError(w.t, err)
		}
		w.pollUntil(arrived)
		if q.err != nil {
			require.NoError(w.t, q.err)
		}
		if err := mr.Close(); err != nil {
			require.NoError(w.t, err)
		}
	})
}
