package rma

import "github.com/weft-hpc/weft/transport"

// Op is what an accumulate does to an element of the target.
type Op uint8

// The operations (MPI 4.1, 12.3.4). Config.Combine has those after NoOp.
const (
	Replace Op = iota // the origin's element
	NoOp              // nothing; with a fetch it reads
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

	Ops // how many there are
)

// fabricOps are the names that fabrics, and package atomics, have for the
// operations.
var fabricOps = [Ops]transport.AtomicOp{
	Replace: transport.AtomicWrite, NoOp: transport.AtomicRead,
	Sum: transport.AtomicSum, Prod: transport.AtomicProd, Min: transport.AtomicMin, Max: transport.AtomicMax,
	Band: transport.AtomicBand, Bor: transport.AtomicBor, Bxor: transport.AtomicBxor,
	Land: transport.AtomicLand, Lor: transport.AtomicLor, Lxor: transport.AtomicLxor,
}
