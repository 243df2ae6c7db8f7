package rma

import (
	"errors"
	"fmt"
	"sync"

	"github.com/weft-hpc/weft/internal/atomics"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport"
)

// What of a window lies in shared memory, and for how long
//
//	New       allocates the board, and the part unless it is the user's
//	Connect   maps those of the ranks that share memory with this one
//	Leave     says on their boards that this rank does not touch them any more
//	          (a barrier)
//	Close     unmaps them. This rank's own go when all have left it, which after
//	          the barrier is so; else they remain until it is so
//
// A rank that cannot allocate or map is no error: the others learn of it. Where
// that is a board there is no shared memory in the window, for nobody could say
// on it that he has left; where it is a part, that is reached in another way.

// Reach says what a rank reaches by loads and stores.
type Reach uint8

// The bits of Reach.
const (
	reachHost   Reach = 1 << iota // the board of every rank that shares memory with it
	reachBoards                   // every rank's board
	reachParts                    // every rank's part
	reachWords                    // and elements are words that the processor changes in one step
)

// shared is memory of this rank that others map.
type shared struct {
	region      transport.MemoryRegion // of the part, where New allocated it
	hold        *engine.Span           // that the part lies in otherwise, if it does in one
	boardRegion transport.MemoryRegion // of the board; nil: nobody shares memory with this rank
	board       []byte
	alone       bool // nobody has mapped, or will map, anything
}

// allocate makes this rank's board, and its part if that is asked for.
func (w *Window) allocate() {
	ctx, n := w.cfg.Ctx, w.port.Size()
	if w.cfg.Remains == nil {
		w.cfg.Remains = new(Remains)
	}
	_ = w.cfg.Remains.Sweep() // of other windows, whose end is not this one's
	w.own.alone = true
	for i := range n {
		if i != w.port.Rank() && ctx.SharesMemory(i) {
			w.own.alone = false
		}
	}
	if !w.own.alone {
		if mem, mr, err := ctx.AllocShared(boardSize(n)); err == nil {
			w.own.board, w.own.boardRegion = mem, mr
		}
	}
	switch size := w.cfg.Alloc; {
	case size <= 0:
	case w.own.boardRegion != nil:
		mem, mr, err := ctx.AllocShared(size)
		if err == nil {
			w.local, w.own.region = mem, mr
			break
		}
		fallthrough
	default:
		w.local = alignedBytes(size)
	}
	if n == 1 {
		w.own.board = alignedBytes(boardSize(1))
	}
}

// Local is this rank's part.
func (w *Window) Local() []byte {
	w.port.Lock()
	defer w.port.Unlock()
	return w.local
}

// offer tells what of this rank's memory can be mapped.
func (w *Window) offer(part *Part) {
	w.own.hold = w.port.Hold(w.local)
	if w.own.boardRegion == nil {
		return
	}
	part.Board = w.own.boardRegion.Key()
	part.Flags = partBoard
	switch {
	case w.own.region != nil:
		part.Key = w.own.region.Key()
	case len(w.local) > 0:
		key, off, ok := w.port.Region(w.own.hold, w.local)
		if !ok {
			return
		}
		part.Key, part.Offset = key, off
	}
	part.Flags |= partMemory
}

// allNear says whether all ranks that a rail leads to share memory with this one.
func (w *Window) allNear(rail int) bool {
	for i := range w.targets {
		if w.targets[i].rail == rail && !w.cfg.Ctx.SharesMemory(i) {
			return false
		}
	}
	return true
}

// mapParts maps what the parts say that can be.
func (w *Window) mapParts() Reach {
	all := reachHost | reachBoards | reachParts
	if w.wordy() {
		all |= reachWords
	}
	for i := range w.targets {
		t := &w.targets[i]
		boardMem, mapped := w.mapPart(t)
		w.port.Lock()
		if boardMem != nil {
			t.board = boardOf(boardMem, len(w.targets))
		} else {
			all &^= reachBoards
			if t.rank == w.rank && !w.own.alone || t.rank != w.rank && w.cfg.Ctx.SharesMemory(t.rank) {
				all &^= reachHost
			}
		}
		if mapped != nil {
			t.near, t.mapped = true, mapped
			if all&reachWords != 0 && len(mapped) > 0 && !atomics.Aligned(mapped, w.cfg.Elem) {
				all &^= reachWords
			}
		} else {
			all &^= reachParts
		}
		w.port.Unlock()
	}
	return all
}

// wordy says whether elements are as large as words, and the processor has all
// operations that are defined for them.
func (w *Window) wordy() bool {
	typed := w.cfg.HasType && w.cfg.Datatype.Size() == w.cfg.Elem
	for op := Sum; op < Ops; op++ {
		if w.kernels[op] != nil && (!typed || !atomics.Combines(fabricOps[op], w.cfg.Datatype)) {
			return false
		}
	}
	return w.cfg.Elem == 4 || w.cfg.Elem == 8
}

