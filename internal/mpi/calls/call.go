// Package calls describes collective calls, so that two ranks can compare their last calls. It also
// has the query, in which a rank sends its last calls to another rank.
package calls

import (
	"fmt"
	"strings"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
)

// Kinds of calls that package mpi builds from the algorithms of other collectives. The kind is part
// of the fingerprint. A call of several steps has a kind for each step.
const (
	KindDup coll.Kind = iota + 128
	KindFree
	KindFinalize
	KindInit          // the functions that make persistent collectives
	KindSplit         // Split, and steps of Cart and Sub
	KindSplitHardware // Root: the kind of hardware
	KindGraph         // Root: 1 with Reorder
	KindGraphOf       // Root: 1 with Reorder
	KindCreate
	KindCreateGroup
	KindLast // the barrier before that of KindFree in Free
	KindWin
	KindWinParts
	KindWinReady
	KindFence
	KindFenceFirst // FenceWith(NoPrecede)
	KindFenceLast  // FenceWith(NoSucceed)
	KindFenceAlone // FenceWith(NoPrecede | NoSucceed)
	KindWinFree
	KindNeighborAllgather // also NeighborAllgatherv and NeighborAllgatherView
	KindNeighborAlltoall  // also NeighborAlltoallv and NeighborAlltoallView
	KindSparseAlltoall    // also the barrier at its end
	KindIntercomm
	KindMerge
	KindListen
	KindAccept
	KindDial
	KindSpawn
	kindEnd
)

// kindNames holds the names of the calls of these kinds, from KindDup on.
var kindNames = [...]string{"Dup", "Free", "Finalize", "Init of a persistent collective", "Split", "SplitHardware", "Graph", "GraphOf",
	"Create", "CreateGroup", "Free", "NewWin", "NewWin", "NewWin", "Fence",
	"FenceWith(NoPrecede)", "FenceWith(NoSucceed)", "FenceWith(NoPrecede|NoSucceed)", "Win.Free",
	"NeighborAllgather", "NeighborAlltoall", "SparseAlltoall", "Intercomm", "Merge", "Listen", "Accept", "Dial", "Spawn"}

// hardwareNames holds the names of the calls of KindSplitHardware, by kind of hardware.
var hardwareNames = [...]string{"SplitNode or SplitHardware(Host)", "SplitHardware(Package)", "SplitHardware(NUMA)",
	"SplitHardware(L3Cache)", "SplitHardware(Core)", "SplitHardware(Narrower)"}

// OpNames holds the names of the built-in operations, by kernel.Op.
var OpNames = [...]string{"Sum", "Prod", "Min", "Max", "Band", "Bor", "Bxor", "Land", "Lor", "Lxor", "MinLoc", "MaxLoc"}

// OpOfProgram is the value of Call.OpID for every operation that the program defines (OpFunc),
// because ranks cannot compare functions.
const OpOfProgram = 255

// NoPart is the value of Call.Root for a rank that takes no part in a call between the groups of an
// intercommunicator, because the root is in its own group. The call has no fingerprint: that of its record
// is 0.
const NoPart = 1<<24 - 1

// Call holds the properties of a collective call that must be the same on all ranks.
type Call struct {
	What coll.Kind // the collective, or one of the kinds above
	// Root is 0 for calls without a root. Count is in bytes. For Allgatherv and ReduceScatter,
	// Count is coll.Fold of the counts. Count is 0 for Barrier, for the kinds above, and for
	// Gatherv, Scatterv and Alltoallv, whose counts may differ between ranks. Of a call between groups
	// of an intercommunicator, Root is a rank of the world, or NoPart.
	Root, Count int
	Elem        int    // bytes per element; 0 for calls without elements
	Type        uint16 // type signature of an element, see elem.Signature; 0 for calls without elements
	OpID        int    // the reduction operation: 0: none; OpOfProgram; otherwise 1 + its index in OpNames
}

// Fingerprint returns 16 bits that a rank sends with each message of the call; see coll.Signature.
func (k *Call) Fingerprint() uint16 {
	if k.What >= KindDup { // package coll does not know these kinds, so the kind is a part of the element type
		return coll.Signature(coll.KindGatherv, k.Root, 0, int(k.What)<<48|k.Elem<<16|int(k.Type), 0)
	}
	return coll.Signature(k.What, k.Root, k.Count, k.Elem<<16|int(k.Type), k.OpID)
}

// ForAllRanks returns the fingerprint of those properties of a neighbour collective that are the same
// on all ranks, also on ranks that are not neighbours.
func (k *Call) ForAllRanks() uint16 {
	common := Call{What: k.What}
	return common.Fingerprint()
}

// isNeighbor reports whether the call is a neighbour collective.
func (k *Call) isNeighbor() bool {
	return k.What == KindNeighborAllgather || k.What == KindNeighborAlltoall
}

// String returns the call as the texts of errors name it, such as "Bcast of 3 × int64 from root 0".
func (k *Call) String() string {
	if k.What >= KindDup {
		name := kindNames[k.What-KindDup]
		switch k.What {
		case KindIntercomm:
			return fmt.Sprintf("%s with leader %d", name, k.Root)
		case KindSplitHardware:
			if k.Root < len(hardwareNames) {
				return hardwareNames[k.Root]
			}
			return name
		case KindGraph, KindGraphOf:
			if k.Root != 0 {
				name += " with Reorder"
			}
			return name
		case KindListen, KindAccept, KindDial, KindSpawn:
			return fmt.Sprintf("%s with root %d", name, k.Root)
		default:
			return name
		}
	}
	var b strings.Builder
	b.WriteString(k.What.String())
	if k.Root == NoPart {
		b.WriteString(" with ProcNull")
		return b.String()
	}
	if k.What == coll.KindBarrier {
		return b.String()
	}
	b.WriteString(" of ")
	switch k.What {
	case coll.KindGatherv, coll.KindScatterv, coll.KindAllgatherv, coll.KindAlltoallv, coll.KindReduceScatter:
	default:
		if k.Elem > 0 && k.Elem < maxElem {
			fmt.Fprintf(&b, "%d × ", k.Count/k.Elem)
		}
	}
	b.WriteString(elem.SigName(k.Type))
	switch k.What {
	case coll.KindGather, coll.KindScatter, coll.KindAllgather, coll.KindAlltoall, coll.KindReduceScatterBlock:
		b.WriteString(" per rank")
	default:
	}
	switch {
	case k.OpID == OpOfProgram:
		b.WriteString(" by OpFunc")
	case k.OpID != 0:
		b.WriteString(" by " + OpNames[k.OpID-1])
	}
	switch k.What {
	case coll.KindBcast, coll.KindScatter, coll.KindScatterv:
		fmt.Fprintf(&b, " from root %d", k.Root)
	case coll.KindReduce, coll.KindGather, coll.KindGatherv:
		fmt.Fprintf(&b, " to root %d", k.Root)
	default:
	}
	return b.String()
}
