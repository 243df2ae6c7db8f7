package rma

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/atomics"
	"github.com/weft-hpc/weft/internal/bytecopy"
	"github.com/weft-hpc/weft/internal/wire"
)

// Windows in shared memory
//
//	                            part mapped here?
//	                                  │ yes
//	                 ┌────────────────┴──────────────────┐
//	Put, Get ──► loads and stores    accumulates ──► are all parts mapped by all?
//	                                            yes ┌────┴────┐ no
//	            elements of 4 or 8 bytes, aligned? ─┤         └─► the fabric, messages
//	                       yes: the processor's atomics
//	                       no: under the latch of the part's board
//
// All of that is done in the caller's goroutine and is over when the call
// returns, here and at the target. There is no operation, and the engine does
// not hear of it.
//
// Whether a call may do so it finds out without the engine's lock: target.ready
// says that the rules of epochs permit it. The gate knows of the calls that are
// at it, so that nobody unmaps what they are about to touch.

// look brings ready and calm up to date. The caller holds the engine's lock, and
// has changed something that they depend on.
func (t *target) look() {
	if !t.near {
		return
	}
	w := t.w
	fit := w.err == nil && t.down == nil && !w.left
	put := func(b *atomic.Bool, v bool) {
		if b.Load() != v {
			b.Store(v)
		}
	}
	put(&t.ready, fit && (t.lock == lockHeld && !t.abandoned || w.fence || t.begun))
	put(&t.calm, fit && t.pending == 0 && t.err == nil)
}

// lookAll does so with all targets.
func (w *Window) lookAll() {
	for i := range w.targets {
		w.targets[i].look()
	}
}

// open enters the gate for n bytes at disp of a target's part, and returns them;
// nil: they are none, are not there, or must wait for something.
//
// Hot path: no allocation, no lock.
func (w *Window) open(target, disp, n int) ([]byte, pass) {
	if uint(target) >= uint(len(w.targets)) {
		return nil, passNone
	}
	t := &w.targets[target]
	if !t.ready.Load() || n == 0 || disp < 0 || disp > len(t.mapped) || n > len(t.mapped)-disp {
		return nil, passNone
	}
	p := w.gate.enter()
	if p == passNone {
		return nil, passNone
	}
	return t.mapped[disp : disp+n], p
}

// leave ends what open has begun. fence: stores of the caller's are to be seen
// before it loads anything, as after an atomic operation they are.
func (w *Window) leave(p pass, fence bool) {
	if w.gate.leave(p, fence) {
		w.port.Pause()
	}
}

// put is Put where that is a store.
//
// Hot path: no allocation, no lock.
func (w *Window) put(target, disp int, buf []byte) bool {
	part, p := w.open(target, disp, len(buf))
	if part == nil {
		return false
	}
	switch { // who gets a single element sees all of it or nothing, and what was put before
	case len(buf) == 8 && atomics.Aligned(part, 8):
		store64(part, binary.NativeEndian.Uint64(buf))
	case len(buf) == 4 && atomics.Aligned(part, 4):
		store32(part, binary.NativeEndian.Uint32(buf))
	default:
		bytecopy.Share(part, buf)
	}
	w.leave(p, true)
	return true
}

// get is Get where that is a load.
//
// Hot path: no allocation, no lock.
func (w *Window) get(target, disp int, buf []byte) bool {
	part, p := w.open(target, disp, len(buf))
	if part == nil {
		return false
	}
	switch {
	case len(buf) == 8 && atomics.Aligned(part, 8):
		binary.NativeEndian.PutUint64(buf, atomic.LoadUint64(atomics.Word64(part)))
	case len(buf) == 4 && atomics.Aligned(part, 4):
		binary.NativeEndian.PutUint32(buf, atomic.LoadUint32(atomics.Word32(part)))
	default:
		bytecopy.Keep(buf, part)
	}
	w.leave(p, false)
	return true
}

// Words says whether FetchWord and SwapWord may be of use.
func (w *Window) Words() bool { return w.words }

// FetchWord is GetAccumulate of one element, of which the operand and what is
// returned are the bits. Where it cannot be done at once it does nothing and ok
// is false: GetAccumulate says why, or waits.
//
// Hot path: no allocation, no lock.
func (w *Window) FetchWord(target, disp int, op Op, operand uint64) (old uint64, ok bool) {
	if !w.words || disp&(w.cfg.Elem-1) != 0 || op >= Ops || op > NoOp && w.kernels[op] == nil {
		return 0, false
	}
	part, p := w.open(target, disp, w.cfg.Elem)
	if part == nil {
		return 0, false
	}
	if len(part) == 8 {
		old = w.changes[op].On64(atomics.Word64(part), operand)
	} else {
		old = uint64(w.changes[op].On32(atomics.Word32(part), uint32(operand)))
	}
	w.leave(p, false)
	return old, true
}

