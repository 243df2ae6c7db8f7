//go:build libfabric

package fi

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// form is one of the three families of atomic operations, with the calls that the tests use for it.
type form struct {
	name  string
	query Flags // the flags of QueryAtomic for this family
	valid func(*Endpoint, Datatype, AtomicOp) (int, error)
	has   func(AtomicOp) bool // whether fi_atomic(3) defines the operation for this family
	post  func(a *node, w *window, buf, compare, result []byte, desc Desc, t Datatype, op AtomicOp, ctx *Context) error
}

var forms = []form{
	{
		"base", 0, (*Endpoint).AtomicValid,
		func(op AtomicOp) bool { return op <= AtomicWrite && op != AtomicRead || op == AtomicDiff },
		func(a *node, w *window, buf, _, _ []byte, desc Desc, t Datatype, op AtomicOp, ctx *Context) error {
			return a.ep.Atomic(buf, desc, a.peer, w.base, w.key, t, op, ctx)
		},
	},
	{
		"fetch", FlagFetchAtomic, (*Endpoint).FetchAtomicValid,
		func(op AtomicOp) bool { return op <= AtomicWrite || op == AtomicDiff },
		func(a *node, w *window, buf, _, result []byte, desc Desc, t Datatype, op AtomicOp, ctx *Context) error {
			if op == AtomicRead {
				buf = nil
			}
			return a.ep.FetchAtomic(buf, desc, result, desc, a.peer, w.base, w.key, t, op, ctx)
		},
	},
	{
		"compare", FlagCompareAtomic, (*Endpoint).CompareAtomicValid,
		func(op AtomicOp) bool { return op >= AtomicCompareSwap && op <= AtomicMaskSwap },
		func(a *node, w *window, buf, compare, result []byte, desc Desc, t Datatype, op AtomicOp, ctx *Context) error {
			return a.ep.CompareAtomic(buf, desc, compare, desc, result, desc, a.peer, w.base, w.key, t, op, ctx)
		},
	},
}

// atomicProviders describes providers of libfabric 1.17, so that the tests notice when a provider
// changes: for each family the largest size of an operation in bytes, the unsupported datatypes,
// and for each family the effect of a forbidden access. Debian builds the library without atomics
// of 16 bytes.
var atomicProviders = []struct {
	prov      string
	bytes     map[string]int
	lacks     []Datatype
	violation map[string]onViolation
	crashes   bool // fetching operations would end the process, so this package refuses them
}{
	{
		"shm", map[string]int{"base": 4096, "fetch": 4096, "compare": 2048}, append(wide, TypeInt128, TypeUint128),
		map[string]onViolation{"base": lost, "fetch": swallowed, "compare": swallowed}, false,
	},
	{
		"tcp;ofi_rxm", map[string]int{"base": 16288, "fetch": 16288, "compare": 8144}, append(wide, TypeInt128, TypeUint128),
		map[string]onViolation{"base": refused, "fetch": refused, "compare": refused}, false,
	},
	{
		"udp;ofi_rxd", map[string]int{"base": 1256, "fetch": 1256, "compare": 628}, append(wide, TypeInt128, TypeUint128),
		map[string]onViolation{"base": swallowed, "fetch": lost, "compare": lost}, !v2,
	},
	{
		"sockets", map[string]int{"base": 4096, "fetch": 4096, "compare": 4096}, in2(append(wide, TypeInt128, TypeUint128), wide),
		map[string]onViolation{"base": refused, "fetch": refused, "compare": refused}, false,
	},
}

var wide = []Datatype{
	TypeComplex128, TypeLongDouble, TypeLongDoubleComplex, // elements of 16 bytes and more
	TypeFloat16, TypeBFloat16, TypeFloat8E4M3, TypeFloat8E5M2, // datatypes that only libfabric 2 has
}

