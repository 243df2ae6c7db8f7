package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/kernel"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Integer is a constraint: any integer type.
type Integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

// Real is a constraint: any ordered numeric type.
type Real interface{ Integer | ~float32 | ~float64 }

// Number is a constraint: any numeric type.
type Number interface {
	Real | ~complex64 | ~complex128
}

// Logical is a constraint: any type with a truth value. An integer is true unless it is 0.
type Logical interface{ Integer | ~bool }

// Op is an operation that combines two elements of type T (MPI_Op, MPI 4.1 §6.9). Op is a value.
// The zero Op is invalid.
//
// In reductions, the result of a built-in operation is the same, to the bit, on every processor and
// for either order of its two operands. Integers wrap around. If the result is a NaN, it is always
// the same quiet NaN.
type Op[T any] struct{ op *mpi.Op }

// Commutes reports whether the order of the operands does not matter (MPI_Op_commutative). It is
// false for the zero Op.
func (o Op[T]) Commutes() bool { return o.op.Commutes() }

// OpFor is a function that returns an operation over T. Reductions take an OpFor instead of an
// [Op], so that a call such as
//
//	comm.Allreduce(c, send, recv, comm.Sum)
//
// needs no type argument: Sum is an OpFor of the slices' element type.
type OpFor[T any] = func() Op[T]

// Sum adds two elements (MPI_SUM).
func Sum[T Number]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Sum)} }

// Prod multiplies two elements (MPI_PROD).
func Prod[T Number]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Prod)} }

// Min returns the smaller element, or NaN if one of them is NaN (MPI_MIN).
func Min[T Real]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Min)} }

// Max returns the larger element, or NaN if one of them is NaN (MPI_MAX).
func Max[T Real]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Max)} }

// Band returns the bitwise and (MPI_BAND).
func Band[T Integer]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Band)} }

// Bor returns the bitwise or (MPI_BOR).
func Bor[T Integer]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Bor)} }

// Bxor returns the bitwise exclusive or (MPI_BXOR).
func Bxor[T Integer]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Bxor)} }

// Land returns the logical and: a bool, or 1 or 0 for integers (MPI_LAND).
func Land[T Logical]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Land)} }

// Lor returns the logical or: a bool, or 1 or 0 for integers (MPI_LOR).
func Lor[T Logical]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Lor)} }

// Lxor returns the logical exclusive or: a bool, or 1 or 0 for integers (MPI_LXOR).
func Lxor[T Logical]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Lxor)} }

// Loc is a value with its index, which the program chooses, for example the rank or the position in
// a vector. It is the element type of [MinLoc] and [MaxLoc] (MPI 4.1 §6.9.4), and stands for the
// pair types of MPI: Loc[float32] for MPI_FLOAT_INT, Loc[float64] for MPI_DOUBLE_INT, Loc[int16],
// Loc[int32] and Loc[int64] for MPI_SHORT_INT, MPI_2INT and MPI_LONG_INT. Unlike in the pair types
// of MPI, the index has the size of a Go int.
type Loc[T Real] struct {
	Value T
	Index int
}

// MinLoc returns the element with the smaller value; if the values are equal, the one with the
// smaller index (MPI_MINLOC).
func MinLoc[T Real]() Op[Loc[T]] { return Op[Loc[T]]{mpi.BuiltIn(kernel.MinLoc)} }

// MaxLoc returns the element with the larger value; if the values are equal, the one with the
// smaller index (MPI_MAXLOC).
func MaxLoc[T Real]() Op[Loc[T]] { return Op[Loc[T]]{mpi.BuiltIn(kernel.MaxLoc)} }

// OpByName returns the built-in operation with a name that is known at run time: Sum,
// Prod, Min, Max, Band, Bor, Bxor, Land, Lor or Lxor, in any case of letters. If no
// operation has this name, or T does not support it, OpByName returns [ErrOp]. Complex
// numbers support only Sum and Prod; floating-point numbers support no bitwise and no
// logical operations.
func OpByName[T Number](name string) (OpFor[T], error) {
	op, err := mpi.OpByName(elem.Of[T](), name)
	if err != nil {
		return nil, err
	}
	return func() Op[T] { return Op[T]{op} }, nil
}

// OpFunc returns an operation that calls f (MPI_Op_create). f sets inout[i] = in[i] ∘ inout[i] for
// every i; in holds the operands of the lower ranks, unless the operation commutes. The slices have
// the same length, which may be less than the length of the call's slices. f must not keep them.
// The operation must be associative. commutes says that it is also commutative, which permits
// faster algorithms. If f is nil, the operation is invalid.
//
// f may run on any goroutine, and on several goroutines at the same time if collectives overlap. If
// f panics, the collective returns [ErrOp]. If f calls runtime.Goexit, its goroutine ends, and the
// request of a nonblocking collective returns ErrOp. In both cases the communicator is revoked.
//
// Cost: OpFunc allocates. Make an operation once and reuse it.
func OpFunc[T any](commutes bool, f func(inout, in []T)) OpFor[T] {
	if f == nil {
		return func() Op[T] { return Op[T]{} }
	}
	op := Op[T]{mpi.UserOp(commutes, func(inout, in []byte) {
		mpi.Shield(func() { f(elem.Slice[T](inout), elem.Slice[T](in)) })
	})}
	return func() Op[T] { return op }
}

// OpOf returns an operation that calls f for each pair of elements. a is the operand of the lower
// ranks. The operation must be associative, and need not be commutative. It is [OpFunc] with a
// function of two elements, and costs a call of f for each element.
func OpOf[T any](f func(a, b T) T) OpFor[T] {
	if f == nil {
		return OpFunc[T](false, nil)
	}
	return OpFunc(false, func(inout, in []T) {
		for i, a := range in {
			inout[i] = f(a, inout[i])
		}
	})
}

// Replace returns the origin's element. Only [Win.Accumulate], [Win.GetAccumulate], [Win.FetchOp]
// and their request forms accept it (MPI_REPLACE, MPI 4.1 §12.3.4).
func Replace[T any]() Op[T] { return Op[T]{mpi.BuiltIn(mpi.OpReplace)} }

// NoOp leaves the target's element unchanged. Only [Win.GetAccumulate], [Win.FetchOp] and their
// request forms accept it; they then read the element atomically (MPI_NO_OP, MPI 4.1 §12.3.4).
func NoOp[T any]() Op[T] { return Op[T]{mpi.BuiltIn(mpi.OpNoOp)} }

// opOf calls op and returns its operation, or nil if op is nil.
func opOf[T any](op OpFor[T]) *mpi.Op {
	if op == nil {
		return nil
	}
	return op().op
}
