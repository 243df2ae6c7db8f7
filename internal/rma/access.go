package rma

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/layout"
	"github.com/weft-hpc/weft/internal/wire"
)

// Memory is memory of the origin: all bytes, or those that a layout describes.
type Memory struct {
	Bytes  []byte
	Layout *layout.Layout // nil: all bytes. Its offsets count from the first byte, and are inside of Bytes
}

func (m *Memory) size() int {
	if m.Layout != nil {
		return m.Layout.Size()
	}
	return len(m.Bytes)
}

// Access is an operation with layouts, or on a region of a dynamic window. The operations on
// contiguous bytes of a part, such as [Window.Put], are faster.
//
//	                  memory mapped here? (and for accumulates: by all ranks)
//	              yes │                           │ no
//	loads and stores, piece by piece              │
//	                          RMA, and its pieces are long?   accumulates: the fabric's atomics?
//	                                   yes │                          │ no
//	              an operation for each piece        messages, which carry runs and packed data
//
// All layouts of an Access have the same number of bytes. For accumulates they consist of whole
// elements.
type Access struct {
	Target int
	Region *Remote        // nil: the target's part. Otherwise Target has no meaning
	Disp   int            // offset in the part or in the region, in bytes, that is added to the offsets of Layout
	Layout *layout.Layout // which bytes of the target; nil: consecutive ones from Disp on

	Src     Memory // the origin's data; for a compare and swap the new element
	Result  Memory // for the target's previous data
	Compare []byte // of a compare and swap
	Op      Op     // of an accumulate
	Ticket  bool   // return a request

	kind wire.WindowKind

	// resolve sets these fields.
	to    *target
	mem   []byte // the part or the region, if it is mapped here; nil: it is not
	local bool   // accumulates are loads and stores
	words bool   // with local: by the processor's atomics
	n     int    // bytes of the operation
}

// PutAt is [Window.Put] for an Access, or [Window.Rput] with Ticket.
//
// Hot path: no allocation in steady state. The same holds for the other operations of an Access.
func (w *Window) PutAt(ctx context.Context, a *Access) (engine.Request, error) {
	a.kind = wire.WinPut
	return w.startAt(ctx, a)
}

// GetAt is [Window.Get] for an Access, or [Window.Rget] with Ticket.
func (w *Window) GetAt(ctx context.Context, a *Access) (engine.Request, error) {
	a.kind = wire.WinGet
	return w.startAt(ctx, a)
}

// AccumulateAt is [Window.Accumulate] for an Access, or [Window.RAccumulate] with Ticket.
func (w *Window) AccumulateAt(ctx context.Context, a *Access) (engine.Request, error) {
	a.kind = wire.WinAcc
	return w.startAt(ctx, a)
}

// GetAccumulateAt is [Window.GetAccumulate] for an Access, or [Window.RGetAccumulate] with Ticket.
func (w *Window) GetAccumulateAt(ctx context.Context, a *Access) (engine.Request, error) {
	a.kind = wire.WinFetch
	return w.startAt(ctx, a)
}

// CompareSwapAt is [Window.CompareSwap] for an Access, or [Window.RCompareSwap] with Ticket. The
// Access has no layouts.
func (w *Window) CompareSwapAt(ctx context.Context, a *Access) (engine.Request, error) {
	a.kind = wire.WinSwap
	return w.startAt(ctx, a)
}

// atomic reports whether the operation is an accumulate.
func (a *Access) atomic() bool { return a.kind != wire.WinPut && a.kind != wire.WinGet }

// startAt is start for an Access.
func (w *Window) startAt(ctx context.Context, a *Access) (engine.Request, error) {
	if err := w.resolve(a); err != nil {
		return engine.Request{}, err
	}
	if !a.atomic() {
		if done, _, err := w.tryMappedAt(a, nil); done || err != nil {
			return engine.Request{}, err
		}
	}
	it := walks.Get().(*pieces)
	defer walks.Put(it)
	it.start(a.Layout, a.Src.Layout, a.Result.Layout, a.n)
	for {
		done, busy, err := w.tryMappedAt(a, it)
		switch {
		case done || err != nil:
			return engine.Request{}, err
		case busy:
			w.recoverLatch(a.to)
			continue
		}
		if q, again, err := w.beginAt(ctx, a, it); !again {
			return q, err
		}
	}
}

