package rma

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/atomics"
	"github.com/weft-hpc/weft/internal/bytecopy"
	"github.com/weft-hpc/weft/internal/wire"
)

// Operations by shared memory
//
//	                            part mapped here?
//	                                  │ yes
//	                 ┌────────────────┴──────────────────┐
//	Put, Get ──► loads and stores    accumulates ──► are all parts mapped by all?
//	                                            yes ┌────┴────┐ no
//	            elements of 4 or 8 bytes, aligned? ─┤         └─► the fabric, messages
//	                       yes: the processor's atomics
//	                       no: under the latch of the part's lock table
//
// The caller's goroutine does all of this, and the operation is complete at the origin and at the
// target when the call returns. There is no operation object, and the engine is not involved.
//
// A call needs no engine lock to find out whether it may do so: target.ready is true if an epoch
// permits it. The gate counts the calls that access mapped memory, so that no goroutine unmaps it
// meanwhile.

// updateFlags updates ready and idle. The caller holds the engine's lock, and has changed something
// on which they depend.
func (t *target) updateFlags() {
	if !t.isMapped {
		return
	}
	w := t.w
	valid := w.err == nil && t.down == nil && !w.left
	set := func(b *atomic.Bool, v bool) {
		if b.Load() != v {
			b.Store(v)
		}
	}
	set(&t.ready, valid && (t.lock == lockHeld && !t.abandoned || w.fence || t.begun || t.unchecked || w.allUnchecked))
	set(&t.idle, valid && t.pending == 0 && t.err == nil)
}

// updateAllFlags calls updateFlags for all targets.
func (w *Window) updateAllFlags() {
	for i := range w.targets {
		w.targets[i].updateFlags()
	}
}

