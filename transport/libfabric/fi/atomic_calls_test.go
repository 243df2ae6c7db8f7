//go:build libfabric

package fi

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

// words returns values as 64-bit little-endian integers.
func words(values ...uint64) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// TestAtomicCalls posts on node a each atomic call that takes several buffers or segments, and
// InjectAtomic. It checks the memory of node b and the fetched values.
func TestAtomicCalls(t *testing.T) {
	const typ = TypeUint64
	for _, p := range atomicProviders {
		t.Run(p.prov, func(t *testing.T) {
			a, b := atomicPair(t, p.prov)
			w, l := b.remote(4096), a.local(4096)
			ctx, d := NewContext("atomic"), l.mr.Desc()
			// Three vectors of three elements in two buffers each; result is split at another
			// position.
			operand := Vector{Bufs: [][]byte{l.mem[0:8], l.mem[16:32]}, Descs: []Desc{d, d}}
			compare := Vector{Bufs: [][]byte{l.mem[64:72], l.mem[80:96]}, Descs: []Desc{d, d}}
			result := Vector{Bufs: [][]byte{l.mem[128:144], l.mem[160:168]}, Descs: []Desc{d, d}}
			fill := func(v Vector, x, y, z uint64) {
				copy(v.Bufs[0], words(x, y, z))
				copy(v.Bufs[1], words(x, y, z)[len(v.Bufs[0]):])
			}
			fetched := func(x, y, z uint64) {
				t.Helper()
				require.Equal(t, words(x, y, z), append(append([]byte(nil), result.Bufs[0]...), result.Bufs[1]...))
			}
			at := w.mem[:24]

			copy(at, words(1, 2, 3))
			fill(operand, 10, 20, 30)
			a.post(func() error { return a.ep.AtomicV(operand, a.peer, w.base, w.key, typ, AtomicSum, ctx) })
			a.wait(ctx)
			a.arrives(at, words(11, 22, 33))

			one := words(5)
			a.post(func() error { return a.ep.InjectAtomic(one, a.peer, w.base, w.key, typ, AtomicSum) })
			clear(one)
			a.arrives(at, words(16, 22, 33))
			// msg names two segments of b's memory.
			msg := &AtomicMsg{
				Operand: operand, Compare: compare, Result: result, Addr: a.peer, Context: ctx,
				RMA:      []RMAIoc{{w.base + 512, 2, w.key}, {w.base + 1024, 1, w.key}},
				Datatype: typ, Op: AtomicSum,
			}
			there := func(x, y, z uint64) {
				t.Helper()
				a.arrives(w.mem[512:528], words(x, y))
				a.arrives(w.mem[1024:1032], words(z))
			}
			a.post(func() error { return a.ep.AtomicMsg(msg, FlagCompletion) })
			a.wait(ctx)
			there(10, 20, 30)

			if p.crashes {
				return
			}
			a.post(func() error {
				return a.ep.FetchAtomicV(operand, result, a.peer, w.base, w.key, typ, AtomicSum, ctx)
			})
			a.wait(ctx)
			fetched(16, 22, 33)
			a.arrives(at, words(26, 42, 63))

			fill(compare, 26, 0, 63)
			a.post(func() error {
				return a.ep.CompareAtomicV(operand, compare, result, a.peer, w.base, w.key, typ, AtomicCompareSwap, ctx)
			})
			a.wait(ctx)
			fetched(26, 42, 63)
			a.arrives(at, words(10, 42, 30))

			a.post(func() error {
				return a.ep.FetchAtomicV(Vector{}, result, a.peer, w.base, w.key, typ, AtomicRead, ctx)
			})
			a.wait(ctx)
			fetched(10, 42, 30)

			a.post(func() error { return a.ep.FetchAtomicMsg(msg, FlagCompletion) })
			a.wait(ctx)
			fetched(10, 20, 30)
			there(20, 40, 60)

			fill(compare, 0, 0xff, ^uint64(0))
			msg.Op = AtomicMaskSwap
			a.post(func() error { return a.ep.CompareAtomicMsg(msg, FlagCompletion) })
			a.wait(ctx)
			fetched(20, 40, 60)
			there(20, 20, 30)

			a.quiet()
		})
	}
}

