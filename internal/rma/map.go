package rma

import (
	"errors"
	"fmt"
	"sync"

	"github.com/weft-hpc/weft/internal/atomics"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport"
)

// The shared memory of a window, and its lifetime
//
//	New       allocates the lock table, and the part unless the user provides it
//	Connect   maps those of the ranks that share memory with this one
//	Leave     records in the mapped lock tables that this rank accesses the mapped memory no more
//	          (a barrier of the caller)
//	Close     unmaps them, and frees this rank's own memory once all ranks have left it.
//	          After the barrier they have; otherwise DeferredFrees frees it later
//
// It is not an error if a rank cannot allocate or map memory; Connect reports that in its result,
// of which all ranks compute the AND for Settle. A rank that has not mapped the lock table of
// another rank could not record there that it has left. So if a rank lacks the lock table of a rank
// that shares memory with it, the window uses no shared memory at all. If only a part is missing,
// ranks access that part in another way.

// Reach is a set of bits that say what memory of the window a rank can access by loads and stores.
type Reach uint8

// The bits of Reach.
const (
	reachHost       Reach = 1 << iota // the lock table of every rank that shares memory with the rank
	reachLockTables                   // every rank's lock table
	reachParts                        // every rank's part
	reachWords                        // together with reachParts: accumulates can use the processor's atomics
)

// shared is this rank's memory that others may map.
type shared struct {
	region transport.MemoryRegion // of the part; nil: New has not allocated it in shared memory
	// Span of the engine's Alloc that contains the part, held so that it stays mapped; nil: no span
	// contains it.
	hold            *engine.Span
	lockTableRegion transport.MemoryRegion // of the lock table; nil: the lock table is not in shared memory
	lockTable       []byte                 // nil: there is none
	unshared        bool                   // no other rank has mapped or will map any of it
	// This rank has returned from Connect, so another rank may have returned from Settle and use the part.
	// Settle clears it if all ranks get ErrShared.
	connected bool
}

// allocate allocates this rank's lock table, and its part if Config.Alloc asks for it.
func (w *Window) allocate() {
	ctx, n := w.cfg.Ctx, w.port.Size()
	if w.cfg.DeferredFrees == nil {
		w.cfg.DeferredFrees = new(DeferredFrees)
	}
	_ = w.cfg.DeferredFrees.Sweep() // ignore errors, which concern other windows
	w.own.unshared = true
	all := true // all ranks share memory with this one
	for i := range n {
		switch {
		case i == w.port.Rank():
		case ctx.SharesMemory(i):
			w.own.unshared = false
		default:
			all = false
		}
	}
	if !w.own.unshared {
		if mem, mr, err := ctx.AllocShared(lockTableSize(n)); err == nil {
			w.own.lockTable, w.own.lockTableRegion = mem, mr
		}
	}
	size := w.cfg.Alloc
	if w.cfg.Contiguous {
		if size = w.cfg.Total; w.port.Rank() != 0 || !all {
			size = 0
		}
	}
	switch {
	case size <= 0:
	case w.own.lockTableRegion != nil:
		mem, mr, err := ctx.AllocShared(size)
		if err == nil {
			w.local, w.own.region = mem, mr
			break
		}
		fallthrough
	default:
		if w.cfg.Contiguous && n > 1 {
			break // other ranks could not map private memory, so Settle returns ErrShared
		}
		w.local = alignedBytes(size)
	}
	if n == 1 {
		w.own.lockTable = alignedBytes(lockTableSize(1))
	}
}

// Local returns this rank's part; nil after Close.
func (w *Window) Local() []byte {
	w.port.Lock()
	defer w.port.Unlock()
	return w.local
}

// describe sets the fields of part that describe the memory of this rank that others can map. It
// also sets own.hold.
func (w *Window) describe(part *Part) {
	w.own.hold = w.port.Hold(w.local)
	if w.own.lockTableRegion == nil {
		return
	}
	part.LockTable = w.own.lockTableRegion.Key()
	part.Flags = partLockTable
	switch {
	case w.own.region != nil:
		part.Key = w.own.region.Key()
	case len(w.local) > 0:
		key, off, ok := w.port.Region(w.own.hold, w.local)
		if !ok {
			return
		}
		part.Key, part.Offset = key, off
	case w.cfg.Contiguous && w.rank == 0 && w.cfg.Total > 0: // allocate could not get the memory
		return
	}
	if w.cfg.Contiguous {
		part.Offset = w.cfg.Offset
	}
	part.Flags |= partMemory
}

