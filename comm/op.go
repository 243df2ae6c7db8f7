package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/kernel"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Integer is any integer type.
type Integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uintptr
}

// Real is any type of numbers with an order.
type Real interface{ Integer | ~float32 | ~float64 }

// Number is any numeric type.
type Number interface {
	Real | ~complex64 | ~complex128
}

// Logical is any type with a truth value; an integer is true unless it is 0.
type Logical interface{ Integer | ~bool }

// Op is an operation that reductions combine elements with (MPI_Op, MPI 4.1
// §6.9). It is a value, made by the functions of this file.
//
// What a collective makes of built-in operations depends, to the bit, neither
// on the processor nor on which of two operands is the left: integers wrap
// around, and a NaN that comes out is always the same quiet one.
type Op[T any] struct{ op mpi.Op }

// OpFor makes an operation over T. Reductions take one, so that a call such as
//
//	comm.Allreduce(c, send, recv, comm.Sum)
//
// needs no type argument: Sum itself is an OpFor of the slices' type.
type OpFor[T any] = func() Op[T]

// Sum adds (MPI_SUM).
func Sum[T Number]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Sum)} }

// Prod multiplies (MPI_PROD).
func Prod[T Number]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Prod)} }

// Min is the smaller, and NaN where either is (MPI_MIN).
func Min[T Real]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Min)} }

// Max is the larger, and NaN where either is (MPI_MAX).
func Max[T Real]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Max)} }

// Band is the bitwise and (MPI_BAND).
func Band[T Integer]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Band)} }

// Bor is the bitwise or (MPI_BOR).
func Bor[T Integer]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Bor)} }

// Bxor is the bitwise exclusive or (MPI_BXOR).
func Bxor[T Integer]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Bxor)} }

// Land is the logical and: true or 1 (MPI_LAND).
func Land[T Logical]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Land)} }

// Lor is the logical or: true or 1 (MPI_LOR).
func Lor[T Logical]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Lor)} }

// Lxor is the logical exclusive or: true or 1 (MPI_LXOR).
func Lxor[T Logical]() Op[T] { return Op[T]{mpi.BuiltIn(kernel.Lxor)} }

// Loc is a value and where it was found, for MinLoc and MaxLoc (MPI 4.1
// §6.9.4).
type Loc[T Real] struct {
	Value T
	Index int
}

// MinLoc is the smaller value with its index; of equal values the one with the
// smaller index (MPI_MINLOC). Its elements are Loc[T].
func MinLoc[T Real]() Op[Loc[T]] { return Op[Loc[T]]{mpi.BuiltIn(kernel.MinLoc)} }

// MaxLoc is the larger value with its index; of equal values the one with the
// smaller index (MPI_MAXLOC). Its elements are Loc[T].
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

// OpFunc returns an operation that calls f (MPI_Op_create): inout[i] = in[i] ∘ inout[i]
// for every i, where in is the operand of the lower ranks. The two slices have the same
// length, which may be shorter than the message, and f must not keep them. The operation
// must be associative. commutes says that it is also commutative, which permits faster
// algorithms.
//
// f may run on any goroutine. If collectives overlap, f may run on several at the same
// time. If f panics, the collective returns [ErrOp]. If f calls runtime.Goexit, the
// goroutine that f runs on ends; the other ranks and the request get ErrOp.
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

// Replace takes the origin's element; for Accumulate, GetAccumulate and FetchOp
// only (MPI_REPLACE, MPI 4.1 §12.3.4).
func Replace[T any]() Op[T] { return Op[T]{mpi.BuiltIn(mpi.OpReplace)} }

// NoOp leaves the element as it is; for GetAccumulate and FetchOp, which then
// read atomically (MPI_NO_OP, MPI 4.1 §12.3.4).
func NoOp[T any]() Op[T] { return Op[T]{mpi.BuiltIn(mpi.OpNoOp)} }

// opOf returns the operation of op; the zero Op if op is nil.
func opOf[T any](op OpFor[T]) mpi.Op {
	if op == nil {
		return mpi.Op{}
	}
	return op().op
}
