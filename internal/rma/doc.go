// Package rma makes windows over an engine: memory that the ranks of a
// communicator open to each other (MPI 4.1, chapter 12). It knows bytes,
// ranks and displacements; element types and the collective calls are comm's.
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
// Which way a window's accumulates go is one decision for the whole window,
// taken when it is made, for atomics of a fabric, of a processor and of a
// target's progress do not know of each other. So is that for locks, which are
// in shared memory where all ranks share some, else messages.
package rma