// joinParts maps the memory of the parts of a window with Config.Contiguous, and sets this rank's
// part.
func (w *Window) joinParts() {
	owner := &w.targets[0]
	if w.rank != 0 && owner.part.Flags&partMemory != 0 && w.cfg.Total > 0 {
		mem, err := w.cfg.Ctx.MapShared(0, owner.part.Key)
		if err != nil || len(mem) < w.cfg.Total {
			return // mapPart finds no part, so Settle fails on all ranks
		}
		owner.maps[1], w.joint = mem, mem[:w.cfg.Total:w.cfg.Total]
	}
	if part, ok := w.jointPart(w.rank); ok {
		w.local = part
	}
}

// jointPart returns the part of a rank in the memory of all parts.
func (w *Window) jointPart(rank int) (part []byte, ok bool) {
	p := &w.targets[rank].part
	if p.Offset > len(w.joint) || p.Size > len(w.joint)-p.Offset {
		return nil, false
	}
	if p.Size == 0 {
		return []byte{}, true
	}
	return w.joint[p.Offset : p.Offset+p.Size : p.Offset+p.Size], true
}

// Joint returns the parts of all ranks as one slice, if Config.Contiguous; otherwise nil. The slice is
// valid until Close.
func (w *Window) Joint() []byte {
	w.port.Lock()
	defer w.port.Unlock()
	return w.joint
}

// allShareMemory reports whether all ranks that a rail leads to share memory with this one.
func (w *Window) allShareMemory(rail int) bool {
	for i := range w.targets {
		if w.targets[i].rail == rail && !w.cfg.Ctx.SharesMemory(i) {
			return false
		}
	}
	return true
}

