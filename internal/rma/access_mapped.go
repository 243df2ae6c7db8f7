package rma

import (
	"github.com/weft-hpc/weft/internal/atomics"
	"github.com/weft-hpc/weft/internal/bytecopy"
	"github.com/weft-hpc/weft/internal/wire"
)

// tryMappedAt is tryMapped for an Access. it is the walk over the pieces of an accumulate: if
// tryMappedAt returns busy, the next call continues the walk. err is not nil if the region is not
// attached.
//
// Hot path: no allocation, no lock of the engine.
func (w *Window) tryMappedAt(a *Access, it *pieces) (done, busy bool, err error) {
	if a.mem == nil || a.n == 0 || a.atomic() && !a.local || a.kind == wire.WinAcc && a.Op == NoOp || !a.to.ready.Load() {
		return false, false, nil
	}
	p := w.gate.enter()
	if p == passNone {
		return false, false, nil
	}
	if a.Region != nil {
		err = a.Region.live()
	}
	switch {
	case err != nil:
	case !a.atomic():
		a.move()
		done = true
	case a.words:
		w.changeWordsAt(a, it)
		done = true
	default:
		done = w.changeLatchedAt(a, it)
		busy = !done
	}
	w.leaveMapped(p, a.kind == wire.WinPut)
	return done, busy, err
}

// bounceBytes is the size of the buffer between two layouts, which stays in the L1 cache.
const bounceBytes = 4 << 10

// move does a Put or Get by loads and stores.
func (a *Access) move() {
	put, user := a.kind == wire.WinPut, &a.Src
	if !put {
		user = &a.Result
	}
	switch l := a.Layout; {
	case l == nil && user.Layout == nil:
		part := a.mem[a.Disp:][:a.n]
		if put {
			putBytes(part, user.Bytes)
		} else {
			getBytes(user.Bytes, part)
		}
	case l == nil && put:
		user.Layout.Pack(a.mem[a.Disp:][:a.n], user.Bytes, 0, 0)
	case l == nil:
		user.Layout.Unpack(user.Bytes, a.mem[a.Disp:][:a.n], 0, 0)
	case user.Layout == nil && put:
		l.Unpack(a.mem, user.Bytes, a.Disp, 0)
	case user.Layout == nil:
		l.Pack(user.Bytes, a.mem, a.Disp, 0)
	default:
		var buf [bounceBytes]byte
		for pos := 0; pos < a.n; pos += len(buf) {
			b := buf[:min(len(buf), a.n-pos)]
			if put {
				user.Layout.Pack(b, user.Bytes, 0, pos)
				l.Unpack(a.mem, b, a.Disp, pos)
			} else {
				l.Pack(b, a.mem, a.Disp, pos)
				user.Layout.Unpack(user.Bytes, b, 0, pos)
			}
		}
	}
}

// changeWordsAt executes an accumulate by the processor's atomics.
func (w *Window) changeWordsAt(a *Access, it *pieces) {
	for p := it.take(a.n); p.n > 0; p = it.take(a.n) {
		c := a.call(p)
		w.changeWords(&c, a.mem[c.disp:][:p.n])
	}
}

// changeLatchedAt executes an accumulate under the latch of the target's lock table. If another
// rank keeps the latch for too long, changeLatchedAt returns false, and the next call continues at
// the same piece.
func (w *Window) changeLatchedAt(a *Access, it *pieces) bool {
	step := max(w.cfg.Elem, latchBytes/w.cfg.Elem*w.cfg.Elem)
	for it.pos < it.size {
		for i := 0; !a.to.lockTable.tryLatch(w.rank); i++ {
			if i == latchTries {
				return false
			}
		}
		for left := step; left > 0 && it.pos < it.size; {
			p := it.take(left)
			left -= p.n
			c := a.call(p)
			if c.op > NoOp && !atomics.Aligned(c.src, w.cfg.Align) { // rare: package comm passes aligned slices
				c.src = append(alignedBytes(len(c.src))[:0], c.src...)
			}
			w.serve(&c, a.mem[c.disp:][:p.n], 0)
		}
		a.to.lockTable.unlatch()
	}
	return true
}

// serveSelfAt is serveSelf for an Access.
func (w *Window) serveSelfAt(a *Access, it *pieces) error {
	unit := max(1, w.unit(a.kind))
	step := max(unit, maxChunk/unit*unit)
	for {
		mem := w.local
		if a.Region != nil {
			if mem = w.attachedMemory(a.Region.region.id); len(mem) != int(a.Region.region.size) {
				return errDetached
			}
		}
		for left := step; left > 0 && it.pos < it.size; {
			p := it.take(left)
			left -= p.n
			c := a.call(p)
			w.serve(&c, mem[c.disp:][:p.n], 0)
		}
		if it.pos == it.size {
			return nil
		}
		w.port.YieldLock()
		if w.err != nil {
			return w.err
		}
	}
}

// attachedMemory returns the memory of a region of this rank, or nil if the region is not attached.
func (w *Window) attachedMemory(id uint64) []byte {
	if x := w.attached.find(id); x != nil {
		return x.mem
	}
	return nil
}

// putBytes stores buf to mapped memory, as tryPut does.
func putBytes(part, buf []byte) {
	if len(buf) == 8 && atomics.Aligned(part, 8) || len(buf) == 4 && atomics.Aligned(part, 4) {
		putWord(part, buf)
		return
	}
	bytecopy.Share(part, buf)
}

// getBytes loads buf from mapped memory, as tryGet does.
func getBytes(buf, part []byte) {
	if len(buf) == 8 && atomics.Aligned(part, 8) || len(buf) == 4 && atomics.Aligned(part, 4) {
		getWord(buf, part)
		return
	}
	bytecopy.Keep(buf, part)
}