// enterMapped enters the gate for n bytes at disp of a target's mapped part, and returns these
// bytes. It returns nil if n is 0, if the bytes are not in the mapped part, if the operation must
// wait for a lock, or if the window is unusable.
//
// Hot path: no allocation, no lock.
func (w *Window) enterMapped(target, disp, n int) ([]byte, pass) {
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

// leaveMapped leaves the gate after enterMapped. fence makes the stores of the call visible before
// later loads of the caller; after an atomic operation they are visible without it.
func (w *Window) leaveMapped(p pass, fence bool) {
	if w.gate.leave(p, fence) {
		w.port.Pause()
	}
}

// tryPut does Put by stores, if the target's part is mapped and ready, and reports whether it did.
//
// Hot path: no allocation, no lock.
func (w *Window) tryPut(target, disp int, buf []byte) bool {
	part, p := w.enterMapped(target, disp, len(buf))
	if part == nil {
		return false
	}
	// A Get of a single element gets either the old or the whole new element. If it gets the new one,
	// it also sees all earlier Puts of this rank.
	switch {
	case len(buf) == 8 && atomics.Aligned(part, 8):
		store64(part, binary.NativeEndian.Uint64(buf))
	case len(buf) == 4 && atomics.Aligned(part, 4):
		store32(part, binary.NativeEndian.Uint32(buf))
	default:
		bytecopy.Share(part, buf)
	}
	w.leaveMapped(p, true)
	return true
}

// tryGet does Get by loads, if the target's part is mapped and ready, and reports whether it did.
//
// Hot path: no allocation, no lock.
func (w *Window) tryGet(target, disp int, buf []byte) bool {
	part, p := w.enterMapped(target, disp, len(buf))
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
	w.leaveMapped(p, false)
	return true
}

// putWord stores an element of 4 or 8 bytes to an aligned word.
func putWord(word, buf []byte) {
	if len(buf) == 8 {
		store64(word, binary.NativeEndian.Uint64(buf))
	} else {
		store32(word, binary.NativeEndian.Uint32(buf))
	}
}

// getWord loads an element of 4 or 8 bytes from an aligned word.
func getWord(buf, word []byte) {
	if len(buf) == 8 {
		binary.NativeEndian.PutUint64(buf, atomic.LoadUint64(atomics.Word64(word)))
	} else {
		binary.NativeEndian.PutUint32(buf, atomic.LoadUint32(atomics.Word32(word)))
	}
}

// Words reports whether [Window.FetchWord] and [Window.SwapWord] can succeed on this window.
func (w *Window) Words() bool { return w.words }

// FetchWord is [Window.GetAccumulate] of one element. operand and old are the bits of elements. If
// the operation is not possible at once, FetchWord does nothing and returns ok = false; the caller
// then calls GetAccumulate, which waits or returns the error.
//
// Hot path: no allocation, no lock.
func (w *Window) FetchWord(target, disp int, op Op, operand uint64) (old uint64, ok bool) {
	if !w.words || disp&(w.cfg.Elem-1) != 0 || op >= Ops || op > NoOp && w.kernels[op] == nil {
		return 0, false
	}
	part, p := w.enterMapped(target, disp, w.cfg.Elem)
	if part == nil {
		return 0, false
	}
	if len(part) == 8 {
		old = w.changes[op].On64(atomics.Word64(part), operand)
	} else {
		old = uint64(w.changes[op].On32(atomics.Word32(part), uint32(operand)))
	}
	w.leaveMapped(p, false)
	return old, true
}

// SwapWord is [Window.CompareSwap] with the parameters and results of [Window.FetchWord].
//
// Hot path: no allocation, no lock.
func (w *Window) SwapWord(target, disp int, compare, replace uint64) (old uint64, ok bool) {
	if !w.words || disp&(w.cfg.Elem-1) != 0 {
		return 0, false
	}
	part, p := w.enterMapped(target, disp, w.cfg.Elem)
	if part == nil {
		return 0, false
	}
	if len(part) == 8 {
		old = atomics.CompareSwap64(atomics.Word64(part), compare, replace)
	} else {
		old = uint64(atomics.CompareSwap32(atomics.Word32(part), uint32(compare), uint32(replace)))
	}
	w.leaveMapped(p, false)
	return old, true
}

// load returns the bits of an element of 4 or 8 bytes.
func load(b []byte) uint64 {
	if len(b) == 8 {
		return binary.NativeEndian.Uint64(b)
	}
	return uint64(binary.NativeEndian.Uint32(b))
}

// tryMapped executes a call by loads and stores, if that is possible now. busy reports that another
// rank or goroutine has the latch; c.done then counts the bytes that are already done.
//
// Hot path: no allocation, no lock of the engine.
func (w *Window) tryMapped(c *call) (done, busy bool) {
	switch c.kind {
	case wire.WinPut:
		return w.tryPut(c.target, c.disp, c.src), false
	case wire.WinGet:
		return w.tryGet(c.target, c.disp, c.result), false
	default:
	}
	if !w.allMapped || uint(c.target) >= uint(len(w.targets)) {
		return false, false
	}
	t := &w.targets[c.target]
	n, err := w.check(t, c)
	if err != nil || c.kind == wire.WinAcc && c.op == NoOp {
		return false, false
	}
	part, p := w.enterMapped(c.target, c.disp, n)
	if part == nil {
		return false, false
	}
	if w.words {
		w.changeWords(c, part)
		done = true
	} else {
		done = w.changeLatched(t, c, part)
	}
	w.leaveMapped(p, false)
	return done, !done
}

// changeWords executes an accumulate on part, by the processor's atomics, element by element.
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

// latchBytes is the maximum number of bytes that a rank changes while it holds a latch, unless a
// single element is longer.
const latchBytes = 4 << 10

// latchTries is the number of attempts to take a latch before the caller lets other goroutines run.
const latchTries = 100

// changeLatched executes an accumulate on part, under the latch of the target's lock table. If
// another rank keeps the latch for too long, changeLatched returns false; c.done counts the changed
// bytes, and another call continues there.
func (w *Window) changeLatched(t *target, c *call, part []byte) bool {
	if c.op > NoOp && !atomics.Aligned(c.src, w.cfg.Align) { // rare: package comm passes aligned slices
		c.src = append(alignedBytes(len(c.src))[:0], c.src...)
	}
	step := max(w.cfg.Elem, latchBytes/w.cfg.Elem*w.cfg.Elem)
	for c.done < len(part) {
		for i := 0; !t.lockTable.tryLatch(w.rank); i++ {
			if i == latchTries {
				return false
			}
		}
		w.serve(c, part[c.done:min(len(part), c.done+step)], c.done)
		t.lockTable.unlatch()
		c.done += step
	}
	return true
}

// recoverLatch releases the latch if the rank that holds it has died, and lets other goroutines
// run. A caller that could not take the latch calls it, without the engine's lock.
func (w *Window) recoverLatch(t *target) {
	w.port.Lock()
	if w.err == nil && !w.left && t.takeDeadLatch() {
		t.grant()
		t.lockTable.unlatch()
	}
	w.port.Unlock()
	w.port.Pause()
}

// takeDeadLatch takes the latch over from a rank that has died, repairs the lock table, and reports
// whether it did.
func (t *target) takeDeadLatch() bool {
	w := t.w
	holder := t.lockTable.latch.Load()
	if holder == 0 || holder > uint64(len(w.targets)) || w.targets[holder-1].down == nil ||
		!t.lockTable.latch.CompareAndSwap(holder, uint64(w.rank)+1) {
		return false
	}
	t.lockTable.repair(w.gone)
	return true
}

// gone reports whether a rank has ended.
func (w *Window) gone(rank int) bool { return w.targets[rank].down != nil }