// mapParts maps the lock tables and parts of other ranks that can be mapped, and returns what this
// rank can access.
func (w *Window) mapParts() Reach {
	all := reachHost | reachLockTables | reachParts
	if w.elemsAreWords() {
		all |= reachWords
	}
	for i := range w.targets {
		t := &w.targets[i]
		tableMem, mapped := w.mapPart(t)
		w.port.Lock()
		if tableMem != nil {
			t.lockTable = lockTableOf(tableMem, len(w.targets))
		} else {
			all &^= reachLockTables
			if t.rank == w.rank && !w.own.unshared || t.rank != w.rank && w.cfg.Ctx.SharesMemory(t.rank) {
				all &^= reachHost
			}
		}
		if w.cfg.Dynamic {
			t.table, mapped = mapped, mapped[:0]
			t.part.Size = 0
		}
		if mapped != nil {
			t.isMapped, t.mapped = true, mapped
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

// elemsAreWords reports whether elements have 4 or 8 bytes, and package atomics has all operations
// that are defined for them.
func (w *Window) elemsAreWords() bool {
	typed := w.cfg.HasType && w.cfg.Datatype.Size() == w.cfg.Elem
	for op := Sum; op < Ops; op++ {
		if w.kernels[op] != nil && (!typed || !atomics.Combines(fabricOps[op], w.cfg.Datatype)) {
			return false
		}
	}
	return w.cfg.Elem == 4 || w.cfg.Elem == 8
}

// mapPart maps the lock table and the part of a rank. For memory that it cannot map it returns nil.
// A mapped part is not nil, even if it is empty.
func (w *Window) mapPart(t *target) (tableMem, part []byte) {
	if t.rank == w.rank {
		if w.own.lockTable != nil && (t.part.Flags&partMemory != 0 || len(w.targets) == 1) {
			if part = w.Local(); w.cfg.Dynamic {
				part = w.attached.table
			}
			if part == nil {
				part = []byte{}
			}
		}
		return w.own.lockTable, part
	}
	ctx := w.cfg.Ctx
	if t.part.Flags&partLockTable == 0 || !ctx.SharesMemory(t.rank) {
		return nil, nil
	}
	mem, err := ctx.MapShared(t.rank, t.part.LockTable)
	if err != nil {
		return nil, nil
	}
	t.maps[0] = mem
	if len(mem) < lockTableSize(len(w.targets)) || !atomics.Aligned(mem, lockTableAlign) {
		return nil, nil
	}
	tableMem = mem
	if w.cfg.Contiguous {
		part, _ = w.jointPart(t.rank)
		return tableMem, part
	}
	if t.part.Flags&partMemory == 0 || t.part.Size == 0 {
		if t.part.Flags&partMemory != 0 {
			part = []byte{}
		}
		return tableMem, part
	}
	if mem, err = ctx.MapShared(t.rank, t.part.Key); err != nil {
		return tableMem, nil
	}
	t.maps[1] = mem
	if off, size := t.part.Offset, t.part.Size; off <= len(mem) && size <= len(mem)-off {
		part = mem[off : off+size : off+size]
	}
	return tableMem, part
}

// Mapped returns a rank's part, if it is mapped here, and whether it is. The slice is valid until
// Close. For this rank itself, Mapped returns the rank's own part until Close, also if it is not in
// shared memory.
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
	return t.mapped, t.isMapped
}

var errLeft = fmt.Errorf("%w: the window is being freed", engine.ErrClosed)

// Leave informs the ranks that share memory with this one that it does not access their memory any
// more. After Leave, operations, Lock, LockAll and Start return an error. The caller calls Leave
// when all its operations are complete, before the barrier that precedes Close. Leave may be called
// again.
func (w *Window) Leave() {
	w.port.Lock()
	defer w.port.Unlock()
	if w.left {
		return
	}
	w.left = true
	w.updateAllFlags()
	w.gate.close()
	if w.port.Defunct() {
		return // others know that this rank has ended, and the mappings may be gone
	}
	for i := range w.targets {
		if t := &w.targets[i]; i != w.rank && t.lockTable.lockTableHead != nil {
			t.lockTable.states[w.rank].Store(stateLeft)
		}
	}
}

// unmap unmaps the memory of other ranks.
func (w *Window) unmap() error {
	var err error
	for _, mem := range w.forget() {
		err = errors.Join(err, w.cfg.Ctx.UnmapShared(mem))
	}
	for i := range w.targets {
		t := &w.targets[i]
		w.port.Lock()
		maps := t.maps
		t.isMapped, t.mapped, t.lockTable, t.table, t.maps = false, nil, lockTable{}, nil, [2][]byte{}
		w.port.Unlock()
		for _, mem := range maps {
			if mem != nil {
				err = errors.Join(err, w.cfg.Ctx.UnmapShared(mem))
			}
		}
	}
	return err
}

// freeOwn frees this rank's own memory, now or when no other rank accesses it any more. If the creation of
// the window failed before Connect returned on this rank, no rank accesses the part, so freeOwn frees the
// part now. Only the lock table waits until the other ranks have left.
func (w *Window) freeOwn() error {
	var err error
	if !w.own.connected {
		w.port.Lock()
		w.port.Drop(w.own.hold)
		w.port.Unlock()
		if w.own.region != nil {
			err = w.cfg.Ctx.FreeShared(w.own.region)
		}
		w.own.hold, w.own.region = nil, nil
	}
	x := deferredFree{port: w.port, ctx: w.cfg.Ctx, rank: w.rank, own: w.own}
	if w.own.lockTableRegion != nil && !w.own.unshared {
		x.lockTable = lockTableOf(w.own.lockTable, w.port.Size())
	}
	return errors.Join(err, w.cfg.DeferredFrees.add(x))
}

// DeferredFrees holds memory of closed windows that some ranks may still use, after a failure or a
// revocation. The memory is freed when those ranks have left or ended. Creating and closing windows
// checks for that; otherwise the end of the engine frees it. DeferredFrees is safe for concurrent
// use.
type DeferredFrees struct {
	mu   sync.Mutex
	list []deferredFree // guarded by mu
}

// deferredFree is the memory of one closed window.
type deferredFree struct {
	port      *engine.Port
	ctx       *engine.Context
	rank      int // of this process in the window's group
	own       shared
	lockTable lockTable // its zero value: no other rank has mapped anything
}

// add adds the memory of a window, and frees it at once if possible.
func (r *DeferredFrees) add(x deferredFree) error {
	r.mu.Lock()
	r.list = append(r.list, x)
	r.mu.Unlock()
	return r.Sweep()
}

// Sweep frees the memory that no other rank uses any more.
func (r *DeferredFrees) Sweep() error {
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
		for _, mr := range [...]transport.MemoryRegion{x.own.region, x.own.lockTableRegion} {
			if mr != nil {
				err = errors.Join(err, x.ctx.FreeShared(mr))
			}
		}
	}
	clear(r.list[len(kept):])
	r.list = kept
	return err
}

// If no other rank accesses the memory any more, drop releases the hold of the part and returns
// true. Otherwise it returns false.
func (x *deferredFree) drop() bool {
	x.port.Lock()
	defer x.port.Unlock()
	if !x.port.Defunct() && x.lockTable.lockTableHead != nil {
		for i := range x.lockTable.states {
			if i != x.rank && x.ctx.SharesMemory(i) && x.lockTable.state(i) != stateLeft && !x.port.Gone(i) {
				return false
			}
		}
	}
	x.port.Drop(x.own.hold)
	return true
}