// TestAtomicIncrements checks that no increment is lost when both nodes increment the same integer
// at b concurrently.
func TestAtomicIncrements(t *testing.T) {
	const each = 100
	for _, p := range atomicProviders {
		t.Run(p.prov, func(t *testing.T) {
			a, b := atomicPair(t, p.prov)
			w := b.remote(64)
			one := words(1)
			ca, cb := NewContext("a"), NewContext("b")
			self := make([]Addr, 1)
			name, err := b.ep.Name()
			require.NoError(t, err)
			_, err = b.av.Insert([][]byte{name}, self, 0, 0)
			require.NoError(t, err)
			for range each {
				a.post(func() error { return a.ep.Atomic(one, Desc{}, a.peer, w.base, w.key, TypeUint64, AtomicSum, ca) })
				b.post(func() error { return b.ep.Atomic(one, Desc{}, self[0], w.base, w.key, TypeUint64, AtomicSum, cb) })
				a.wait(ca)
				b.wait(cb)
			}
			a.arrives(w.mem[:8], words(2*each))
		})
	}
}

// TestAtomicsOfNet checks that net supports no atomic operation, although it has CapAtomic, and that
// the same provider of libfabric 2.x, tcp, does not offer CapAtomic.
func TestAtomicsOfNet(t *testing.T) {
	if v2 {
		hints := NewInfo()
		hints.Fabric.ProvName, hints.EP.Type, hints.Caps = xnet, EPRDM, CapAtomic
		infos, err := GetInfo(HeaderVersion, "", "", 0, hints)
		require.NoError(t, err, "hints for tcp also select tcp;ofi_rxm")
		for _, i := range infos {
			require.Equal(t, "tcp;ofi_rxm", i.Fabric.ProvName)
		}
		return
	}
	a, b := atomicPair(t, xnet)
	w := b.remote(64)
	require.NotZero(t, a.info.Caps&CapAtomic)
	for _, f := range forms {
		for _, typ := range Datatypes() {
			for _, op := range AtomicOps() {
				_, err := f.valid(a.ep, typ, op)
				require.ErrorIs(t, err, ErrNotSupported)
				_, err = a.domain.QueryAtomic(typ, op, f.query)
				require.ErrorIs(t, err, ErrNotSupported)
			}
		}
	}
	ctx := NewContext("atomic")
	require.Equal(t, ErrNotSupp, a.ep.Atomic(words(1), Desc{}, a.peer, w.base, w.key, TypeUint64, AtomicSum, ctx))
	require.False(t, ctx.InFlight())
}

// TestAtomicViolations posts atomic operations that the target must refuse: with an unknown key,
// beyond the region, or without the right to access it. They must not change any memory, and must
// end as atomicProviders says.
func TestAtomicViolations(t *testing.T) {
	for _, p := range atomicProviders {
		for _, f := range forms {
			if p.crashes && f.query != 0 {
				continue
			}
			for _, kind := range []string{"key", "bounds", "access"} {
				t.Run(p.prov+"/"+f.name+"/"+kind, func(t *testing.T) {
					a, b := atomicPair(t, p.prov)
					w, l := b.remote(64), a.local(64)
					ctx, op := NewContext("atomic"), AtomicSum
					if f.query == FlagCompareAtomic {
						op = AtomicCompareSwapNE
					}
					switch kind {
					case "key":
						w.key = 1 << 40
					case "bounds":
						w.base += 60
					case "access":
						w = b.window(64, AccessRemoteRead)
					}
					copy(l.mem, words(1, 2, 3))
					a.post(func() error {
						return f.post(a, w, l.mem[:8], l.mem[8:16], l.mem[16:24], l.mr.Desc(), TypeUint64, op, ctx)
					})
					switch p.violation[f.name] {
					case refused:
						require.ErrorIs(t, a.ended(ctx).err, ErrAccess)
					case swallowed:
						a.quiet()
						require.True(t, ctx.InFlight())
					case lost:
						a.wait(ctx)
					default:
						t.Fatal("no provider is expected to do this")
					}
					require.True(t, w.untouched())
					require.Equal(t, words(1, 2, 3), l.mem[:24])
				})
			}
		}
	}
}

