package comm

import (
	"fmt"
	"strings"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/kernel"
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
type Op[T any] struct {
	name     string
	kind     kernel.Op
	combine  func(inout, in []byte) // of the program; nil: built in
	commutes bool
}

// OpFor makes an operation over T. Reductions take one, so that a call such as
//
//	comm.Allreduce(c, send, recv, comm.Sum)
//
// needs no type argument: Sum itself is an OpFor of the slices' type.
type OpFor[T any] = func() Op[T]

// Sum adds (MPI_SUM).
func Sum[T Number]() Op[T] { return Op[T]{name: "Sum", kind: kernel.Sum, commutes: true} }

// Prod multiplies (MPI_PROD).
func Prod[T Number]() Op[T] { return Op[T]{name: "Prod", kind: kernel.Prod, commutes: true} }

// Min is the smaller, and NaN where either is (MPI_MIN).
func Min[T Real]() Op[T] { return Op[T]{name: "Min", kind: kernel.Min, commutes: true} }

// Max is the larger, and NaN where either is (MPI_MAX).
func Max[T Real]() Op[T] { return Op[T]{name: "Max", kind: kernel.Max, commutes: true} }

// Band is the bitwise and (MPI_BAND).
func Band[T Integer]() Op[T] { return Op[T]{name: "Band", kind: kernel.Band, commutes: true} }

// Bor is the bitwise or (MPI_BOR).
func Bor[T Integer]() Op[T] { return Op[T]{name: "Bor", kind: kernel.Bor, commutes: true} }

// Bxor is the bitwise exclusive or (MPI_BXOR).
func Bxor[T Integer]() Op[T] { return Op[T]{name: "Bxor", kind: kernel.Bxor, commutes: true} }

// Land is the logical and: true or 1 (MPI_LAND).
func Land[T Logical]() Op[T] { return Op[T]{name: "Land", kind: kernel.Land, commutes: true} }

// Lor is the logical or: true or 1 (MPI_LOR).
func Lor[T Logical]() Op[T] { return Op[T]{name: "Lor", kind: kernel.Lor, commutes: true} }

// Lxor is the logical exclusive or: true or 1 (MPI_LXOR).
func Lxor[T Logical]() Op[T] { return Op[T]{name: "Lxor", kind: kernel.Lxor, commutes: true} }

// Loc is a value and where it was found, for MinLoc and MaxLoc (MPI 4.1
// §6.9.4).
type Loc[T Real] struct {
	Value T
	Index int
}

// MinLoc is the smaller value with its index; of equal values the one with the
// smaller index (MPI_MINLOC). Its elements are Loc[T].
func MinLoc[T Real]() Op[Loc[T]] {
	return Op[Loc[T]]{name: "MinLoc", kind: kernel.MinLoc, commutes: true}
}

// MaxLoc is the larger value with its index; of equal values the one with the
// smaller index (MPI_MAXLOC). Its elements are Loc[T].
func MaxLoc[T Real]() Op[Loc[T]] {
	return Op[Loc[T]]{name: "MaxLoc", kind: kernel.MaxLoc, commutes: true}
}

// OpByName returns the built-in operation with a name that is known at run time: Sum,
// Prod, Min, Max, Band, Bor, Bxor, Land, Lor or Lxor, in any case of letters. If no
// operation has this name, or T does not support it, OpByName returns [ErrOp]. Complex
// numbers support only Sum and Prod; floating-point numbers support no bitwise and no
// logical operations.
func OpByName[T Number](name string) (OpFor[T], error) {
	for kind := kernel.Sum; kind <= kernel.Lxor; kind++ {
		if !strings.EqualFold(name, opNames[kind]) {
			continue
		}
		op := Op[T]{name: opNames[kind], kind: kind, commutes: true}
		if _, ok := kernel.For(kind, infoOf[T]().elem); !ok {
			return nil, &Error{Op: "OpByName", Peer: noRank, Tag: noRank, Err: fmt.Errorf("%w: %s over %T", ErrOp, op.name, *new(T))}
		}
		return func() Op[T] { return op }, nil
	}
	return nil, &Error{Op: "OpByName", Peer: noRank, Tag: noRank,
		Err: fmt.Errorf("%w: %q is none of %s", ErrOp, name, strings.Join(opNames[:kernel.Lxor+1], ", "))}
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
	combine := func(inout, in []byte) {
		shield(func() { f(elemsView[T](inout), elemsView[T](in)) })
	}
	op := Op[T]{name: "OpFunc", combine: combine, commutes: commutes}
	return func() Op[T] { return op }
}

// opNames holds the names of the built-in operations, by kernel.Op.
var opNames = [...]string{"Sum", "Prod", "Min", "Max", "Band", "Bor", "Bxor", "Land", "Lor", "Lxor", "MinLoc", "MaxLoc"}

// opOfProgram is the number that stands for any operation made by OpFunc;
// those that are built in are counted from 1.
const opOfProgram = 255

// operation turns op into what the algorithms use, and a number that ranks can
// compare it by.
//
// Hot path: no allocation.
func operation[T any](op OpFor[T]) (coll.Op, int, error) {
	if op == nil {
		return coll.Op{}, 0, fmt.Errorf("%w: it is nil", ErrOp)
	}
	o, info := op(), infoOf[T]()
	if o.combine != nil {
		// Nothing is ever combined where elements have no size.
		return coll.Op{Size: max(info.size, 1), Commutes: o.commutes, Reduce2: o.combine}, opOfProgram, nil
	}
	if o.name == "" {
		return coll.Op{}, 0, fmt.Errorf("%w: it is zero, or its function is nil", ErrOp)
	}
	k, ok := kernel.For(o.kind, info.elem)
	if !ok || k.Size != info.size { // not to be had with the constraints of this file
		return coll.Op{}, 0, fmt.Errorf("%w: %s over %T", ErrOp, o.name, *new(T))
	}
	return coll.Op{Size: k.Size, Commutes: true, Reduce2: k.Reduce2, Reduce3: k.Reduce3}, int(o.kind) + 1, nil
}
