//go:build libfabric

package fi

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// onViolation is what a provider does with an RMA or atomic operation that the target's region does
// not permit.
type onViolation int

const (
	refused   onViolation = iota // the operation ends with an error completion with ErrAccess
	dropped                      // the target closes the connection: reads fail, writes are lost
	swallowed                    // the operation and all later ones do not end
	lost                         // the operation succeeds without an effect
	// The operation accesses the memory, because the provider does not check the region.
	unchecked
)

// rmaProviders describes providers of libfabric 1.17 and 2.1, so that the tests notice when a provider
// changes.
var rmaProviders = []struct {
	prov      string
	emptyRead bool // a read of no bytes completes
	violation onViolation
	dataLen   bool // the peer's completion of a write with immediate data has the length of the write
}{
	{prov: "shm", emptyRead: true, violation: unchecked, dataLen: true},
	{prov: xnet, emptyRead: true, violation: dropped},
	{prov: "tcp;ofi_rxm", emptyRead: true, violation: dropped},
	{prov: "udp;ofi_rxd", violation: swallowed, dataLen: true},
	{prov: "sockets", emptyRead: true, violation: refused, dataLen: true},
}

func TestWriteAndRead(t *testing.T) {
	const size = 1 << 20
	for _, p := range rmaProviders {
		t.Run(p.prov, func(t *testing.T) {
			a, b := rmaPair(t, p.prov)
			w, l := b.remote(size), a.local(size)
			ctx := NewContext("rma")
			inject := a.info.Tx.InjectSize
			for _, n := range []int{0, 1, 100, inject, inject + 1, 4096, 65536, size} {
				at := (size - n) / 3
				pattern(l.mem, n)
				a.post(func() error {
					return a.ep.Write(l.mem[:n], l.mr.Desc(), a.peer, w.base+uint64(at), w.key, ctx)
				})
				require.NotZero(t, a.wait(ctx).Flags&FlagWrite, "%d bytes", n)
				a.arrives(w.mem[at:at+n], l.mem[:n])

				if n == 0 && !p.emptyRead {
					continue
				}
				clear(l.mem)
				pattern(w.mem, n+1)
				a.post(func() error {
					return a.ep.Read(l.mem[:n], l.mr.Desc(), a.peer, w.base+uint64(at), w.key, ctx)
				})
				require.NotZero(t, a.wait(ctx).Flags&FlagRead, "%d bytes", n)
				require.Equal(t, w.mem[at:at+n], l.mem[:n])
			}
			b.quiet()
		})
	}
}

func TestVectorsOfRMA(t *testing.T) {
	const size = 1 << 16
	for _, p := range rmaProviders {
		t.Run(p.prov, func(t *testing.T) {
			a, b := rmaPair(t, p.prov)
			w, l := b.remote(size), a.local(size)
			ctx := NewContext("rma")
			require.GreaterOrEqual(t, a.info.Tx.RMAIovLimit, 2)
			pieces := [][]byte{l.mem[:100], l.mem[1000:3000]}
			descs := []Desc{l.mr.Desc(), l.mr.Desc()}

			pattern(l.mem, 1)
			want := append(append([]byte(nil), pieces[0]...), pieces[1]...)
			a.post(func() error { return a.ep.WriteV(pieces, descs, a.peer, w.base+8, w.key, ctx) })
			a.wait(ctx)
			a.arrives(w.mem[8:8+2100], want)

			clear(l.mem)
			pattern(w.mem, 2)
			a.post(func() error { return a.ep.ReadV(pieces, descs, a.peer, w.base+8, w.key, ctx) })
			a.wait(ctx)
			require.Equal(t, w.mem[8:108], pieces[0])
			require.Equal(t, w.mem[108:2108], pieces[1])

			msg := &RMAMsg{
				Bufs: pieces, Descs: descs, Addr: a.peer, Context: ctx,
				RMA: []RMAIov{{w.base + 5000, 2000, w.key}, {w.base, 100, w.key}},
			}
			pattern(l.mem, 3)
			want = append(append(want[:0], pieces[0]...), pieces[1]...)
			a.post(func() error { return a.ep.WriteMsg(msg, FlagCompletion|FlagDeliveryComplete) })
			a.wait(ctx)
			a.arrives(w.mem[5000:7000], want[:2000])
			a.arrives(w.mem[:100], want[2000:])

			clear(l.mem)
			pattern(w.mem, 4)
			a.post(func() error { return a.ep.ReadMsg(msg, FlagCompletion) })
			a.wait(ctx)
			require.Equal(t, w.mem[5000:5100], pieces[0])
			require.Equal(t, append(append([]byte(nil), w.mem[5100:7000]...), w.mem[:100]...), pieces[1])

			small := append([]byte(nil), "free at once"...)
			msg = &RMAMsg{
				Bufs: [][]byte{small}, Addr: a.peer, Context: ctx,
				RMA: []RMAIov{{w.base, uint64(len(small)), w.key}},
			}
			a.post(func() error { return a.ep.WriteMsg(msg, FlagCompletion|FlagInject) })
			clear(small)
			a.wait(ctx)
			a.arrives(w.mem[:12], []byte("free at once"))
		})
	}
}

