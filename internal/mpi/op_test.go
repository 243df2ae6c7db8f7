package mpi_test

import (
	"fmt"
	"math"
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// TestWrongOpsDoNotCompile checks that the compiler rejects operations that are not defined for the
// element type.
func TestWrongOpsDoNotCompile(t *testing.T) {
	for dir, text := range map[string]string{
		"bandfloat":  "float64 does not satisfy comm.Integer",
		"minstring":  "string does not satisfy comm.Real",
		"maxcomplex": "complex128 does not satisfy comm.Real",
		"sumstruct":  "does not satisfy comm.Number",
	} {
		out, err := exec.CommandContext(t.Context(), "go", "vet", "./testdata/"+dir).CombinedOutput()
		require.Error(t, err, dir)
		require.Contains(t, string(out), text, dir)
	}
}

type (
	flags uint16
	truth bool
	wave  complex128
)

func reduced[T any](c *comm.Comm, op comm.OpFor[T], mine ...T) ([]T, error) {
	out := make([]T, len(mine))
	return out, comm.Allreduce(c, mine, out, op)
}

// TestOps combines the values of three ranks by each operation, also with named types, and checks
// the results.
func TestOps(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		r := c.Rank()
		pick := func(v ...int) int { return v[r] }
		f := func(v ...float64) float64 { return v[r] }
		prod, err1 := reduced(c, comm.Prod[int64], int64(r+2))
		minimum, err2 := reduced(c, comm.Min[uint8], uint8(pick(200, 7, 9)))
		largest, err3 := reduced(c, comm.Max[float32], float32(f(-1, -3, -2)))
		band, err4 := reduced(c, comm.Band[flags], flags(pick(0b110, 0b011, 0b111)))
		bor, err5 := reduced(c, comm.Bor[int32], int32(pick(1, 2, 8)))
		bxor, err6 := reduced(c, comm.Bxor[uint64], uint64(pick(1, 3, 8)))
		land, err7 := reduced(c, comm.Land[truth], truth(r > 0), truth(r < 5))
		lor, err8 := reduced(c, comm.Lor[int16], int16(pick(0, 7, 0)), 0)
		lxor, err9 := reduced(c, comm.Lxor[bool], true, r == 0, r > 0)
		sum, err10 := reduced(c, comm.Sum[wave], wave(complex(f(1, 2, 3), 1)))
		least, err11 := reduced(c, comm.MinLoc[int8], comm.Loc[int8]{Value: int8(pick(4, -3, -3)), Index: r})
		nan, err12 := reduced(c, comm.Max[float64], f(math.NaN(), 1, math.Inf(1)))
		if !math.IsNaN(nan[0]) {
			return fmt.Errorf("Max of a NaN is %v", nan)
		}
		return first(err1, err2, err3, err4, err5, err6, err7, err8, err9, err10, err11, err12,
			same("prod", prod, []int64{24}), same("min", minimum, []uint8{7}), same("max", largest, []float32{-1}),
			same("band", band, []flags{2}), same("bor", bor, []int32{11}), same("bxor", bxor, []uint64{10}),
			same("land", land, []truth{false, true}), same("lor", lor, []int16{1, 0}), same("lxor", lxor, []bool{true, true, false}),
			same("sum", sum, []wave{6 + 3i}), same("minloc", least, []comm.Loc[int8]{{Value: -3, Index: 1}}))
	})
}

// TestReductionsRepeat checks that an Allreduce has the same bits on all ranks and in every run.
func TestReductionsRepeat(t *testing.T) {
	var bits []uint64
	for range 5 {
		ranks(t, 7, func(c *comm.Comm) error {
			for _, n := range []int{1, 1000, 100000} {
				x, sum := make([]float64, n), make([]float64, n)
				for i := range x {
					x[i] = math.Sin(float64(i+1) * float64(c.Rank()+1) * 1e3)
				}
				if err := comm.Allreduce(c, x, sum, comm.Sum); err != nil {
					return err
				}
				var h uint64
				for _, v := range sum {
					h = h*31 + math.Float64bits(v)
				}
				all := make([]uint64, c.Size())
				if err := comm.Allgather(c, []uint64{h}, all); err != nil {
					return err
				}
				if slices.Min(all) != slices.Max(all) {
					return fmt.Errorf("ranks got different bits")
				}
				if c.Rank() == 0 {
					bits = append(bits, h)
				}
			}
			return nil
		}, commtest.WithTimeout(patience))
	}
	for i := range bits {
		require.Equal(t, bits[i%3], bits[i])
	}
}

