//go:build libfabric

package libfabric

import (
	"bytes"
	"errors"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

// churnHeap runs the garbage collector again and again until the test ends, and allocates and
// overwrites buffers of these sizes, which may lie in memory that the collector has freed.
func churnHeap(t *testing.T, sizes ...int) {
	percent := debug.SetGCPercent(1)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // ends at the test's cleanup, which waits for it
		defer close(done)
		var keep [8][]byte
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			b := make([]byte, sizes[i%len(sizes)])
			for j := range b {
				b[j] = 0xdb
			}
			keep[i%len(keep)] = b
			if i%16 == 0 {
				runtime.GC()
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
		debug.SetGCPercent(percent)
	})
}

// pattern fills b with bytes that depend on the seed and the position, and returns b.
func pattern(b []byte, seed int) []byte {
	for i := range b {
		b[i] = byte(seed*31 + i*7 + i>>8)
	}
	return b
}

// TestCollector sends messages and does RMA while the garbage collector runs. Until an operation is
// complete, the test keeps no reference to its Op and buffers. All data must arrive unchanged.
// cgo's pointer checks are active, because cgocheck=1 is Go's default.
func TestCollector(t *testing.T) {
	const rounds, part = 200, 70_000
	for _, prov := range []string{"shm", "tcp;ofi_rxm", libfabrictest.XNet(), "udp;ofi_rxd"} {
		t.Run(prov, func(t *testing.T) {
			a, b := pair(t, prov, nil)
			limit := a.dom.attr.MaxMsgSize
			sizes := []int{50, min(3000, limit), min(12_000, limit), limit}
			churnHeap(t, append(sizes, part, part/3)...)
			const all = transport.RemoteRead | transport.RemoteWrite
			from, err := b.dom.RegisterMemory(pattern(make([]byte, part), 1), all)
			require.NoError(t, err)
			to, err := b.dom.RegisterMemory(make([]byte, rounds*part/3), all)
			require.NoError(t, err)
			rma := a.ep.(transport.RMAEndpoint)
			begin := func(post func() error) {
				until(t, func() bool {
					err = post()
					return !errors.Is(err, transport.ErrAgain)
				}, a, b)
				require.NoError(t, err)
			}
			sent := 0
			for i := range rounds {
				for _, n := range sizes {
					op := &transport.Op{Peer: 1, HeaderLen: 1, Data: pattern(make([]byte, n-1), sent)}
					begin(func() error {
						_, err := a.ep.Send(op)
						return err
					})
					sent++
				}
				get := &transport.Op{Peer: 1, RemoteKey: from.Key(), RemoteAddr: from.Base(), Data: make([]byte, part)}
				begin(func() error { return rma.Read(get) })
				put := &transport.Op{
					Peer: 1, RemoteKey: to.Key(), RemoteAddr: to.Base() + uint64(i*part/3), Data: pattern(make([]byte, part/3), i),
				}
				begin(func() error { return rma.Write(put) })
			}
			ends := func(data int) (n int) {
				for _, c := range a.seen {
					if c.Kind == transport.OpDone && len(c.Op.Data) == data {
						n++
					}
				}
				return n
			}
			until(t, func() bool { return len(b.msgs) == sent && ends(part) == rounds && ends(part/3) == rounds }, a, b)
			want := pattern(make([]byte, part), 1)
			for _, c := range a.seen {
				require.NoError(t, c.Err)
				if len(c.Op.Data) == part {
					require.True(t, bytes.Equal(want, c.Op.Data), "data of a read")
				}
			}
			for i, m := range b.msgs {
				n := sizes[i%len(sizes)]
				require.True(t, m[1:] == string(pattern(make([]byte, n-1), i)), "message %d of %d bytes", i, n)
			}
			for i := range rounds {
				got := to.(*region).buf[i*part/3:][:part/3]
				require.True(t, bytes.Equal(pattern(make([]byte, part/3), i), got), "data of write %d", i)
			}
			require.Zero(t, a.dom.arena.busy)
			require.NoError(t, from.Close())
			require.NoError(t, to.Close())
		})
	}
}