func atomicPair(t *testing.T, prov string) (a, b *node) {
	t.Helper()
	return openPair(t, setup{prov: prov, caps: CapMsg | CapRMA | CapAtomic})
}

// TestAtomics compares the result of every operation on every datatype with that of
// [Datatype.apply]. If the provider does not support an operation, the calls must return an error.
func TestAtomics(t *testing.T) {
	for _, p := range atomicProviders {
		t.Run(p.prov, func(t *testing.T) {
			a, b := atomicPair(t, p.prov)
			w, l := b.remote(1<<16), a.local(1<<16)
			ctx := NewContext("atomic")
			for _, f := range forms {
				for _, typ := range Datatypes() {
					for _, op := range AtomicOps() {
						_, meaningful := typ.apply(op, cell{}, cell{}, cell{})
						able := f.has(op) && meaningful && (f.query == 0 || !p.crashes) && op != AtomicDiff && !slices.Contains(p.lacks, typ)
						count, err := f.valid(a.ep, typ, op)
						attr, queried := a.domain.QueryAtomic(typ, op, f.query)
						if !able {
							require.ErrorIs(t, err, ErrNotSupported, "%s %v %v", f.name, typ, op)
							require.ErrorIs(t, queried, ErrNotSupported, "%s %v %v", f.name, typ, op)
							some := l.mem[:typ.Size()]
							require.ErrorIs(t, f.post(a, w, some, some, some, l.mr.Desc(), typ, op, ctx), ErrNotSupported)
							require.False(t, ctx.InFlight())
							continue
						}
						require.NoError(t, err, "%s %v %v", f.name, typ, op)
						require.NoError(t, queried)
						require.Equal(t, AtomicAttr{Count: p.bytes[f.name] / typ.Size(), Size: typ.Size()}, attr)
						require.Equal(t, attr.Count, count)
						checkAtomic(a, f, w, l, typ, op, min(count, 100), ctx)
					}
				}
			}
		})
	}
}

// checkAtomic does one operation on n elements and compares the target's memory, and what was
// fetched, with the result of [Datatype.apply].
func checkAtomic(a *node, f form, w, l *window, typ Datatype, op AtomicOp, n int, ctx *Context) {
	a.t.Helper()
	values := []int64{0, 1, 2, -1, 3, 7, -100, 127, 85, -128}
	var target, operand, compare, expected []cell
	for i := range n {
		x, y, z := values[i%10], values[i/10%10], values[(i/3)%10]
		if i%3 == 0 {
			z = x // without this, an element of compare would seldom equal that of the target
		}
		im := int64(i % 3)
		target = append(target, typ.cell(x, im))
		operand = append(operand, typ.cell(y, 2-im))
		compare = append(compare, typ.cell(z, im))
		c, _ := typ.apply(op, target[i], operand[i], compare[i])
		expected = append(expected, c)
	}
	encode := func(at []byte, cells []cell) []byte {
		b := at[:0]
		for _, c := range cells {
			b = typ.append(b, c)
		}
		return b
	}
	there := encode(w.mem, target)
	buf, cmp := encode(l.mem, operand), encode(l.mem[1<<14:], compare)
	result := pattern(l.mem[1<<15:][:len(there)], 1)
	a.post(func() error { return f.post(a, w, buf, cmp, result, l.mr.Desc(), typ, op, ctx) })
	a.wait(ctx)
	if f.query != 0 {
		require.Equal(a.t, texts(target), texts(typ.cells(result)), "%s %v %v: fetched", f.name, typ, op)
	}
	want := texts(expected)
	for deadline := time.Now().Add(testTimeout); time.Now().Before(deadline); a.progress() {
		if slices.Equal(want, texts(typ.cells(there))) {
			return
		}
	}
	require.Equal(a.t, want, texts(typ.cells(there)), "%s %v %v", f.name, typ, op)
}

func texts(cells []cell) (all []string) {
	for _, c := range cells {
		all = append(all, c.String())
	}
	return all
}