func TestWriteData(t *testing.T) {
	const size = 1 << 16
	for _, p := range rmaProviders {
		t.Run(p.prov, func(t *testing.T) {
			a, b := rmaPair(t, p.prov)
			w, l := b.remote(size), a.local(size)
			ctx := NewContext("rma")
			require.Equal(t, 8, a.info.Domain.CQDataSize)
			told := func(data uint64, n int) {
				e := b.next()
				require.Nil(t, e.err)
				require.Nil(t, e.Context, "no receive has been posted")
				want := FlagRemoteWrite | FlagRemoteCQData
				if v2 && p.prov == "shm" { // it does not say which operation had the data
					want = FlagRemoteCQData
				}
				require.Equal(t, want, e.Flags&(FlagRemoteWrite|FlagRemoteCQData))
				require.Equal(t, data, e.Data)
				if p.dataLen {
					require.EqualValues(t, n, e.Len)
				}
				require.Equal(t, l.mem[:n], w.mem[:n], "the data arrives before the completion")
			}
			for i, n := range []int{1, 100, 4096, size} {
				data := uint64(i)<<56 | 0x12345678
				pattern(l.mem, i)
				a.post(func() error { return a.ep.WriteData(l.mem[:n], l.mr.Desc(), data, a.peer, w.base, w.key, ctx) })
				a.wait(ctx)
				told(data, n)
			}
			pattern(l.mem, 5)
			a.post(func() error {
				return a.ep.WriteMsg(&RMAMsg{
					Bufs: [][]byte{l.mem[:77]}, Descs: []Desc{l.mr.Desc()}, Addr: a.peer, Context: ctx,
					RMA: []RMAIov{{w.base, 77, w.key}}, Data: ^uint64(0),
				}, FlagCompletion|FlagRemoteCQData)
			})
			a.wait(ctx)
			told(^uint64(0), 77)
		})
	}
}

func TestInjectWrite(t *testing.T) {
	for _, p := range rmaProviders {
		t.Run(p.prov, func(t *testing.T) {
			a, b := rmaPair(t, p.prov)
			n := a.info.Tx.InjectSize
			w := b.remote(n + 1)
			buf := make([]byte, n+1)
			for i := range 20 {
				pattern(buf, i)
				want := append([]byte(nil), buf[:n]...)
				a.post(func() error { return a.ep.InjectWrite(buf[:n], a.peer, w.base, w.key) })
				clear(buf)
				a.arrives(w.mem[:n], want)

				pattern(buf, i+100)
				want = append(want[:0], buf[:n]...)
				a.post(func() error { return a.ep.InjectWriteData(buf[:n], uint64(i), a.peer, w.base, w.key) })
				clear(buf)
				e := b.next()
				require.Nil(t, e.err)
				require.EqualValues(t, i, e.Data)
				require.Equal(t, want, w.mem[:n])
			}
			require.Empty(t, a.events, "inject does not complete")
		})
	}
}

