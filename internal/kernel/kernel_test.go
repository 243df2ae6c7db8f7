package kernel

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// eachVariant runs a test for every variant that this processor can run.
func eachVariant(t *testing.T, test func(t *testing.T, kernels *table)) {
	for _, v := range variants() {
		t.Run(v.name, func(t *testing.T) { test(t, v.build()) })
	}
}

// The forms of a call: which operands are the same slice.
const (
	distinct = iota
	dstIsLeft
	dstIsRight
	combined // like dstIsRight, but the test calls Reduce2
	operandsSame
	allSame
	forms
)

var formNames = [forms]string{"distinct", "dst is left", "dst is right", "Reduce2", "left is right", "all the same"}

// memory is three operands, each surrounded by bytes that must not change. In some forms of a call
// two or three of them are the same memory.
type memory struct{ dst, left, right region }

// region is an operand within a larger buffer. The operand begins at byte begin of all.
type region struct {
	all   []byte
	begin int
}

func (g region) bytes(n int) []byte { return g.all[g.begin : g.begin+n] }

func newRegion(r *rand.Rand, size, n int) region {
	g := region{all: make([]byte, n+192), begin: 64 + r.IntN(64)}
	if r.IntN(2) == 0 {
		g.begin -= g.begin % size
	}
	for i := range g.all {
		g.all[i] = byte(r.Uint32())
	}
	return g
}

func newMemory(r *rand.Rand, s subject, n, form int) memory {
	m := memory{dst: newRegion(r, s.size, n), left: newRegion(r, s.size, n), right: newRegion(r, s.size, n)}
	s.fill(r, m.left.bytes(n))
	s.fill(r, m.right.bytes(n))
	switch form {
	case dstIsLeft:
		m.dst = m.left
	case dstIsRight, combined:
		m.dst = m.right
	case operandsSame:
		m.right = m.left
	case allSame:
		m.dst, m.right = m.left, m.left
	}
	return m
}

// check runs a kernel over n bytes and compares all memory with the result of the oracle.
func (s subject) check(k Kernel, m memory, n, form int) error {
	want := region{all: slices.Clone(m.dst.all), begin: m.dst.begin}
	left, right := region{slices.Clone(m.left.all), m.left.begin}, region{slices.Clone(m.right.all), m.right.begin}
	s.oracle(want.bytes(n), left.bytes(n), right.bytes(n))
	if form == combined {
		k.Reduce2(m.dst.bytes(n), m.left.bytes(n))
	} else {
		k.Reduce3(m.dst.bytes(n), m.left.bytes(n), m.right.bytes(n))
	}
	if s.tidy != nil {
		s.tidy(want.bytes(n))
		s.tidy(m.dst.bytes(n))
	}
	fault := ""
	switch {
	case !bytes.Equal(m.dst.bytes(n), want.bytes(n)):
		fault = fmt.Sprintf("%x and %x gave %x, want %x", left.bytes(n), right.bytes(n), m.dst.bytes(n), want.bytes(n))
	case !bytes.Equal(m.dst.all, want.all):
		fault = "wrote outside of dst"
	case &m.left.all[0] != &m.dst.all[0] && !bytes.Equal(m.left.all, left.all),
		&m.right.all[0] != &m.dst.all[0] && !bytes.Equal(m.right.all, right.all):
		fault = "wrote to an operand"
	default:
		return nil
	}
	return fmt.Errorf("%v of %d elements, %s, at offsets %d, %d, %d: %s",
		s, n/s.size, formNames[form], m.dst.begin, m.left.begin, m.right.begin, fault)
}

func TestAgainstOracle(t *testing.T) {
	eachVariant(t, func(t *testing.T, kernels *table) {
		for _, s := range subjects() {
			k := kernels[s.op][s.typ]
			require.NotNil(t, k.Reduce3, "%v", s)
			require.Equal(t, s.size, k.Size, "%v", s)
			r := rand.New(rand.NewPCG(uint64(s.op), uint64(s.typ)))
			for i := range 120 {
				n, form := i*s.size, r.IntN(forms)
				if i > 70 {
					n = r.IntN(301) * s.size
				}
				require.NoError(t, s.check(k, newMemory(r, s, n, form), n, form))
			}
		}
	})
}

// TestForms checks every kernel in every form of a call (see formNames), with lengths at multiples of
// the register widths and between them.
func TestForms(t *testing.T) {
	eachVariant(t, func(t *testing.T, kernels *table) {
		for _, s := range subjects() {
			r := rand.New(rand.NewPCG(uint64(s.op), uint64(s.typ)))
			for _, n := range []int{0, 16, 32, 48, 64, 80, 112, 128, 320, 624} {
				n -= n % s.size
				for form := range forms {
					require.NoError(t, s.check(kernels[s.op][s.typ], newMemory(r, s, n, form), n, form))
				}
			}
		}
	})
}

