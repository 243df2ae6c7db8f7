package mpi

import (
	"fmt"
	"strings"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/kernel"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Op is an operation of reductions and accumulates (MPI_Op). Calls take a pointer; a nil *Op is
// invalid.
type Op struct {
	name string    // name in errors, such as "Sum"
	kind kernel.Op // which built-in operation; not used if combine is set
	// combine sets inout[i] to in[i] ∘ inout[i] by the function of the program. nil: this is a
	// built-in operation.
	combine  func(inout, in []byte)
	commutes bool // the order of the operands does not matter
}

// The operations that only accumulates have. Reductions return ErrOp for them.
const (
	OpReplace kernel.Op = -1 - iota
	OpNoOp
)

// builtIns holds the built-in operations. The index is the kernel.Op minus OpNoOp, the lowest one.
var builtIns = func() (ops [len(calls.OpNames) - int(OpNoOp)]Op) {
	for kind, name := range calls.OpNames {
		ops[kind-int(OpNoOp)] = Op{name: name, kind: kernel.Op(kind), commutes: true}
	}
	ops[OpReplace-OpNoOp] = Op{name: "Replace", kind: OpReplace}
	ops[0] = Op{name: "NoOp", kind: OpNoOp}
	return ops
}()

// BuiltIn returns the built-in operation of a kind.
func BuiltIn(kind kernel.Op) *Op { return &builtIns[kind-OpNoOp] }

// UserOp returns an operation of the program (OpFunc). combine sets inout[i] to in[i] ∘ inout[i].
// It must call the function of the program through Shield, so that a panic of the function becomes
// an error of the collective.
func UserOp(commutes bool, combine func(inout, in []byte)) *Op {
	return &Op{name: "OpFunc", combine: combine, commutes: commutes}
}

// OpByName implements comm.OpByName, which documents the call.
func OpByName(t *elem.Type, name string) (*Op, error) {
	for kind := kernel.Sum; kind <= kernel.Lxor; kind++ {
		if !strings.EqualFold(name, calls.OpNames[kind]) {
			continue
		}
		if _, ok := kernel.For(kind, t.Kernel); !ok {
			return nil, &Error{Op: "OpByName", Peer: noRank, Tag: noRank, Err: fmt.Errorf("%w: %s over %v", ErrOp, calls.OpNames[kind], t.Go)}
		}
		return BuiltIn(kind), nil
	}
	return nil, &Error{Op: "OpByName", Peer: noRank, Tag: noRank,
		Err: fmt.Errorf("%w: %q is none of %s", ErrOp, name, strings.Join(calls.OpNames[:kernel.Lxor+1], ", "))}
}

// on returns the operation over elements of type t as package coll needs it, and the number by
// which ranks compare operations (calls.Call.OpID). If o is nil or not defined for t, on returns
// ErrOp.
//
// Hot path: no allocation.
func (o *Op) on(t *elem.Type) (coll.Op, int, error) {
	if o == nil {
		return coll.Op{}, 0, errNoOp
	}
	if o.combine != nil {
		// Package coll needs a size of at least 1. Elements of size 0 are never combined.
		return coll.Op{Size: max(t.Size, 1), Commutes: o.commutes, Reduce2: o.combine}, calls.OpOfProgram, nil
	}
	k, ok := kernel.For(o.kind, t.Kernel)
	if !ok || k.Size != t.Size { // the type constraints of package comm exclude this, except for Replace and NoOp
		return coll.Op{}, 0, fmt.Errorf("%w: %s over %v", ErrOp, o.name, t.Go)
	}
	return coll.Op{Size: k.Size, Commutes: true, Reduce2: k.Reduce2, Reduce3: k.Reduce3}, int(o.kind) + 1, nil
}

// ReduceLocal implements comm.ReduceLocal, which documents the call.
func ReduceLocal(in, inout elem.Buffer, op *Op) error {
	err := reduceLocal(in, inout, op)
	if err == nil {
		return nil
	}
	return &Error{Op: "ReduceLocal", Peer: noRank, Tag: noRank, Err: err}
}

func reduceLocal(in, inout elem.Buffer, op *Op) (err error) {
	if err := in.Type.Err; err != nil {
		return err
	}
	o, _, err := op.on(in.Type)
	if err != nil {
		return err
	}
	a, b := in.Bytes(), inout.Bytes()
	switch {
	case in.Count != inout.Count:
		return fmt.Errorf("%w: in has %d elements, and inout has %d", ErrCount, in.Count, inout.Count)
	case elem.Overlap(a, b):
		return ErrBuffer
	case len(a) == 0:
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = opError(p)
		}
	}()
	o.Reduce2(b, a)
	return nil
}

// Commutes implements comm.Op.Commutes, which documents the call.
func (o *Op) Commutes() bool { return o != nil && o.commutes }

var errNoOp = fmt.Errorf("%w: it is nil or zero, or its function is nil", ErrOp)
