package transporttest

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// One goroutine drives both ranks in these cases, so that it is the only one
// that may allocate.
var allocationCases = []testCase{
	{name: "no allocation per message", maxRanks: 2, run: testMessageAllocations},
	{name: "no allocation per read", needs: transport.CapRead, maxRanks: 2, run: testReadAllocations},
}

// allocations is how many a call of f makes once things have settled.
func (w *world) allocations(f func()) {
	w.t.Helper()
	for range 200 {
		f()
	}
	require.Zero(w.t, testing.AllocsPerRun(500, f))
}

// turn polls all ranks until cond holds.
func (w *world) turn(cond func() bool) {
	end := time.Now().Add(w.timeout)
	for !cond() {
		for _, r := range w.ranks {
			if _, err := r.poll(); err != nil {
				require.NoError(w.t, err)
			}
		}
		runtime.Gosched()
		if time.Now().After(end) {
			require.Fail(w.t, "nothing happens")
		}
	}
}

// acquaint has every pair of ranks connect, for which both may have to move.
func (w *world) acquaint() {
	w.t.Helper()
	w.traffic(traffic{count: 1, sizes: []int{8}, headers: []int{16}, window: 1})
}

func testMessageAllocations(w *world) {
	w.acquaint()
	for _, size := range []int{0, 8, 256, min(w.attr.EagerLimit, 4096)} {
		from, to := w.ranks[0], w.ranks[len(w.ranks)-1]
		got := 0
		to.onMsg = func(transport.Addr, []byte) error { got++; return nil }
		q := &request{}
		data := make([]byte, min(size, w.attr.MaxMsgSize-16))
		sent := 0
		arrived := func() bool { return got == sent && !q.busy }
		w.allocations(func() {
			q.op = transport.Op{Peer: to.id, HeaderLen: 16, Data: data}
			if err := from.send(q); err != nil {
				require.NoError(w.t, err)
			}
			sent++
			w.turn(arrived)
		})
		to.onMsg = nil
	}
}

func testReadAllocations(w *world) {
	w.acquaint()
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
	w.allocations(func() {
		mr, err := to.dom.RegisterMemory(src, transport.RemoteRead)
		if err != nil {
			require.NoError(w.t, err)
		}
		q.op = transport.Op{Peer: to.id, RemoteKey: mr.Key(), RemoteAddr: mr.Base(), Data: dst, Region: local}
		if err := from.read(q); err != nil {
			require.NoError(w.t, err)
		}
		w.turn(arrived)
		if q.err != nil {
			require.NoError(w.t, q.err)
		}
		if err := mr.Close(); err != nil {
			require.NoError(w.t, err)
		}
	})
}