func TestMisuseOfAtomics(t *testing.T) {
	a, b := atomicPair(t, "shm")
	w, l := b.remote(8192), a.local(8192)
	ctx, d := NewContext("atomic"), Desc{}
	sum := func(buf []byte) error { return a.ep.Atomic(buf, d, a.peer, w.base, w.key, TypeUint64, AtomicSum, ctx) }
	require.Equal(t, ErrInvalid, sum(l.mem[:12]))
	require.Equal(t, ErrMsgSize, sum(l.mem[:8192]))
	fetch := func(buf, result []byte) error {
		return a.ep.FetchAtomic(buf, d, result, d, a.peer, w.base, w.key, TypeUint64, AtomicSum, ctx)
	}
	require.Equal(t, ErrInvalid, fetch(l.mem[:8], l.mem[:16]))
	require.Equal(t, ErrInvalid, fetch(nil, l.mem[:16]))
	swap := func(buf, compare, result []byte) error {
		return a.ep.CompareAtomic(buf, d, compare, d, result, d, a.peer, w.base, w.key, TypeUint64, AtomicCompareSwap, ctx)
	}
	require.Equal(t, ErrInvalid, swap(l.mem[:8], l.mem[:16], l.mem[:16]))
	require.Equal(t, ErrInvalid, swap(l.mem[:16], l.mem[:8], l.mem[:16]))
	v := func(n ...int) (v Vector) {
		for _, n := range n {
			v.Bufs = append(v.Bufs, l.mem[:n])
		}
		return v
	}
	vector := func(buf, result Vector) error {
		return a.ep.FetchAtomicV(buf, result, a.peer, w.base, w.key, TypeUint64, AtomicSum, ctx)
	}
	require.Equal(t, ErrInvalid, vector(v(8, 8), v(8)))
	require.Equal(t, ErrInvalid, vector(v(), v(8)))
	require.Equal(t, ErrInvalid, vector(v(12, 4), v(16)))
	require.Equal(t, ErrMsgSize, vector(v(4096, 8), v(8, 4096)))
	require.Equal(t, ErrNotSupp, a.ep.Atomic(l.mem[:8], d, a.peer, w.base, w.key, 1000, AtomicSum, ctx))
	require.Equal(t, ErrNotSupp, a.ep.Atomic(l.mem[:8], d, a.peer, w.base, w.key, TypeUint64, 1000, ctx))
	require.Equal(t, ErrNotSupp, a.ep.AtomicV(v(8), a.peer, w.base, w.key, TypeVoid, AtomicNoop, ctx))
	tagged := &AtomicMsg{Operand: v(8), Addr: a.peer, RMA: []RMAIoc{{0, 1, 7}}, Datatype: TypeUint64, Op: AtomicSum, Context: ctx}
	require.Equal(t, ErrNotSupp, a.ep.AtomicMsg(tagged, FlagTagged), "shm would use the tag as a key")
	require.False(t, ctx.InFlight())
	require.True(t, w.untouched())

	closed := new(Endpoint)
	for _, err := range []error{
		closed.Atomic(l.mem[:8], d, 0, 0, 0, TypeUint64, AtomicSum, ctx),
		closed.InjectAtomic(l.mem[:8], 0, 0, 0, TypeUint64, AtomicSum),
		closed.AtomicV(v(8), 0, 0, 0, TypeUint64, AtomicSum, ctx),
		closed.CompareAtomicMsg(&AtomicMsg{}, 0),
	} {
		require.Equal(t, ErrClosed, err)
	}
	_, err := closed.AtomicValid(TypeUint64, AtomicSum)
	require.ErrorIs(t, err, ErrClosed)
	_, err = new(Domain).QueryAtomic(TypeUint64, AtomicSum, 0)
	require.ErrorIs(t, err, ErrClosed)
}

// TestNamesOfAtomics compares the names of operations and datatypes with those of the library.
func TestNamesOfAtomics(t *testing.T) {
	require.Len(t, AtomicOps(), 20)
	require.Len(t, Datatypes(), 20)
	for _, op := range AtomicOps() {
		if op < AtomicDiff {
			require.Equal(t, tostr(uint32(op), 17), op.String()) // FI_TYPE_ATOMIC_OP
		}
	}
	for _, typ := range Datatypes() {
		require.NotZero(t, typ.Size())
		if typ < TypeFloat16 {
			require.Equal(t, tostr(uint32(typ), 16), typ.String()) // FI_TYPE_ATOMIC_TYPE
		}
	}
	require.Equal(t, "FI_DIFF FI_NOOP AtomicOp(99)", AtomicDiff.String()+" "+AtomicNoop.String()+" "+AtomicOp(99).String())
	require.Equal(t, "FI_FLOAT8_E5M2 FI_VOID Datatype(99)",
		TypeFloat8E5M2.String()+" "+TypeVoid.String()+" "+Datatype(99).String())
	require.Zero(t, TypeVoid.Size())
}
