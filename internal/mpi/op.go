package mpi

import (
	"fmt"
	"strings"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/kernel"
)

// Op is an operation of reductions and accumulates (MPI_Op). Calls take a pointer; a nil *Op is invalid.
type Op struct {
	name     string
	kind     kernel.Op
	combine  func(inout, in []byte) // the function of the program; nil: a built-in operation
	commutes bool
}

// The operations that only accumulates have. Reductions return ErrOp for them.
const (
	OpReplace kernel.Op = -1 - iota
	OpNoOp
)

// opNames holds the names of the built-in operations, by kernel.Op.
var opNames = [...]string{"Sum", "Prod", "Min", "Max", "Band", "Bor", "Bxor", "Land", "Lor", "Lxor", "MinLoc", "MaxLoc"}

// builtIns holds the built-in operations, from OpNoOp on.
var builtIns = func() (ops [len(opNames) - int(OpNoOp)]Op) {
	for kind, name := range opNames {
		ops[kind-int(OpNoOp)] = Op{name: name, kind: kernel.Op(kind), commutes: true}
	}
	ops[OpReplace-OpNoOp] = Op{name: "Replace", kind: OpReplace}
	ops[0] = Op{name: "NoOp", kind: OpNoOp}
	return ops
}()

// BuiltIn returns the built-in operation of a kind.
func BuiltIn(kind kernel.Op) *Op { return &builtIns[kind-OpNoOp] }

// UserOp returns an operation of the program. combine must call the function of the program
// with Shield.
func UserOp(commutes bool, combine func(inout, in []byte)) *Op {
	return &Op{name: "OpFunc", combine: combine, commutes: commutes}
}

// OpByName is comm.OpByName.
func OpByName(t *elem.Type, name string) (*Op, error) {
	for kind := kernel.Sum; kind <= kernel.Lxor; kind++ {
		if !strings.EqualFold(name, opNames[kind]) {
			continue
		}
		if _, ok := kernel.For(kind, t.Kernel); !ok {
			return nil, &Error{Op: "OpByName", Peer: noRank, Tag: noRank, Err: fmt.Errorf("%w: %s over %v", ErrOp, opNames[kind], t.Go)}
		}
		return BuiltIn(kind), nil
	}
	return nil, &Error{Op: "OpByName", Peer: noRank, Tag: noRank,
		Err: fmt.Errorf("%w: %q is none of %s", ErrOp, name, strings.Join(opNames[:kernel.Lxor+1], ", "))}
}

// opOfProgram is the number of every operation of a program: ranks cannot compare functions. The
// numbers of the built-in operations begin with 1.
const opOfProgram = 255

// on returns what the algorithms need to combine elements of type t, and the number by which
// ranks compare operations.
//
// Hot path: no allocation.
func (o *Op) on(t *elem.Type) (coll.Op, int, error) {
	if o == nil {
		return coll.Op{}, 0, errNoOp
	}
	if o.combine != nil {
		// Elements of size 0 are never combined.
		return coll.Op{Size: max(t.Size, 1), Commutes: o.commutes, Reduce2: o.combine}, opOfProgram, nil
	}
	k, ok := kernel.For(o.kind, t.Kernel)
	if !ok || k.Size != t.Size { // the type constraints of package comm exclude this, except for Replace and NoOp
		return coll.Op{}, 0, fmt.Errorf("%w: %s over %v", ErrOp, o.name, t.Go)
	}
	return coll.Op{Size: k.Size, Commutes: true, Reduce2: k.Reduce2, Reduce3: k.Reduce3}, int(o.kind) + 1, nil
}

var errNoOp = fmt.Errorf("%w: it is nil or zero, or its function is nil", ErrOp)
