// Package mpiio is the runtime of parallel files (MPI-4.1 §14) on bytes, element types and layouts.
// Package comm/pio has the public calls, with their documentation.
//
//	pio.WriteAll[T] ─► View.WriteAll ─┬─ the ranks' data do not interleave ─► independent.go ─► pwrite
//	                                  └─ else: two phases (collective.go)
//	                                       phase 1: messages to aggregators, phase 2: pwrite
//
// A view of a file is a layout that the file repeats without end (view.go). The data of a view has
// ascending offsets in the file. So the data of a view in a range of the file is one contiguous
// part of the view's stream of bytes, and a rank that knows the view of another rank can compute
// this part.
//
// All ranks of a file know the views of all ranks. A collective call begins with an exchange of the
// ranks' positions and counts, in which each rank also reports whether its arguments are wrong. It
// ends with an agreement on errors, so the failure of one rank is the same error on every rank
// (errors.go). If communication itself fails, a rank that finds this revokes the communicator of
// the file.
package mpiio
