package rma

import "github.com/weft-hpc/weft/transport"

// Op is the operation that an accumulate applies to an element of the target.
type Op uint8

// The operations (MPI 4.1, 12.3.4). Config.Kernel returns kernels for those after NoOp.
const (
	Replace Op = iota // stores the origin's element
	NoOp              // does nothing; with a fetch it reads
	Sum
	Prod
	Min
	Max
	Band
	Bor
	Bxor
	Land
	Lor
	Lxor

	Ops // number of operations
)

// fabricOps maps each Op to the operation of package transport, which package atomics uses too.
var fabricOps = [Ops]transport.AtomicOp{
	Replace: transport.AtomicWrite, NoOp: transport.AtomicRead,
	Sum: transport.AtomicSum, Prod: transport.AtomicProd, Min: transport.AtomicMin, Max: transport.AtomicMax,
	Band: transport.AtomicBand, Bor: transport.AtomicBor, Bxor: transport.AtomicBxor,
	Land: transport.AtomicLand, Lor: transport.AtomicLor, Lxor: transport.AtomicLxor,
}