// TestNoElements passes elements of size 0 to calls of every kind. No call may fail.
func TestNoElements(t *testing.T) {
	nothing := comm.OpFunc(true, func(_, _ []struct{}) {})
	eachCount(t, func(c *comm.Comm) error {
		n := c.Size()
		x := make([]struct{}, n)
		return first(
			comm.Bcast(c, x, 0), comm.Allreduce(c, x, x, nothing), comm.Reduce(c, x, x, nothing, n-1),
			comm.Gather(c, x[:1], x, 0), comm.Allgather(c, x[:1], x), comm.Alltoall(c, x, x),
			comm.Scatter(c, x, x[:1], 0), comm.ReduceScatterBlock(c, x, x[:1], nothing), comm.Scan(c, x, x, nothing),
			comm.Allgatherv(c, x[:1], x, slices.Repeat([]int{1}, n), nil))
	})
}

// TestOpByName checks that OpByName finds the operations that are defined for a type, and only
// these.
func TestOpByName(t *testing.T) {
	ranks(t, 3, func(c *comm.Comm) error {
		for i, name := range []string{"Sum", "prod", "MIN", "Max", "band", "bor", "bxor", "land", "lor", "lxor"} {
			op, err := comm.OpByName[int](name)
			if err != nil {
				return err
			}
			got, err := reduced(c, op, c.Rank()+1)
			if err := first(err, same(name, got, []int{6, 6, 1, 3, 0, 3, 0, 1, 1, 1}[i:i+1])); err != nil {
				return err
			}
		}
		_, unknown := comm.OpByName[int]("mean")
		_, bitwise := comm.OpByName[float32]("bor")
		_, ordered := comm.OpByName[wave]("max")
		sum, err := comm.OpByName[wave]("sum")
		if err != nil {
			return err
		}
		got, err := reduced(c, sum, wave(1i))
		return first(err, same("sum", got, []wave{3i}),
			wantErr("mean", unknown, comm.ErrOp, `"mean" is none of Sum, Prod, Min`),
			wantErr("bor", bitwise, comm.ErrOp, "Bor over float32"), wantErr("max", ordered, comm.ErrOp, "Max over"))
	})
}

// TestReduceLocal compares ReduceLocal with the operation, and passes wrong arguments.
func TestReduceLocal(t *testing.T) {
	minus := comm.OpFunc(false, func(inout, in []float32) {
		for i := range inout {
			inout[i] = in[i] - inout[i]
		}
	})
	for n := range 70 {
		in, inout, other := make([]float32, n), make([]float32, n), make([]float32, n)
		for i := range in {
			in[i], inout[i], other[i] = float32(i), float32(3*i+1), float32(3*i+1)
		}
		require.NoError(t, comm.ReduceLocal(in, inout, comm.Sum))
		require.NoError(t, comm.ReduceLocal(in, other, minus))
		for i := range in {
			require.Equal(t, float32(4*i+1), inout[i])
			require.Equal(t, float32(-2*i-1), other[i])
		}
	}
	xs := []float32{1, 2, 3}
	for name, x := range map[string]struct{ got, want error }{
		"lengths": {comm.ReduceLocal(xs, xs[:2], comm.Sum), comm.ErrCount},
		"overlap": {comm.ReduceLocal(xs[:2], xs[1:], comm.Sum), comm.ErrBuffer},
		"same":    {comm.ReduceLocal(xs, xs, comm.Sum), comm.ErrBuffer},
		"type":    {comm.ReduceLocal([]*int{nil}, []*int{nil}, comm.Replace), comm.ErrType},
		"op":      {comm.ReduceLocal(xs, []float32{1, 2, 3}, comm.Replace), comm.ErrOp},
		"nil":     {comm.ReduceLocal(xs, []float32{1, 2, 3}, nil), comm.ErrOp},
		"panic":   {comm.ReduceLocal(xs, []float32{1, 2, 3}, comm.OpFunc(true, func(_, _ []float32) { panic("no sum") })), comm.ErrOp},
	} {
		require.ErrorIs(t, x.got, x.want, name)
		require.ErrorContains(t, x.got, "ReduceLocal", name)
	}
	require.NoError(t, comm.ReduceLocal([]struct{}{{}}, []struct{}{{}}, comm.OpOf(func(a, _ struct{}) struct{} { return a })))
	require.True(t, comm.Sum[int]().Commutes())
	require.False(t, minus().Commutes())
	require.False(t, comm.Op[int]{}.Commutes())
}
