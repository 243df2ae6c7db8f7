// Package rma implements windows over an engine: memory that the ranks of a communicator expose to
// each other (MPI 4.1, chapter 12). It works on bytes, ranks and displacements. Package comm adds
// element types and the collective calls.
//
//	        Put, Get                    Accumulate, FetchOp, CompareSwap
//	           │                                        │
//	target's part mapped here?              every part mapped by all?
//	   yes │        │ no                       yes │        │ no
//	loads, stores   │              the processor's atomics, │
//	                │              or a latch               │
//	rails with CapRead|CapWrite?            every (op, type) valid at every member?
//	   yes │        │ no                       yes │        │ no
//	Write, Read   messages                      Atomic    messages
//	                 └────────────────┬────────────────────┘
//	              served by the target's progress, also while it computes
//
// All accumulates of a window use one method, which the ranks choose when they create the window,
// because the atomic operations of a fabric, of a processor and of a target's progress are not
// atomic with respect to each other. All locks of a window use one method too: shared memory if all
// ranks share some, else messages.
package rma