// resolve checks the arguments of an operation, and finds its target.
func (w *Window) resolve(a *Access) error {
	size := 0
	if x := a.Region; x != nil {
		a.to, size = x.chosen, int(x.region.size)
		a.mem, a.local, a.words = x.mapped, x.region.flags&regionLocal != 0, x.region.flags&regionWords != 0
	} else {
		if a.Target < 0 || a.Target >= len(w.targets) {
			return fmt.Errorf("%w: rank %d of %d", ErrRange, a.Target, len(w.targets))
		}
		t := &w.targets[a.Target]
		a.to, size, a.local, a.words = t, t.part.Size, w.allMapped, w.words
		if t.ready.Load() {
			a.mem = t.mapped
		}
	}
	if a.n = a.Src.size(); a.kind == wire.WinGet || a.kind == wire.WinFetch {
		a.n = a.Result.size()
	}
	low, high := 0, a.n
	if a.Layout != nil {
		low, high = a.Layout.Span()
		if a.Layout.Size() != a.n {
			return fmt.Errorf("%w: %d bytes for %d bytes of the target", ErrRange, a.n, a.Layout.Size())
		}
	}
	if a.Disp < -low || a.Disp > size || high > size-a.Disp {
		return fmt.Errorf("%w: bytes %d to %d of %d at rank %d, shifted by %d", ErrRange, low, high, size, a.to.rank, a.Disp)
	}
	return w.checkElements(a)
}

// checkElements checks what only accumulates require.
func (w *Window) checkElements(a *Access) error {
	elem := w.cfg.Elem
	switch a.kind {
	case wire.WinAcc, wire.WinFetch:
		if a.Op >= Ops || a.Op > NoOp && w.kernels[a.Op] == nil {
			return fmt.Errorf("%w: %d", ErrOp, a.Op)
		}
		if a.kind == wire.WinFetch && a.Op != NoOp && a.Src.size() != a.n {
			return fmt.Errorf("%w: %d bytes to combine, %d to fetch", ErrRange, a.Src.size(), a.n)
		}
		if a.n > 0 && (elem == 0 || a.n%elem != 0) {
			return fmt.Errorf("%w: %d bytes are not whole elements of %d bytes", ErrRange, a.n, elem)
		}
		if a.Op == NoOp {
			a.Src = Memory{}
		}
	case wire.WinSwap:
		if len(a.Src.Bytes) != elem || len(a.Compare) != elem || len(a.Result.Bytes) != elem {
			return fmt.Errorf("%w: a compare and swap needs exactly one element", ErrRange)
		}
	default:
		return nil
	}
	align := w.cfg.Align
	if a.words {
		align = elem
	}
	if align > 1 && a.Disp%align != 0 {
		return fmt.Errorf("%w: byte %d is not aligned to an element", ErrRange, a.Disp)
	}
	return nil
}

// beginAt is begin for an Access.
func (w *Window) beginAt(ctx context.Context, a *Access, it *pieces) (q engine.Request, again bool, err error) {
	w.port.Lock()
	defer w.port.Unlock()
	if err := w.invalid(); err != nil {
		return engine.Request{}, false, err
	}
	t, atomic := a.to, a.atomic()
	if err := w.admit(ctx, t); err != nil || a.n == 0 || a.kind == wire.WinAcc && a.Op == NoOp {
		return engine.Request{}, false, err
	}
	native := w.native && (a.Region == nil || a.Region.native())
	if a.Region != nil {
		if err := a.Region.live(); err != nil {
			return engine.Request{}, false, err
		}
	} else if t.isMapped {
		a.mem = t.mapped
	}
	switch {
	case a.mem != nil && (!atomic || a.local):
		return engine.Request{}, true, nil
	case atomic && a.local:
		return engine.Request{}, false, errUnmapped
	case t.rail < 0 && (!atomic || !native):
		return engine.Request{}, false, w.serveSelfAt(a, it)
	}
	q, err = w.launchAt(ctx, a, it, native)
	return q, false, err
}

// longPiece is a mean length of pieces in bytes. From this length on, one RMA operation for each
// piece is faster than messages with packed data, which the target unpacks.
const longPiece = 4 << 10

