package mpi_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weft-hpc/weft/comm"
)

// accOp is an operation with a simple function that computes the expected result: of the target's
// element a and the origin's element b.
type accOp[T any] struct {
	name string
	op   comm.OpFor[T]
	do   func(a, b T) T
}

func numberOps[T comm.Number]() []accOp[T] {
	return []accOp[T]{
		{"Sum", comm.Sum[T], func(a, b T) T { return a + b }},
		{"Prod", comm.Prod[T], func(a, b T) T { return a * b }},
		{"Replace", comm.Replace[T], func(_, b T) T { return b }},
		{"NoOp", comm.NoOp[T], func(a, _ T) T { return a }},
	}
}

func realOps[T comm.Real]() []accOp[T] {
	return append(numberOps[T](),
		accOp[T]{"Min", comm.Min[T], func(a, b T) T { return min(a, b) }},
		accOp[T]{"Max", comm.Max[T], func(a, b T) T { return max(a, b) }})
}

func integerOps[T comm.Integer]() []accOp[T] {
	truth := func(b bool) T {
		if b {
			return 1
		}
		return 0
	}
	return append(realOps[T](),
		accOp[T]{"Band", comm.Band[T], func(a, b T) T { return a & b }},
		accOp[T]{"Bor", comm.Bor[T], func(a, b T) T { return a | b }},
		accOp[T]{"Bxor", comm.Bxor[T], func(a, b T) T { return a ^ b }},
		accOp[T]{"Land", comm.Land[T], func(a, b T) T { return truth(a != 0 && b != 0) }},
		accOp[T]{"Lor", comm.Lor[T], func(a, b T) T { return truth(a != 0 || b != 0) }},
		accOp[T]{"Lxor", comm.Lxor[T], func(a, b T) T { return truth((a != 0) != (b != 0)) }})
}

func boolOps() []accOp[truth] {
	return []accOp[truth]{
		{"Land", comm.Land[truth], func(a, b truth) truth { return a && b }},
		{"Lor", comm.Lor[truth], func(a, b truth) truth { return a || b }},
		{"Lxor", comm.Lxor[truth], func(a, b truth) truth { return a != b }},
		{"Replace", comm.Replace[truth], func(_, b truth) truth { return b }},
	}
}

func locOps[T comm.Real]() []accOp[comm.Loc[T]] {
	pick := func(better func(a, b T) bool) func(a, b comm.Loc[T]) comm.Loc[T] {
		return func(a, b comm.Loc[T]) comm.Loc[T] {
			if better(b.Value, a.Value) || b.Value == a.Value && b.Index < a.Index {
				return b
			}
			return a
		}
	}
	return []accOp[comm.Loc[T]]{
		{"MinLoc", comm.MinLoc[T], pick(func(a, b T) bool { return a < b })},
		{"MaxLoc", comm.MaxLoc[T], pick(func(a, b T) bool { return a > b })},
		{"Replace", comm.Replace[comm.Loc[T]], func(_, b comm.Loc[T]) comm.Loc[T] { return b }},
		{"NoOp", comm.NoOp[comm.Loc[T]], func(a, _ comm.Loc[T]) comm.Loc[T] { return a }},
	}
}

// integral returns small integers. Their sums and products do not depend on the order of
// operations, because they are exact or wrap around in every type.
func integral[T comm.Real](rng *rand.Rand) T { return T(rng.IntN(3)) }

func located[T comm.Real](rng *rand.Rand) comm.Loc[T] {
	return comm.Loc[T]{Value: T(rng.IntN(4)), Index: rng.IntN(100)}
}

// TestAccumulates runs each operation over each type that it is defined for.
func TestAccumulates(t *testing.T) {
	overFabrics(t, fabricCounts, func(c *comm.Comm) error {
		return first(
			accTrial(c, integerOps[int8](), integral), accTrial(c, integerOps[int16](), integral),
			accTrial(c, integerOps[int32](), integral), accTrial(c, integerOps[int64](), integral), accTrial(c, integerOps[int](), integral),
			accTrial(c, integerOps[uint8](), integral), accTrial(c, integerOps[flags](), integral),
			accTrial(c, integerOps[uint32](), integral), accTrial(c, integerOps[uint64](), integral),
			accTrial(c, integerOps[uint](), integral), accTrial(c, integerOps[uintptr](), integral),
			accTrial(c, realOps[float32](), integral), accTrial(c, realOps[float64](), integral),
			accTrial(c, numberOps[complex64](), func(rng *rand.Rand) complex64 { return complex(float32(rng.IntN(2)), 1) }),
			accTrial(c, numberOps[wave](), func(rng *rand.Rand) wave { return wave(complex(float64(rng.IntN(2)), -1)) }),
			accTrial(c, boolOps(), func(rng *rand.Rand) truth { return rng.IntN(2) == 0 }),
			accTrial(c, locOps[int8](), located), accTrial(c, locOps[float64](), located), accTrial(c, locOps[uint](), located))
	})
}

