//go:build linux && !portable

package shm

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// pin binds the calling goroutine to its thread, and the thread to the i-th processor, from 0, that
// the thread may use. Nothing undoes that. With fewer than two processors, pin only binds the
// goroutine.
func pin(i int) {
	runtime.LockOSThread()
	var have, want unix.CPUSet
	if unix.SchedGetaffinity(0, &have) != nil || have.Count() < 2 {
		return
	}
	for c := range 1024 {
		if have.IsSet(c) {
			if i == 0 {
				want.Set(c)
				break
			}
			i--
		}
	}
	_ = unix.SchedSetaffinity(0, &want) // if this fails, the results only vary more
}

// spinEcho sends back each message, as echo does, but never sleeps. It returns when the peer has
// ended.
func (n *node) spinEcho() error {
	pin(1)
	op := &transport.Op{}
	for {
		k, err := n.cq.Read(n.comp)
		if err != nil {
			return err
		}
		for i := range k {
			c := &n.comp[i]
			if c.Kind != transport.RecvDone {
				return nil
			}
			op.Peer, op.Data = c.Peer, c.Msg
			if _, err := n.ep.Send(op); err != nil {
				return err
			}
		}
	}
}

// sink receives messages, and answers each empty message with an empty one to rank 0. It returns
// when the peer has ended.
func (n *node) sink() error {
	pin(1)
	op := &transport.Op{}
	for {
		k, err := n.cq.Read(n.comp)
		if err != nil {
			return err
		}
		for i := range k {
			c := &n.comp[i]
			if c.Kind != transport.RecvDone {
				return nil
			}
			if len(c.Msg) == 0 {
				if _, err := n.ep.Send(op); err != nil {
					return err
				}
			}
		}
	}
}

// benchmarkWith runs f with rank 0 of a job of two ranks. The other rank runs in a child process;
// what names what it does (see child).
func benchmarkWith(b *testing.B, what string, f func(n *node)) {
	b.Helper()
	n, _ := job(b, what, 2, true)
	pin(0) // the pinned thread ends with the benchmark's goroutine
	for {
		_, err := n.ep.Send(&transport.Op{Peer: 1})
		if err == nil {
			break
		}
		if !errors.Is(err, transport.ErrAgain) {
			b.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	n.await(b, transport.RecvDone)
	f(n)
	b.StopTimer()
	if err := n.ep.Shutdown(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkPingPong measures half the round-trip time of a message between two processes that
// poll without a pause. It takes the mean over each 500 round trips, and reports the median and the
// minimum of these means. bench/c/cacheline.c measures the same for one cache line without weft.
func BenchmarkPingPong(b *testing.B) {
	for _, size := range []int{8, 40, 56, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			benchmarkWith(b, "spin", func(n *node) {
				op := &transport.Op{Peer: 1, HeaderLen: 8, Data: make([]byte, size-8)}
				round := func() {
					if _, err := n.ep.Send(op); err != nil {
						b.Fatal(err)
					}
					for {
						k, err := n.cq.Read(n.comp)
						if err != nil {
							b.Fatal(err)
						}
						if k > 0 {
							break
						}
					}
				}
				for range 1000 {
					round()
				}
				const batch = 500
				var ns []float64
				b.ResetTimer()
				start := time.Now()
				for i := range b.N {
					round()
					if i%batch == batch-1 {
						ns = append(ns, float64(time.Since(start).Nanoseconds())/batch/2)
						start = time.Now()
					}
				}
				if len(ns) > 0 {
					slices.Sort(ns)
					b.ReportMetric(ns[len(ns)/2], "median-ns")
					b.ReportMetric(ns[0], "min-ns")
				}
			})
		})
	}
}

// BenchmarkStream measures the throughput of messages. One process sends 64 messages and then an
// empty one, and waits until the other process answers the empty one.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{8, 40, 256, 1 << 10, 8 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			benchmarkWith(b, "sink", func(n *node) {
				data, empty := &transport.Op{Peer: 1, Data: make([]byte, size)}, &transport.Op{Peer: 1}
				b.SetBytes(int64(size))
				send := func(op *transport.Op) {
					for {
						_, err := n.ep.Send(op)
						if err == nil {
							return
						}
						if _, err = n.cq.Read(n.comp); err != nil {
							b.Fatal(err)
						}
					}
				}
				b.ResetTimer()
				for i := range b.N {
					send(data)
					if i%64 == 63 || i == b.N-1 {
						send(empty)
						for {
							if k, err := n.cq.Read(n.comp); k > 0 || err != nil {
								break
							}
						}
					}
				}
			})
		})
	}
}