// launchAt begins an operation by RMA, the fabric's atomics or messages.
func (w *Window) launchAt(ctx context.Context, a *Access, it *pieces, native bool) (engine.Request, error) {
	t := a.to
	direct := t.direct
	if a.Region != nil {
		direct = a.Region.direct
	}
	byMessage := !direct
	if a.atomic() {
		byMessage = !native
	}
	contiguous := a.Layout == nil && a.Src.Layout == nil && a.Result.Layout == nil
	switch {
	case contiguous:
		c := a.call(it.take(a.n))
		c.wantTicket = a.Ticket
		return w.launchHeld(ctx, t, &c, a.n, byMessage)
	case !a.packs(byMessage):
		return w.launchPieces(ctx, a, it, byMessage)
	}
	x := w.newShape()
	x.target, x.source, x.result = a.Layout, a.Src.Layout, a.Result.Layout
	c := call{
		kind: a.kind, op: a.Op, target: t.rank, disp: a.Disp, src: a.Src.Bytes, result: a.Result.Bytes,
		wantTicket: a.Ticket, region: a.Region, shape: x,
	}
	q, err := w.launchHeld(ctx, t, &c, a.n, true)
	if c.shape != nil { // the operation has not begun
		w.freeShape(x)
	}
	return q, err
}

// packs reports whether an operation with layouts is sent as packed messages.
func (a *Access) packs(byMessage bool) bool {
	unit := max(1, a.to.w.unit(a.kind))
	room := a.to.chunk
	if a.Layout != nil {
		_, room = runsLimits(a.to.chunk, unit)
	}
	if room < unit {
		return false
	}
	if byMessage || a.atomic() {
		return byMessage
	}
	blocks := 1
	for _, l := range [...]*layout.Layout{a.Layout, a.Src.Layout, a.Result.Layout} {
		if l != nil {
			blocks = max(blocks, l.Blocks())
		}
	}
	return a.n/blocks < longPiece
}

// launchPieces begins an operation for each piece. With Ticket they share a request.
func (w *Window) launchPieces(ctx context.Context, a *Access, it *pieces, byMessage bool) (engine.Request, error) {
	var g *group
	var q engine.Request
	if a.Ticket {
		q = w.port.Begin()
		g = w.newGroup()
		g.ticket, g.left = q, 1
	}
	var err error
	for p := it.take(a.n); p.n > 0 && err == nil; p = it.take(a.n) {
		c := a.call(p)
		c.group = g
		_, err = w.launchHeld(ctx, a.to, &c, p.n, byMessage)
	}
	if g == nil {
		return engine.Request{}, err
	}
	g.ended(w, err)
	return q, nil
}

// launchHeld is launch, which keeps the user's memory allocated until the operation ends.
func (w *Window) launchHeld(ctx context.Context, t *target, c *call, n int, byMessage bool) (engine.Request, error) {
	c.holds[0], c.holds[1] = w.port.Hold(c.src), w.port.Hold(c.result)
	q, err := t.launch(ctx, c, n, byMessage)
	w.port.Drop(c.holds[0]) // nil if the operation has taken the hold over
	w.port.Drop(c.holds[1])
	return q, err
}

// call returns the arguments of an operation on one piece.
func (a *Access) call(p piece) call {
	c := call{kind: a.kind, op: a.Op, target: a.to.rank, disp: a.Disp + p.target, compare: a.Compare, region: a.Region}
	if a.Src.Bytes != nil {
		c.src = a.Src.Bytes[p.source:][:p.n]
	}
	if a.Result.Bytes != nil {
		c.result = a.Result.Bytes[p.result:][:p.n]
	}
	return c
}

// group is the operations that share a request.
type group struct {
	ticket engine.Request
	left   int    // number of operations that have not ended, and 1 until all have begun
	err    error  // the first error
	next   *group // in the list Window.freeGroups
}

// newGroup returns a free group, or a new one. The caller holds the engine's lock.
func (w *Window) newGroup() *group {
	g := w.freeGroups
	if g == nil {
		return &group{}
	}
	w.freeGroups, g.next = g.next, nil
	return g
}

// ended records that an operation of the group has ended, or that all operations of the group have
// begun.
func (g *group) ended(w *Window, err error) {
	if g.err == nil {
		g.err = err
	}
	if g.left--; g.left == 0 {
		w.port.Complete(g.ticket, g.err)
		*g = group{next: w.freeGroups}
		w.freeGroups = g
	}
}
