package rma

import (
	"slices"

	"github.com/weft-hpc/weft/internal/layout"
	"github.com/weft-hpc/weft/internal/wire"
)

// Operations with layouts by messages
//
//	origin                                            target
//	the data, packed, and the runs of the target ───► unpacked, run by run
//	unpacked into the layout of the result      ◄──── WinReply: packed data
//
// A message has at most maxRuns runs. The origin can compute each message of an operation from its
// position in the stream, so it knows the length of each answer.

// shape is the additional state of an operation by message if some of its memory is not contiguous.
// Windows reuse shapes.
type shape struct {
	target, source, result *layout.Layout // nil: contiguous
	buf                    []byte         // the data of the message that is posted
	next                   *shape         // in the list Window.freeShapes
}

// newShape returns a free shape, or a new one. The caller holds the engine's lock.
func (w *Window) newShape() *shape {
	x := w.freeShapes
	if x == nil {
		return &shape{}
	}
	w.freeShapes, x.next = x.next, nil
	return x
}

func (w *Window) freeShape(x *shape) {
	x.target, x.source, x.result = nil, nil, nil
	x.next, w.freeShapes = w.freeShapes, x
}

// shapedBytes is messageBytes for an operation with a shape.
func (op *operation) shapedBytes(offset int) int {
	unit, left := max(1, op.to.w.unit(op.kind)), op.length-offset
	if op.shape.target == nil {
		return min(left, max(unit, min(op.to.chunk, maxChunk)/unit*unit))
	}
	w := op.to.w
	runs, data := runsLimits(op.to.chunk, unit)
	_, end := op.shape.target.Runs(w.sentRuns[:0:runs], offset, offset+min(left, data))
	return end - offset
}

// packMessage makes the data of the operation's next message, which has n bytes of the stream, and
// completes its header.
func (op *operation) packMessage(m *wire.Window, n int) []byte {
	x := op.shape
	b := x.buf[:0]
	if x.target != nil {
		m.Runs, m.Addr = true, 0
		runs, _ := x.target.Runs(op.to.w.sentRuns[:0], op.offset, op.offset+n)
		b = appendRuns(b, runs, op.disp)
	}
	if op.src != nil {
		at := len(b)
		b = slices.Grow(b, n)[:at+n]
		if x.source != nil {
			x.source.Pack(b[at:], op.src, 0, op.offset)
		} else {
			copy(b[at:], op.src[op.offset:])
		}
	}
	x.buf = b
	return b
}

// deliverAt handles an operation of the rank t that has runs, or that works on a region of this
// rank. If the region is not attached, or does not have all the bytes, deliverAt changes nothing
// and sends WinRefused. In a window that is not dynamic, such an operation is a protocol error.
//
// Hot path: no allocation in steady state.
func (w *Window) deliverAt(t *target, m *wire.Window, data []byte) error {
	runs := w.runs[:0]
	if m.Runs {
		var err error
		if runs, data, err = parseRuns(runs, data); err != nil {
			return err
		}
	}
	n, err := w.checkedSize(m, len(data))
	if err != nil {
		return err
	}
	atomic := m.Kind != wire.WinPut && m.Kind != wire.WinGet
	mem, all := w.local, true
	if w.cfg.Dynamic {
		mem = w.attachedMemory(m.Count)
		all = mem != nil
	}
	if m.Runs {
		if err := w.checkRuns(runs, n, atomic); err != nil {
			return err
		}
	} else {
		if atomic && w.cfg.Align > 1 && m.Addr%uint64(w.cfg.Align) != 0 {
			return errElem
		}
		all = all && m.Addr <= uint64(len(mem))
		runs = append(runs, layout.Run{Off: int(m.Addr), Len: n, Count: 1})
	}
	for _, r := range runs {
		all = all && inside(r, len(mem))
	}
	if !all && !w.cfg.Dynamic {
		return errAddr
	}
	answers := m.Kind == wire.WinGet || m.Kind == wire.WinFetch || m.Kind == wire.WinSwap
	var answer *controlMessage
	if answers || !all {
		size := n
		if !all {
			size = 0
		}
		if answer, err = t.newAnswer(size); err != nil {
			return err
		}
	}
	t.applied++
	switch {
	case !all:
		answer.send(wire.Window{Kind: wire.WinRefused, Count: t.applied})
	case answers:
		for _, r := range runs {
			data = w.applyRun(m, mem, r, data, &answer.buf)
		}
		answer.send(wire.Window{Kind: wire.WinReply, Count: t.applied})
	default:
		for _, r := range runs {
			data = w.applyRun(m, mem, r, data, nil)
		}
		if m.Flag {
			t.acknowledge()
		}
	}
	return nil
}

// checkRuns checks that runs have n bytes, and for accumulates that they consist of elements.
func (w *Window) checkRuns(runs []layout.Run, n int, atomic bool) error {
	sum := 0
	for _, r := range runs {
		sum += r.Size() // cannot overflow, because parseRuns limits the number and the size of runs
		if atomic && (r.Len%w.cfg.Elem != 0 || r.Off%w.cfg.Align != 0 || r.Stride%w.cfg.Align != 0) {
			return errElem
		}
	}
	if sum != n {
		return errRuns
	}
	return nil
}

// applyRun applies an operation to a run of mem. mem has all bytes of the run. applyRun appends the
// previous bytes to old, unless old is nil, and returns the rest of the data.
func (w *Window) applyRun(m *wire.Window, mem []byte, r layout.Run, data []byte, old *[]byte) []byte {
	n := r.Size()
	switch {
	case n == 0:
		return data
	case m.Kind == wire.WinPut:
		r.Unpack(mem, data[:n])
		return data[n:]
	case m.Kind == wire.WinGet:
		at := len(*old)
		*old = slices.Grow(*old, n)[:at+n]
		r.Pack((*old)[at:], mem)
		return data
	}
	for i := range r.Count {
		block := mem[r.Off+i*r.Stride:][:r.Len]
		if old != nil {
			*old = append(*old, block...)
		}
		switch {
		case m.Kind == wire.WinSwap:
			w.apply(m, block, data)
			return nil
		case Op(m.Op) != NoOp:
			w.combine(Op(m.Op), block, data[:r.Len])
			data = data[r.Len:]
		}
	}
	return data
}
