package rma

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/atomics"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Operations by RMA and by the fabric's atomics
//
//	Put, Get ──► Write, Read                    in any order
//	Accumulate, GetAccumulate, CompareSwap ──► Atomic. It waits while an atomic to
//	                                           the same bytes is in flight, because
//	                                           the fabric does not order them.
//
// If an operation is longer than the limit of the fabric, the window posts it in segments, each
// after the previous one has ended.

// findNativeRail returns the value of Part.Native: 1 + the rail whose atomics this rank can use for
// all accumulates of the window, or 0 if there is none. That rail leads to all other ranks, its
// atomics implement all operations that are defined for the elements, with and without a fetch, and
// this rank's part is registered with it or empty. direct has the bits of the rails with which the
// part is registered. findNativeRail also sets w.counts.
func (w *Window) findNativeRail(direct int) int {
	if !w.cfg.HasType || w.cfg.Datatype.Size() != w.cfg.Elem || !atomics.Aligned(w.local, w.cfg.Elem) {
		return 0 // atomics need natural alignment, but Go aligns a complex64 to 4 bytes
	}
	rail := -1
	for i := range w.targets {
		r := w.targets[i].rail
		if i == w.rank {
			continue
		}
		if rail >= 0 && r != rail {
			return 0
		}
		rail = r
	}
	if rail >= maxRails || len(w.local) > 0 && direct&(1<<rail) == 0 {
		return 0
	}
	one := make([]byte, w.cfg.Elem)
	ask := transport.Op{Datatype: w.cfg.Datatype}
	for op := range Ops {
		if op > NoOp && w.kernels[op] == nil {
			continue
		}
		ask.Atomic = fabricOps[op]
		for fetch := range 2 {
			ask.Data, ask.Fetch = one, nil
			if fetch == 1 {
				ask.Fetch = one
			}
			if op == NoOp {
				if ask.Data = nil; fetch == 0 {
					continue // NoOp without a fetch does nothing
				}
			}
			n, ok := w.port.AtomicValid(rail, &ask)
			if !ok || n < 1 {
				return 0
			}
			w.counts[op][fetch] = n
		}
	}
	ask = transport.Op{Datatype: w.cfg.Datatype, Atomic: transport.AtomicCswap, Data: one, Fetch: one, Compare: one}
	if n, ok := w.port.AtomicValid(rail, &ask); !ok || n < 1 {
		return 0
	}
	return rail + 1
}

// postWaiting posts the waiting operations with a target, in their order. It stops at maxInFlight
// operations, and at an atomic that overlaps one in flight.
//
// Hot path: no allocation in steady state.
func (t *target) postWaiting() {
	for op := t.waiting.head; op != nil && t.inFlight < maxInFlight; op = t.waiting.head {
		atomic := op.kind != wire.WinPut && op.kind != wire.WinGet
		if atomic {
			if !t.w.cfg.Unordered && t.overlapsAtomic(op) {
				return
			}
			t.atomics = append(t.atomics, op)
		}
		t.waiting.pop()
		t.inFlight++
		op.byFabric = true
		if !atomic && t.w.port.Attr(t.rail).MRMode&transport.MRLocal != 0 {
			t.registerAndPost(op)
			continue
		}
		t.postNext(op)
	}
}

// overlapsAtomic reports whether the atomic op accesses bytes of the target that an atomic in
// flight accesses too.
func (t *target) overlapsAtomic(op *operation) bool {
	for _, x := range t.atomics {
		if op.disp < x.disp+x.length && x.disp < op.disp+op.length {
			return true
		}
	}
	return false
}

// registerAndPost posts a Put or Get on a fabric that requires a registration of its local buffer
// (MRLocal). If the registration takes long, the operation is posted later.
func (t *target) registerAndPost(op *operation) {
	buf := op.src
	if op.kind == wire.WinGet {
		buf = op.result
	}
	if m, now, err := t.w.port.RegisterLocal(t.rank, t.rail, buf); now {
		op.registered(m, err)
		return
	}
	t.w.port.RegisterLater(op.Transfer, t.rank, t.rail, buf, func(m engine.Memory, err error) {
		op.registered(m, cmp.Or(err, t.down))
		t.postWaiting()
	})
}

// registered continues registerAndPost with the result of the registration.
func (op *operation) registered(m engine.Memory, err error) {
	op.memory, op.Op.Region = m, m.Region
	if err != nil {
		op.to.endTransfer(op, err)
		return
	}
	op.to.postNext(op)
}

// postNext posts the next segment of an operation.
func (t *target) postNext(op *operation) {
	w := t.w
	kind, rail := engine.TransferWrite, t.rail
	x := op.Op
	n := op.length - op.offset
	part := func(b []byte) []byte {
		if b == nil {
			return nil
		}
		return b[op.offset : op.offset+n]
	}
	switch op.kind {
	case wire.WinPut:
		n = min(n, w.port.Attr(rail).MaxRMASize)
		x.Data = part(op.src)
	case wire.WinGet:
		kind = engine.TransferRead
		n = min(n, w.port.Attr(rail).MaxRMASize)
		x.Data = part(op.result)
	case wire.WinSwap:
		kind, rail = engine.TransferAtomic, w.nativeRail
		elem := w.cfg.Elem
		x.Atomic, x.Data, x.Compare, x.Fetch = transport.AtomicCswap, op.pair[:elem], op.pair[elem:], op.result
	default:
		kind, rail = engine.TransferAtomic, w.nativeRail
		fetch := 0
		if op.result != nil {
			fetch = 1
		}
		n = min(n, w.counts[op.op][fetch]*w.cfg.Elem)
		x.Atomic, x.Data, x.Compare, x.Fetch = fabricOps[op.op], part(op.src), nil, part(op.result)
	}
	x.Datatype = w.cfg.Datatype
	where := &op.keys[rail]
	x.RemoteKey, x.RemoteAddr = where.Key, where.Base+uint64(op.disp+op.offset)
	op.step = n
	done, err := w.port.Post(op.Transfer, kind, t.rank, rail)
	switch {
	case err != nil:
		t.endTransfer(op, err)
	case done: // does not happen: rails complete only messages at once
		t.transferEnded(op, nil)
	default:
		op.posted = true
	}
}

// transferEnded continues an operation after a segment has ended.
func (t *target) transferEnded(op *operation, err error) {
	op.offset += op.step
	switch {
	case !errors.Is(err, transport.ErrKey):
	case op.region != 0:
		err = errDetached
	default:
		err = fmt.Errorf("%w: the window of rank %d: %w", engine.ErrClosed, t.rank, err)
	}
	switch {
	case err != nil || op.offset == op.length:
		t.endTransfer(op, err)
		t.postWaiting()
	case t.down != nil:
		t.endTransfer(op, t.down)
	default:
		t.postNext(op)
	}
}

// endTransfer ends an operation that postWaiting has begun to post, with the error err, which may
// be nil.
func (t *target) endTransfer(op *operation, err error) {
	t.inFlight--
	for i, x := range t.atomics {
		if x == op {
			last := len(t.atomics) - 1
			t.atomics[i], t.atomics[last] = t.atomics[last], nil
			t.atomics = t.atomics[:last]
			break
		}
	}
	op.finish(err)
}