// TestLongOperands checks kernels with operands so long that reduce3 divides them into several calls
// of assembly.
func TestLongOperands(t *testing.T) {
	eachVariant(t, func(t *testing.T, kernels *table) {
		for _, s := range subjects() {
			if s.op != Sum && s.op != MinLoc || s.typ != Float64 && s.typ != Complex128 {
				continue // the same code divides the operands of all kernels
			}
			r := rand.New(rand.NewPCG(uint64(s.op), uint64(s.typ)))
			for _, n := range []int{maxCallBytes, maxCallBytes + s.size, 3*maxCallBytes + 5*s.size} {
				n -= n % s.size
				form := r.IntN(forms)
				require.NoError(t, s.check(kernels[s.op][s.typ], newMemory(r, s, n, form), n, form))
			}
		}
	})
}

// TestOrderOfOperands checks that every kernel yields the same bits if left and right are swapped.
func TestOrderOfOperands(t *testing.T) {
	eachVariant(t, func(t *testing.T, kernels *table) {
		for _, s := range subjects() {
			r := rand.New(rand.NewPCG(uint64(s.op), uint64(s.typ)))
			n := 500 * s.size
			m := newMemory(r, s, n, distinct)
			left, right, one, other := m.left.bytes(n), m.right.bytes(n), make([]byte, n), make([]byte, n)
			k := kernels[s.op][s.typ]
			k.Reduce3(one, left, right)
			k.Reduce3(other, right, left)
			if s.tidy != nil {
				s.tidy(one)
				s.tidy(other)
			}
			require.Equal(t, one, other, "%v", s)
		}
	})
}

// TestUnequalLengths checks that a kernel does not change bytes beyond the length of the shortest
// slice, or after the last whole element.
func TestUnequalLengths(t *testing.T) {
	eachVariant(t, func(t *testing.T, kernels *table) {
		for _, s := range subjects() {
			r := rand.New(rand.NewPCG(uint64(s.op), uint64(s.typ)))
			for _, elems := range []int{0, 1, 20, 100} {
				n := elems * s.size
				for _, more := range [][3]int{{s.size, 0, 0}, {0, s.size, 0}, {0, 0, s.size}, {9, 9, 0}, {s.size - 1, s.size - 1, s.size - 1}} {
					m := newMemory(r, s, n+16, distinct)
					want := slices.Clone(m.dst.all)
					s.oracle(want[m.dst.begin:][:n], m.left.bytes(n), m.right.bytes(n))
					kernels[s.op][s.typ].Reduce3(m.dst.bytes(n+more[0]), m.left.bytes(n+more[1]), m.right.bytes(n+more[2]))
					if s.tidy != nil {
						s.tidy(m.dst.bytes(n))
						s.tidy(want[m.dst.begin:][:n])
					}
					require.Equal(t, want, m.dst.all, "%v", s)
				}
			}
		}
	})
}

func TestFor(t *testing.T) {
	n := 0
	for op := range ops {
		for typ := range types {
			if _, ok := For(op, typ); ok {
				n++
			}
		}
	}
	assert.Equal(t, len(subjects()), n)
	for _, c := range []struct {
		op Op
		t  Type
	}{
		{Band, Float64}, {Min, Complex64}, {Sum, Bool}, {Land, Float32}, {MaxLoc, Complex128},
		{-1, Int}, {ops, Int}, {Sum, -1}, {Sum, types},
	} {
		_, ok := For(c.op, c.t)
		assert.False(t, ok, "%v", c)
	}
}

func TestNoAllocation(t *testing.T) {
	eachVariant(t, func(t *testing.T, kernels *table) {
		for _, s := range subjects() {
			k := kernels[s.op][s.typ]
			for _, elems := range []int{1, 40, 1000} {
				dst, left, right := make([]byte, elems*s.size), make([]byte, elems*s.size), make([]byte, elems*s.size)
				assert.Zero(t, testing.AllocsPerRun(10, func() {
					k.Reduce3(dst, left, right)
					k.Reduce2(dst, left)
				}), "%v", s)
			}
		}
	})
	assert.Zero(t, testing.AllocsPerRun(10, func() {
		if _, ok := For(MinLoc, Float32); !ok {
			t.Error("no kernel")
		}
	}))
}

// FuzzKernels runs kernels with arbitrary bytes as operands, and compares the results with those of
// the oracle.
func FuzzKernels(f *testing.F) {
	all := subjects()
	r := rand.New(rand.NewPCG(1, 2))
	for i, s := range all {
		n := r.IntN(20) * s.size
		m := newMemory(r, s, n, distinct)
		f.Add(uint16(i), uint8(i), uint8(r.Uint32()), m.left.bytes(n), m.right.bytes(n))
	}
	available := variants()
	tables := make([]*table, len(available))
	for i, v := range available {
		tables[i] = v.build()
	}
	f.Fuzz(func(t *testing.T, which uint16, form, shift uint8, left, right []byte) {
		s := all[int(which)%len(all)]
		n := min(len(left), len(right))
		n -= n % s.size
		if s.typ == Bool {
			for i := range n {
				left[i], right[i] = left[i]&1, right[i]&1
			}
		}
		for i, kernels := range tables {
			r := rand.New(rand.NewPCG(uint64(shift), 0))
			m := newMemory(r, s, n, int(form)%forms)
			copy(m.left.bytes(n), left)
			copy(m.right.bytes(n), right)
			if err := s.check(kernels[s.op][s.typ], m, n, int(form)%forms); err != nil {
				t.Fatalf("%s: %v", available[i].name, err)
			}
		}
	})
}
