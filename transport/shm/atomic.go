//go:build linux && !portable

package shm

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/atomics"
	"github.com/weft-hpc/weft/transport"
)

// Atomics
//
//	                       the key is that of
//	   ┌───────────────────────┬──────────────────────────┐
//	 shared heap         this rank's memory     a peer's private memory
//	   └──────────┬────────────┘                          │
//	 instructions of the                    kindAtomic ──►│ instructions in the
//	 calling rank                kindAtomicDone ◄─────────┘ owner's progress (serve.go)
//
// All of them use the same atomic instructions on the same memory. So they are atomic with
// each other, and with the program's own use of sync/atomic.

// atomicMax is the largest size in bytes of the elements of one atomic. A request
// with two operands of that size fits into every ring.
const atomicMax = 1 << 10

var errUnaligned = fmt.Errorf("%w: the elements are not aligned to their size", transport.ErrBounds)

// AtomicValid allows all operations on integers; all except the bitwise ones on floats; sum,
// product, read, write and compare-and-swap on complex64; and none on complex128.
func (e *endpoint) AtomicValid(op *transport.Op) (count int, ok bool) {
	if op.Datatype >= transport.Datatypes || op.Datatype == transport.Complex128 || op.Atomic >= transport.AtomicOps {
		return 0, false
	}
	swaps := op.Atomic == transport.AtomicCswap
	switch {
	case swaps != (op.Compare != nil), swaps && op.Fetch == nil:
		return 0, false
	case op.Atomic == transport.AtomicRead:
		ok = op.Fetch != nil
	case op.Atomic == transport.AtomicWrite, swaps:
		ok = op.Data != nil
	default:
		ok = op.Data != nil && atomics.Combines(op.Atomic, op.Datatype)
	}
	if !ok {
		return 0, false
	}
	return atomicMax / op.Datatype.Size(), true
}

// Atomic changes elements of the shared heap, and of this rank's own memory, before it
// returns. For private memory of a peer it sends the peer a request. If maxCalls requests to
// the peer are unanswered, it returns ErrAgain.
//
// Hot path: no allocation, no lock, no system call unless it sends a request to a peer that
// sleeps.
func (e *endpoint) Atomic(op *transport.Op) error {
	d := e.d
	p, err := d.target(op.Peer)
	if err != nil {
		return err
	}
	n, err := e.extentOf(op)
	if err != nil {
		return err
	}
	if op.RemoteKey&heapKey != heapKey && p.local != d.self {
		return d.ask(p, op, n)
	}
	d.completed(op, d.atomicError(p, d.changeHere(p, op, n)))
	return nil
}

// extentOf checks an atomic's operands and returns the size of its elements in bytes.
func (e *endpoint) extentOf(op *transport.Op) (int, error) {
	count, ok := e.AtomicValid(op)
	if !ok {
		return 0, fmt.Errorf("shm: atomic %d on elements of type %d: %w", op.Atomic, op.Datatype, transport.ErrNotSupported)
	}
	size, n := op.Datatype.Size(), len(op.Data)
	if op.Atomic == transport.AtomicRead {
		n = len(op.Fetch)
	}
	switch {
	case n > count*size:
		return 0, transport.ErrTooLarge
	case n%size != 0, op.Fetch != nil && len(op.Fetch) != n, op.Compare != nil && len(op.Compare) != n:
		return 0, fmt.Errorf("shm: atomic: operands of %d, %d and %d bytes: %w", len(op.Data), len(op.Compare), len(op.Fetch), transport.ErrBounds)
	}
	return n, nil
}

// changeHere applies an atomic to memory that this process maps.
func (d *domain) changeHere(p *peer, op *transport.Op, n int) error {
	if p.local != d.self {
		// Meanwhile, the key is in this rank's hazard line: invariant 2 of mr.go.
		at := &d.seg.claims(d.self).hazards.key
		at.Swap(op.RemoteKey)
		defer at.Store(0)
	}
	mem, err := d.elements(p, op, n)
	if err != nil {
		return err
	}
	data := op.Data
	if op.Atomic == transport.AtomicRead {
		data = nil
	}
	atomics.Apply(op.Atomic, op.Datatype, mem, data, op.Compare, op.Fetch)
	return nil
}

// elements returns the memory of an atomic's elements, in the heap of p or in a private
// region of this rank.
func (d *domain) elements(p *peer, op *transport.Op, n int) (mem []byte, err error) {
	if op.RemoteKey&heapKey == heapKey {
		mem, err = d.mapRange(p, op.RemoteKey, op.RemoteAddr, n)
	} else {
		mem, err = d.transfers.regions.find(op.RemoteKey, op.RemoteAddr, uint64(n), rightsOf(op.Atomic, op.Fetch != nil))
	}
	if err == nil && n > 0 && !atomics.Aligned(mem, op.Datatype.Size()) {
		err = errUnaligned
	}
	return mem, err
}

// rightsOf returns the access that an atomic needs.
func rightsOf(op transport.AtomicOp, fetch bool) (a transport.Access) {
	if op != transport.AtomicRead {
		a = transport.RemoteWrite
	}
	if fetch {
		a |= transport.RemoteRead
	}
	return a
}

func (d *domain) atomicError(p *peer, err error) error {
	if err == nil {
		return nil
	}
	return d.peerError("atomic", p.rank, err)
}