// accTrial has all ranks accumulate into the parts of all ranks, and compares the parts with the
// expected ones. Each operation has elements of its own, and of Replace those of a part are used
// only by the part's own rank. So the result does not depend on the order of the ranks.
func accTrial[T comparable](c *comm.Comm, ops []accOp[T], random func(*rand.Rand) T) error {
	const n, updates = 37, 5
	draw := func(rank, target, op int) (ats []int, data [][]T) {
		rng := rand.New(rand.NewPCG(uint64(rank*100+target), uint64(op)))
		for range updates {
			at := rng.IntN(n)
			b := make([]T, 1+rng.IntN(n-at))
			for i := range b {
				b[i] = random(rng)
			}
			ats, data = append(ats, at), append(data, b)
		}
		return ats, data
	}
	return withWindow(c, n*len(ops), func(w *comm.Win[T]) error {
		initial := make([]T, w.Len(c.Rank()))
		rng := rand.New(rand.NewPCG(uint64(c.Rank()), 99))
		for i := range initial {
			initial[i] = random(rng)
		}
		copy(w.Local(), initial)
		if err := w.Fence(); err != nil {
			return err
		}
		for k, o := range ops {
			for target := range c.Size() {
				if o.name == "Replace" && target != c.Rank() {
					continue
				}
				ats, data := draw(c.Rank(), target, k)
				for i, b := range data {
					var err error
					if i%2 == 0 {
						err = w.Accumulate(b, target, k*n+ats[i], o.op)
					} else {
						err = w.GetAccumulate(b, make([]T, len(b)), target, k*n+ats[i], o.op)
					}
					if err != nil {
						return fmt.Errorf("%s: %w", o.name, err)
					}
				}
			}
		}
		if err := w.Fence(); err != nil {
			return err
		}
		for k, o := range ops {
			want := initial[k*n : (k+1)*n]
			for origin := range c.Size() {
				if o.name == "Replace" && origin != c.Rank() {
					continue
				}
				ats, data := draw(origin, c.Rank(), k)
				for i, b := range data {
					for j := range b {
						want[ats[i]+j] = o.do(want[ats[i]+j], b[j])
					}
				}
			}
			if err := same(fmt.Sprintf("%s over %T", o.name, want), w.Local()[k*n:(k+1)*n], want); err != nil {
				return err
			}
		}
		return fetchTrial(c, w, ops, n, random)
	})
}

// fetchTrial has each rank call FetchOp on the part of the next rank, under an exclusive lock, and
// checks the results.
func fetchTrial[T comparable](c *comm.Comm, w *comm.Win[T], ops []accOp[T], n int, random func(*rand.Rand) T) error {
	target := (c.Rank() + 1) % c.Size()
	rng := rand.New(rand.NewPCG(uint64(c.Rank()), 98))
	if err := first(c.Barrier(), w.Lock(target, comm.LockExclusive)); err != nil {
		return err
	}
	for k, o := range ops {
		before, after := make([]T, n), make([]T, n)
		x := random(rng)
		if err := first(w.GetAccumulate(nil, before, target, k*n, comm.NoOp), w.FlushLocal(target)); err != nil {
			return err
		}
		old, err := w.FetchOp(x, target, k*n+7, o.op)
		if err := first(err, w.GetAccumulate(nil, after, target, k*n, comm.NoOp), w.Flush(target)); err != nil {
			return err
		}
		want := append([]T(nil), before...)
		want[7] = o.do(want[7], x)
		if err := first(same(o.name+": fetched", []T{old}, before[7:8]), same(o.name+": after", after, want)); err != nil {
			return err
		}
	}
	return w.Unlock(target)
}
