// Package rma implements windows over an engine: memory that the ranks of a communicator expose to
// each other (MPI 4.1, chapter 12). It works on bytes, ranks and displacements. Package comm adds
// element types and the collective calls.
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
// A rail is one of the engine's transports, by its number in the engine; one rail leads to each rank.
//
// A part is reached by RMA if the rail has CapRead and CapWrite, the target could register the part,
// and the origin's endpoint reaches the region ([transport.RegionReacher]). Each origin decides that
// for itself.
//
// All accumulates of a window use one method, which the ranks choose when they create the window,
// because the atomic operations of a fabric, of a processor and of a target's progress are not
// atomic with respect to each other. All locks of a window use one method too: shared memory if all
// ranks share some, else messages.
package rma