// mapPart maps the board of a rank, and its part, which is not nil then; of both
// nil is what cannot be.
func (w *Window) mapPart(t *target) (boardMem, part []byte) {
	if t.rank == w.rank {
		if w.own.board != nil && (t.part.Flags&partMemory != 0 || len(w.targets) == 1) {
			part = w.Local()
			if part == nil {
				part = []byte{}
			}
		}
		return w.own.board, part
	}
	ctx := w.cfg.Ctx
	if t.part.Flags&partBoard == 0 || !ctx.SharesMemory(t.rank) {
		return nil, nil
	}
	mem, err := ctx.MapShared(t.rank, t.part.Board)
	if err != nil {
		return nil, nil
	}
	t.maps[0] = mem
	if len(mem) < boardSize(len(w.targets)) || !atomics.Aligned(mem, boardAlign) {
		return nil, nil
	}
	boardMem = mem
	if t.part.Flags&partMemory == 0 || t.part.Size == 0 {
		if t.part.Flags&partMemory != 0 {
			part = []byte{}
		}
		return boardMem, part
	}
	if mem, err = ctx.MapShared(t.rank, t.part.Key); err != nil {
		return boardMem, nil
	}
	t.maps[1] = mem
	if off, size := t.part.Offset, t.part.Size; off <= len(mem) && size <= len(mem)-off {
		part = mem[off : off+size : off+size]
	}
	return boardMem, part
}

// Mapped is a rank's part where it is mapped here, until Close; ok is false
// where it is not. It is this rank's own part in any case.
func (w *Window) Mapped(rank int) (part []byte, ok bool) {
	w.port.Lock()
	defer w.port.Unlock()
	switch {
	case rank < 0 || rank >= len(w.targets) || w.closed:
		return nil, false
	case rank == w.rank:
		return w.local, true
	}
	t := &w.targets[rank]
	return t.mapped, t.near
}

var errLeft = fmt.Errorf("%w: the window is being freed", engine.ErrClosed)

// Leave says to the ranks that share memory with this one that it will not touch
// theirs any more. Operations, locks and Start are refused from now on. To be
// called when all operations are complete, and before the barrier that precedes
// Close. It may be called again.
func (w *Window) Leave() {
	w.port.Lock()
	defer w.port.Unlock()
	if w.left {
		return
	}
	w.left = true
	w.lookAll()
	w.gate.shut()
	if w.port.Defunct() {
		return // others know it of this rank, and what was mapped may be gone
	}
	for i := range w.targets {
		if t := &w.targets[i]; i != w.rank && t.board.boardHead != nil {
			t.board.stands[w.rank].Store(standLeft)
		}
	}
}

// unmap gives up what is mapped of others.
func (w *Window) unmap() error {
	var err error
	for i := range w.targets {
		t := &w.targets[i]
		w.port.Lock()
		maps := t.maps
		t.near, t.mapped, t.board, t.maps = false, nil, board{}, [2][]byte{}
		w.port.Unlock()
		for _, mem := range maps {
			if mem != nil {
				err = errors.Join(err, w.cfg.Ctx.UnmapShared(mem))
			}
		}
	}
	return err
}

// release gives this rank's own memory back, when no other touches it.
func (w *Window) release() error {
	x := remain{port: w.port, ctx: w.cfg.Ctx, rank: w.rank, own: w.own}
	if w.own.boardRegion != nil && !w.own.alone {
		x.board = boardOf(w.own.board, w.port.Size())
	}
	return w.cfg.Remains.add(x)
}

// Remains is memory of windows that were closed while some rank may still have
// been using them: after a failure, or where a window was revoked. It is given
// back when those ranks have left or ended, which is looked for when windows are
// made and closed, or else with the engine. It may be used by any goroutine.
type Remains struct {
	mu   sync.Mutex
	list []remain // guarded by mu
}

// remain is what remains of a window.
type remain struct {
	port  *engine.Port
	ctx   *engine.Context
	rank  int
	own   shared
	board board // without memory: nobody has mapped anything
}

// add takes what remains of a window, and gives it back at once if it can.
func (r *Remains) add(x remain) error {
	r.mu.Lock()
	r.list = append(r.list, x)
	r.mu.Unlock()
	return r.Sweep()
}

// Sweep gives back what nobody uses any more.
func (r *Remains) Sweep() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	kept := r.list[:0]
	for i := range r.list {
		x := &r.list[i]
		if !x.drop() {
			kept = append(kept, *x)
			continue
		}
		for _, mr := range [...]transport.MemoryRegion{x.own.region, x.own.boardRegion} {
			if mr != nil {
				err = errors.Join(err, x.ctx.FreeShared(mr))
			}
		}
	}
	clear(r.list[len(kept):])
	r.list = kept
	return err
}

// drop lets go of the part if no other rank touches it any more.
func (x *remain) drop() bool {
	x.port.Lock()
	defer x.port.Unlock()
	if !x.port.Defunct() && x.board.boardHead != nil {
		for i := range x.board.stands {
			if i != x.rank && x.ctx.SharesMemory(i) && x.board.stand(i) != standLeft && !x.port.Gone(i) {
				return false
			}
		}
	}
	x.port.Drop(x.own.hold)
	return true
}
