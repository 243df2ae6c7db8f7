package tcp

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// BenchmarkRMA measures the time of one read from, or one write to, the memory of another process
// on this host.
func BenchmarkRMA(b *testing.B) {
	for _, operation := range []string{"read", "write"} {
		for _, size := range []int{8, 64 << 10, 1 << 20, 4 << 20} {
			b.Run(fmt.Sprint(operation, "/", size), func(b *testing.B) {
				n, _ := twoProcesses(b, "serve")
				runtime.LockOSThread() // without an unlock, so that the pinned thread ends with this goroutine
				pin(0)
				m := await(b, []*testRank{n}, n, kind(transport.RecvDone))
				op := &transport.Op{Peer: 1, RemoteKey: binary.LittleEndian.Uint64(m.Msg), Data: make([]byte, size)}
				b.SetBytes(int64(size))
				post := n.ep.Read
				if operation == "write" {
					post = n.ep.Write
				}
				b.ResetTimer()
				for range b.N {
					if err := post(op); err != nil {
						b.Fatal(err)
					}
					for got := 0; got == 0; {
						var err error
						if got, err = n.cq.Read(n.comp); err != nil {
							b.Fatal(err)
						}
					}
				}
				b.StopTimer()
				ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
				defer cancel()
				require.NoError(b, n.ep.Shutdown(ctx))
			})
		}
	}
}

// BenchmarkPingPong measures the latency between the endpoints of two processes that both poll, as
// bench/c/tcp_pingpong.c does for a bare socket. It takes the mean of half a round trip over each
// 500 round trips, and reports the median and the minimum of these means.
func BenchmarkPingPong(b *testing.B) {
	for _, size := range []int{8, 1 << 10, 8 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			n, _ := twoProcesses(b, "echo")
			runtime.LockOSThread() // without an unlock, so that the pinned thread ends with this goroutine
			pin(0)
			op := &transport.Op{Peer: 1, HeaderLen: 8, Data: make([]byte, size-8)}
			round := func() {
				done, err := n.ep.Send(op)
				if err != nil {
					b.Fatal(err)
				}
				for got := false; !got || !done; {
					k, err := n.cq.Read(n.comp)
					if err != nil {
						b.Fatal(err)
					}
					for i := range k {
						got = got || n.comp[i].Kind == transport.RecvDone
						done = done || n.comp[i].Kind == transport.OpDone
					}
				}
			}
			for range 1000 {
				round()
			}
			const batch = 500
			var us []float64
			start := time.Now()
			for i := range b.N {
				round()
				if i%batch == batch-1 {
					us = append(us, float64(time.Since(start).Nanoseconds())/batch/2/1e3)
					start = time.Now()
				}
			}
			if len(us) > 0 {
				slices.Sort(us)
				b.ReportMetric(us[len(us)/2], "median-µs")
				b.ReportMetric(us[0], "min-µs")
			}
			b.StopTimer()
			ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
			defer cancel()
			require.NoError(b, n.ep.Shutdown(ctx))
		})
	}
}