// TestManyWrites posts 200 writes before it waits for the first, each with a context and a target
// range of its own. All data must arrive.
func TestManyWrites(t *testing.T) {
	const count, each = 200, 300
	for _, p := range rmaProviders {
		t.Run(p.prov, func(t *testing.T) {
			a, b := rmaPair(t, p.prov)
			w, l := b.remote(count*each), a.local(count*each)
			pattern(l.mem, 1)
			var contexts []*Context
			for i := range count {
				ctx, at := NewContext(i), i*each
				contexts = append(contexts, ctx)
				a.post(func() error {
					return a.ep.Write(l.mem[at:at+each], l.mr.Desc(), a.peer, w.base+uint64(at), w.key, ctx)
				})
			}
			for _, ctx := range contexts {
				a.wait(ctx)
				require.False(t, ctx.InFlight())
			}
			a.arrives(w.mem, l.mem)
		})
	}
}

// TestViolations posts reads and writes that the target must refuse: with an unknown key, beyond
// the region, without the right to access it, or after it was closed. They must end as rmaProviders
// says.
func TestViolations(t *testing.T) {
	const size = 1000
	for _, p := range rmaProviders {
		for _, kind := range []string{"key", "bounds", "access", "closed"} {
			for _, write := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%s/write=%t", p.prov, kind, write), func(t *testing.T) {
					a, b := rmaPair(t, p.prov)
					l, ctx := a.local(size), NewContext("rma")
					w := b.remote(size)
					addr, key := w.base, w.key
					switch kind {
					case "key":
						key = 1 << 40
					case "bounds":
						addr += size / 2
					case "access":
						access := AccessRemoteWrite
						if write {
							access = AccessRemoteRead
						}
						w = b.window(size, access)
						addr, key = w.base, w.key
					case "closed":
						require.NoError(t, w.mr.Close())
					}
					pattern(l.mem, 1)
					before := string(l.mem)
					a.post(func() error {
						if write {
							return a.ep.Write(l.mem, l.mr.Desc(), a.peer, addr, key, ctx)
						}
						return a.ep.Read(l.mem, l.mr.Desc(), a.peer, addr, key, ctx)
					})
					violation := p.violation
					if v2 && p.prov == "shm" { // the target checks the region, and a write is complete before
						violation = swallowed
						if write {
							violation = lost
						}
					}
					switch violation {
					case refused:
						require.ErrorIs(t, a.ended(ctx).err, ErrAccess)
					case dropped:
						if write {
							a.wait(ctx) // a completed write means only that the data was sent
						} else {
							require.ErrorIs(t, a.ended(ctx).err, ErrCanceled)
						}
					case swallowed:
						a.quiet()
						require.True(t, ctx.InFlight())
					case lost:
						a.wait(ctx)
					case unchecked:
						a.wait(ctx)
						require.Equal(t, write, !w.untouched())
						return
					}
					require.True(t, w.untouched())
					require.Equal(t, before, string(l.mem))
				})
			}
		}
	}
}

func TestMisuseOfRMA(t *testing.T) {
	a, b := rmaPair(t, "tcp;ofi_rxm")
	w, l := b.remote(100), a.local(100)
	ctx := NewContext("rma")
	a.post(func() error { return a.ep.Write(l.mem, l.mr.Desc(), a.peer, w.base, w.key, ctx) })
	require.Equal(t, ErrBusy, a.ep.Read(l.mem, l.mr.Desc(), a.peer, w.base, w.key, ctx))
	a.wait(ctx)
	require.NoError(t, ctx.Close())
	require.Equal(t, ErrClosed, a.ep.Read(l.mem, l.mr.Desc(), a.peer, w.base, w.key, ctx))

	closed := new(Endpoint)
	ctx = NewContext("rma")
	for _, err := range []error{
		closed.Read(l.mem, Desc{}, 0, 0, 0, ctx), closed.ReadV(nil, nil, 0, 0, 0, ctx),
		closed.Write(l.mem, Desc{}, 0, 0, 0, ctx), closed.WriteV(nil, nil, 0, 0, 0, ctx),
		closed.WriteData(l.mem, Desc{}, 0, 0, 0, 0, ctx), closed.InjectWrite(l.mem, 0, 0, 0),
		closed.InjectWriteData(l.mem, 0, 0, 0, 0),
		closed.ReadMsg(&RMAMsg{Context: ctx}, 0), closed.WriteMsg(&RMAMsg{Context: ctx}, 0),
	} {
		require.Equal(t, ErrClosed, err)
	}
	require.False(t, ctx.InFlight())
}
