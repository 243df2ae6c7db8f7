package rma

import (
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/atomics"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Windows by the fabric
//
//	Put, Get ──► Write, Read                    in any order
//	Accumulate, GetAccumulate, CompareSwap ──► Atomic, unless one to the same
//	                                           bytes flies: those wait, as the
//	                                           fabric orders nothing
//
// An operation longer than the fabric takes at once goes piece by piece, each
// posted when the one before has ended.

// nativeBy is Part.Native: the rail that leads to all other ranks and to this
// one, if its atomics can all that the elements permit.
func (w *Window) nativeBy(direct int) int {
	if !w.cfg.HasType || w.cfg.Datatype.Size() != w.cfg.Elem || !atomics.Aligned(w.local, w.cfg.Elem) {
		return 0 // a processor needs more than Go, which aligns a complex64 to 4
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
					continue // nothing is done
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

// fly posts what waits for a target, as far as the limits permit.
//
// Hot path: no allocation in steady state.
func (t *target) fly() {
	for op := t.waiting.head; op != nil && t.flying < maxFlying; op = t.waiting.head {
		atomic := op.kind != wire.WinPut && op.kind != wire.WinGet
		if atomic {
			if t.crossed(op) {
				return
			}
			t.atomics = append(t.atomics, op)
		}
		t.waiting.pop()
		t.flying++
		op.flying = true
		if err := t.register(op, atomic); err != nil {
			t.land(op, err)
			continue
		}
		t.advance(op)
	}
}

// crossed says whether an atomic is about bytes that one under way is about.
func (t *target) crossed(op *operation) bool {
	for _, x := range t.atomics {
		if op.disp < x.disp+x.length && x.disp < op.disp+op.length {
			return true
		}
	}
	return false
}

// register makes the user's buffer known to a fabric that wants that.
func (t *target) register(op *operation, atomic bool) error {
	if atomic || t.w.port.Attr(t.rail).MRMode&transport.MRLocal == 0 {
		return nil
	}
	buf := op.src
	if op.kind == wire.WinGet {
		buf = op.result
	}
	m, err := t.w.port.Register(t.rail, buf, transport.Local)
	if err != nil {
		return err
	}
	op.memory = m
	op.Op.Region = m.Region
	return nil
}

// advance posts the next piece of an operation.
func (t *target) advance(op *operation) {
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
	where := &t.part.Regions[rail]
	x.RemoteKey, x.RemoteAddr = where.Key, where.Base+uint64(op.disp+op.offset)
	op.step = n
	done, err := w.port.Post(op.Transfer, kind, t.rank, rail)
	switch {
	case err != nil:
		t.land(op, err)
	case done: // no rail says so of what is no message
		t.flew(op, nil)
	default:
		op.posted = true
	}
}

// flew goes on when a piece has ended.
func (t *target) flew(op *operation, err error) {
	op.offset += op.step
	if errors.Is(err, transport.ErrKey) {
		err = fmt.Errorf("%w: the window of rank %d: %w", engine.ErrClosed, t.rank, err)
	}
	switch {
	case err != nil || op.offset == op.length:
		t.land(op, err)
		t.fly()
	case t.down != nil:
		t.land(op, t.down)
	default:
		t.advance(op)
	}
}

// land ends an operation that flew.
func (t *target) land(op *operation, err error) {
	t.flying--
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