// SwapWord is CompareSwap in the manner of FetchWord.
//
// Hot path: no allocation, no lock.
func (w *Window) SwapWord(target, disp int, compare, replace uint64) (old uint64, ok bool) {
	if !w.words || disp&(w.cfg.Elem-1) != 0 {
		return 0, false
	}
	part, p := w.open(target, disp, w.cfg.Elem)
	if part == nil {
		return 0, false
	}
	if len(part) == 8 {
		old = atomics.CompareSwap64(atomics.Word64(part), compare, replace)
	} else {
		old = uint64(atomics.CompareSwap32(atomics.Word32(part), uint32(compare), uint32(replace)))
	}
	w.leave(p, false)
	return old, true
}

// load is an element of 4 or 8 bytes.
func load(b []byte) uint64 {
	if len(b) == 8 {
		return binary.NativeEndian.Uint64(b)
	}
	return uint64(binary.NativeEndian.Uint32(b))
}

// near does what a user asked for where that can be done by loads and stores
// now. busy says that another rank has the latch; what is done already c knows.
//
// Hot path: no allocation, no lock of the engine.
func (w *Window) near(c *call) (done, busy bool) {
	switch c.kind {
	case wire.WinPut:
		return w.put(c.target, c.disp, c.src), false
	case wire.WinGet:
		return w.get(c.target, c.disp, c.result), false
	default:
	}
	if !w.whole || uint(c.target) >= uint(len(w.targets)) {
		return false, false
	}
	t := &w.targets[c.target]
	n, err := w.check(t, c)
	if err != nil || c.kind == wire.WinAcc && c.op == NoOp {
		return false, false
	}
	part, p := w.open(c.target, c.disp, n)
	if part == nil {
		return false, false
	}
	if w.words {
		w.changeWords(c, part)
		done = true
	} else {
		done = w.changeLatched(t, c, part)
	}
	w.leave(p, false)
	return done, !done
}

// changeWords changes elements one by one, each in one step of the processor.
func (w *Window) changeWords(c *call, part []byte) {
	elem := w.cfg.Elem
	for at := 0; at < len(part); at += elem {
		var in, old uint64
		if c.op != NoOp {
			in = load(c.src[at : at+elem])
		}
		switch {
		case c.kind == wire.WinSwap && elem == 8:
			old = atomics.CompareSwap64(atomics.Word64(part), load(c.compare), in)
		case c.kind == wire.WinSwap:
			old = uint64(atomics.CompareSwap32(atomics.Word32(part), uint32(load(c.compare)), uint32(in)))
		case elem == 8:
			old = w.changes[c.op].On64(atomics.Word64(part[at:]), in)
		default:
			old = uint64(w.changes[c.op].On32(atomics.Word32(part[at:]), uint32(in)))
		}
		switch {
		case c.result == nil:
		case elem == 8:
			binary.NativeEndian.PutUint64(c.result[at:], old)
		default:
			binary.NativeEndian.PutUint32(c.result[at:], uint32(old))
		}
	}
}

// latched is how many bytes are changed under one hold of a latch, or one
// element if that is longer.
const latched = 4 << 10

// latchTries is how often a latch is tried before it counts as held for long.
const latchTries = 100

// changeLatched changes elements under the latch; false: another rank has it.
func (w *Window) changeLatched(t *target, c *call, part []byte) bool {
	if c.op > NoOp && !atomics.Aligned(c.src, w.cfg.Align) { // by none of comm's calls
		c.src = append(alignedBytes(len(c.src))[:0], c.src...)
	}
	step := max(w.cfg.Elem, latched/w.cfg.Elem*w.cfg.Elem)
	for c.done < len(part) {
		for i := 0; !t.board.try(w.rank); i++ {
			if i == latchTries {
				return false
			}
		}
		w.serve(c, part[c.done:min(len(part), c.done+step)], c.done)
		t.board.open()
		c.done += step
	}
	return true
}

// relieve is for who has found a latch taken for long: it takes it from a rank
// that has died, and lets others run. The caller does not hold the engine's lock.
func (w *Window) relieve(t *target) {
	w.port.Lock()
	if w.err == nil && !w.left && t.inherit() {
		t.grant()
		t.board.open()
	}
	w.port.Unlock()
	w.port.Pause()
}

// inherit takes the latch from a rank that has died with it.
func (t *target) inherit() bool {
	w := t.w
	holder := t.board.latch.Load()
	if holder == 0 || holder > uint64(len(w.targets)) || w.targets[holder-1].down == nil ||
		!t.board.latch.CompareAndSwap(holder, uint64(w.rank)+1) {
		return false
	}
	t.board.repair(w.gone)
	return true
}

// gone says whether a rank has ended.
func (w *Window) gone(rank int) bool { return w.targets[rank].down != nil }
