// Package rma implements windows over an engine: memory that the ranks of a communicator expose to
// each other (MPI 4.1, chapter 12). It works on bytes, ranks and displacements, which are in bytes.
// Package internal/mpi adds element types and the collective calls. A part is the memory that one
// rank exposes in a window.
//
//	        Put, Get                    Accumulate, FetchOp, CompareSwap
//	           │                                        │
//	target's part mapped here?              every part mapped by all?
//	   yes │        │ no                       yes │        │ no
//	loads, stores   │              the processor's atomics, │
//	                │              or a spin lock           │
//	part reached by RMA from here?          every (op, type) valid at every member?
//	   yes │        │ no                       yes │        │ no
//	Write, Read   messages                      Atomic    messages
//	                 └────────────────┬────────────────────┘
//	              served by the target's progress, also while it computes
//
// A rail is one of the engine's transports, by its number in the engine. One rail carries all
// operations and messages between this rank and a given other rank; that rail leads to the rank.
//
// A part is reached by RMA if the rail that leads to the target has CapRead and CapWrite, the
// target has registered the part with it, and the origin's endpoint reaches the region
// ([transport.RegionReacher]). Each origin decides that for itself.
//
// The picture is for contiguous bytes of parts. access.go has the same for operations with layouts, and
// region.go for the regions of dynamic windows, whose memory each rank attaches and detaches.
//
// All accumulates of a window use one method, which the ranks choose when they create the window,
// because the atomic operations of a fabric, of a processor and of a target's progress are not
// atomic with respect to each other. All locks of a window use one method too: lock tables in
// shared memory if every rank has mapped every lock table, else messages.
package rma
