package rma

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/atomics"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/transport"
)

// Dynamic windows
//
//	owner                                          origin
//	Attach ──► Region ─── in any message ────────► Put, Get, … of an Access with the Region
//	  │ table[slot] = id                              │ the owner's table is mapped here:
//	  │                                               │ table[slot] ≠ id is an error
//	  │                                               ├─ memory mapped: loads and stores
//	  │                                               ├─ memory registered: RMA
//	Detach                                            └─ else: messages, which name the id
//	  │ table[slot] = 0
//	  └ registrations end
//
// A dynamic window has no parts. Instead of a part, each rank has a table of words, which the ranks
// of its host map. Each attached region has a slot in the table: a word with the id of the region.
// The word of a free slot is 0. An id never occurs twice in a window, so the id shows that a Region
// is stale: the origin looks at the table, or the owner checks the id when it gets a message. Over
// RMA the key of a detached region is invalid, because Attach registers each region separately,
// even if it is memory that the engine has registered as part of a span. If a transport does not
// report the use of an invalid key (CapKeyCheck), regions use messages.
//
// All accumulates to a region use one method, which the owner chooses: loads and stores if all
// ranks can map the memory, the fabric's atomics, or messages.

const (
	slotBits   = 15
	maxRegions = 1 << slotBits // maximum number of regions that a rank has attached at one time
	tableBytes = 8 * maxRegions
)

// ErrAttach is the error of memory that cannot be attached to a window or detached from it.
var ErrAttach = errors.New("memory cannot be attached or detached")

var (
	errDetached = fmt.Errorf("%w: the region is not attached", ErrRange)
	errSeal     = fmt.Errorf("%w: not a region of this window", ErrRange)
	errUnmapped = fmt.Errorf("%w: this rank cannot map the region", transport.ErrNotSupported)
)

// Region describes memory that a rank has attached to a dynamic window. It holds no pointers: other
// ranks get its bytes in any way. The zero Region is invalid.
type Region struct {
	id     uint64 // number of the attachment << slotBits | slot; never 0 in a valid Region
	size   uint64 // bytes
	key    uint64 // of the shared memory that contains the region, if regionMapped
	offset uint64 // of the region in that memory, in bytes
	rank   uint32 // the owner
	direct uint16 // bit r: the region is registered with rail r
	flags  uint16
	keys   remoteKeys
	seal   uint64 // checksum of the other fields, with a key of the window
}

// The bits of Region.flags.
const (
	regionMapped = 1 << iota // ranks that share memory with the owner can map the region
	regionLocal              // accumulates are loads and stores, because all ranks can map the region
	regionWords              // with regionLocal: they use the processor's atomics
	regionNative             // accumulates can use the fabric's atomics
)

// Rank returns the rank that has attached the region.
func (r *Region) Rank() int { return int(r.rank) }

// Size returns the number of bytes of the region.
func (r *Region) Size() int { return int(r.size) }

func (r *Region) slot() int { return int(r.id % maxRegions) }

// sum returns the seal of r. A wrong seal shows that a Region is damaged or belongs to another
// window. The seal does not protect against a malicious rank, which can write to the memory of the
// region anyway.
func (r *Region) sum(key uint64) uint64 {
	h := key
	mix := func(v uint64) {
		h = (h ^ v) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	for _, v := range [...]uint64{r.id, r.size, r.key, r.offset, uint64(r.rank)<<32 | uint64(r.direct)<<16 | uint64(r.flags)} {
		mix(v)
	}
	for _, k := range r.keys {
		mix(k.Key)
		mix(k.Base)
	}
	return h
}

// attachment is memory that this rank has attached. The engine's lock guards it.
type attachment struct {
	id     uint64 // of the current or last Region of the slot
	used   bool   // the slot has a region now
	mem    []byte
	hold   *engine.Span
	memory [maxRails]engine.Memory
}

// attachments are the regions of this rank. The engine's lock guards them.
type attachments struct {
	table  []byte // the words of the slots; nil: the window is not dynamic
	slots  []attachment
	free   []int // slots without a region
	sorted []int // slots whose regions are not empty, by address
}

// Attach permits other ranks to access buf, until Detach (MPI_Win_attach). buf must not share
// memory with another attached region of this rank. Attach does not communicate. It returns
// ErrAttach if the window is not dynamic, or buf cannot be attached.
func (w *Window) Attach(buf []byte) (Region, error) {
	w.port.Lock()
	defer w.port.Unlock()
	a := &w.attached
	switch err := w.invalid(); {
	case err != nil:
		return Region{}, err
	case a.table == nil:
		return Region{}, fmt.Errorf("%w: the window is not dynamic", ErrAttach)
	case len(buf) > 0 && !atomics.Aligned(buf, w.cfg.Align):
		return Region{}, fmt.Errorf("%w: it is not aligned to an element", ErrAttach)
	}
	at, ok := a.place(buf)
	if !ok {
		return Region{}, fmt.Errorf("%w: part of it is attached already", ErrAttach)
	}
	slot, ok := a.take()
	if !ok {
		return Region{}, fmt.Errorf("%w: this rank has %d regions attached", ErrAttach, maxRegions)
	}
	x := &a.slots[slot]
	x.id, x.used, x.mem = x.id+maxRegions, true, buf
	if len(buf) > 0 {
		a.sorted = slices.Insert(a.sorted, at, slot)
	}
	r := Region{id: x.id, size: uint64(len(buf)), rank: uint32(w.rank)}
	if err := w.expose(&r, slot); err != nil {
		return Region{}, err
	}
	r.seal = r.sum(w.sealKey)
	a.word(slot).Store(x.id)
	return r, nil
}

// expose makes the memory of the attachment of a slot accessible by mappings and RMA, and describes
// that in r. It may release the lock. It returns an error if the window has become invalid meanwhile;
// then Close detaches the region.
func (w *Window) expose(r *Region, slot int) error {
	port := w.port
	x := &w.attached.slots[slot]
	x.hold = port.Hold(x.mem)
	if key, off, ok := port.Region(x.hold, x.mem); ok && w.own.lockTableRegion != nil {
		r.key, r.offset = key, uint64(off)
		r.flags |= regionMapped
	}
	if r.flags&regionMapped != 0 && w.tableLocks || len(w.targets) == 1 {
		r.flags |= regionLocal
		if w.elemsAreWords() && atomics.Aligned(x.mem, w.cfg.Elem) {
			r.flags |= regionWords
		}
	}
	for rail := range min(port.Rails(), maxRails) {
		if !port.Attr(rail).Caps.Has(transport.CapRead|transport.CapWrite|transport.CapKeyCheck) || len(x.mem) == 0 || len(w.targets) == 1 ||
			r.flags&regionMapped != 0 && w.allShareMemory(rail) {
			continue
		}
		m, err := port.RegisterOwn(rail, x.mem, transport.RemoteRead|transport.RemoteWrite)
		x = &w.attached.slots[slot] // another Attach may have moved the slots
		if closed := w.invalid(); closed != nil {
			return errors.Join(closed, port.Deregister(m))
		}
		if err != nil {
			continue // peers use messages then
		}
		x.memory[rail] = m
		r.direct |= 1 << rail
		r.keys[rail].Key, r.keys[rail].Base = m.Key, m.Base
	}
	if r.flags&regionLocal == 0 && w.native && r.direct&(1<<w.nativeRail) != 0 && atomics.Aligned(x.mem, w.cfg.Elem) {
		r.flags |= regionNative
	}
	return nil
}

// Detach ends the access to a region of this rank (MPI_Win_detach). The program makes sure that no
// operation with the region is in progress. Later operations with it fail with ErrRange. Detach
// returns ErrAttach if r is not a region that this rank has attached.
func (w *Window) Detach(r *Region) error {
	w.port.Lock()
	defer w.port.Unlock()
	if err := w.invalid(); err != nil {
		return err
	}
	a := &w.attached
	if a.find(r.id) == nil || int(r.rank) != w.rank || r.seal != r.sum(w.sealKey) {
		return fmt.Errorf("%w: this rank has not attached the region", ErrAttach)
	}
	return w.detach(r.slot())
}

// detach detaches the region of a slot. It may release the lock, after it has freed the slot.
func (w *Window) detach(slot int) error {
	a := &w.attached
	a.word(slot).Store(0)
	x := a.slots[slot]
	if len(x.mem) > 0 {
		at := a.search(addressOf(x.mem))
		a.sorted = slices.Delete(a.sorted, at, at+1)
	}
	a.slots[slot] = attachment{id: x.id}
	a.free = append(a.free, slot)
	var err error
	for i := range x.memory {
		err = errors.Join(err, w.port.Deregister(x.memory[i]))
	}
	w.port.Drop(x.hold)
	return err
}

// detachAll detaches all regions.
func (w *Window) detachAll() error {
	var err error
	for slot := range w.attached.slots {
		if w.attached.slots[slot].used {
			err = errors.Join(err, w.detach(slot))
		}
	}
	return err
}

// word returns the word of a slot.
func (a *attachments) word(slot int) *atomic.Uint64 { return wordOf(a.table, slot) }

// find returns the attachment with an id, or nil if its region is not attached.
func (a *attachments) find(id uint64) *attachment {
	slot := int(id % maxRegions)
	if slot >= len(a.slots) || !a.slots[slot].used || a.slots[slot].id != id {
		return nil
	}
	return &a.slots[slot]
}

// take returns a free slot.
func (a *attachments) take() (slot int, ok bool) {
	if n := len(a.free); n > 0 {
		slot, a.free = a.free[n-1], a.free[:n-1]
		return slot, true
	}
	if len(a.slots) == maxRegions {
		return 0, false
	}
	a.slots = append(a.slots, attachment{id: uint64(len(a.slots))})
	return len(a.slots) - 1, true
}

// place returns the index in sorted at which buf belongs. ok is false if buf shares memory with an
// attached region.
func (a *attachments) place(buf []byte) (at int, ok bool) {
	from := addressOf(buf)
	at = a.search(from)
	switch {
	case len(buf) == 0:
	case at < len(a.sorted) && addressOf(a.slots[a.sorted[at]].mem)-from < uintptr(len(buf)):
		return 0, false
	case at > 0:
		before := a.slots[a.sorted[at-1]].mem
		return at, from-addressOf(before) >= uintptr(len(before))
	}
	return at, true
}

// search returns the index in sorted of the first region that does not begin below an address.
func (a *attachments) search(from uintptr) int {
	at, _ := slices.BinarySearchFunc(a.sorted, from, func(slot int, from uintptr) int {
		return cmp.Compare(addressOf(a.slots[slot].mem), from)
	})
	return at
}

// Remote is what this rank knows about a region of any rank, for an [Access]. It does not change,
// and is valid until the window is closed.
type Remote struct {
	region Region
	mapped []byte         // the memory, if this rank has mapped it; nil: it has not
	word   *atomic.Uint64 // of the owner's table; nil: this rank has not mapped the table
	direct bool           // Put and Get use RMA
	chosen *target        // the owner
}

// live returns an error if this rank sees that the region is not attached any more.
func (x *Remote) live() error {
	if x.word != nil && x.word.Load() != x.region.id {
		return errDetached
	}
	return nil
}

// native reports whether accumulates to the region use the fabric's atomics.
func (x *Remote) native() bool { return x.region.flags&regionNative != 0 }

// Lookup returns the Remote of a region. It returns ErrRange if r is not a Region that a rank of
// the window has made. Lookup does not check that the region is still attached; the operations do.
//
// Hot path: no allocation, and no lock for the region of the last call, except at the first use of
// a region.
func (w *Window) Lookup(r *Region) (*Remote, error) {
	if x := w.lastRemote.Load(); x != nil && x.region == *r {
		return x, nil
	}
	w.remotesMu.Lock()
	defer w.remotesMu.Unlock()
	name := remoteName{r.rank, uint32(r.slot())}
	if x := w.remotes[name]; x != nil && x.region == *r {
		w.lastRemote.Store(x)
		return x, nil
	}
	if w.attached.table == nil || r.seal != r.sum(w.sealKey) || r.id == 0 ||
		r.size > math.MaxInt || r.offset > math.MaxInt || int64(r.rank) >= int64(len(w.targets)) {
		return nil, errSeal
	}
	x := &Remote{region: *r, chosen: &w.targets[r.rank]}
	if err := w.meet(x); err != nil {
		return nil, err
	}
	if w.remotes == nil {
		w.remotes = make(map[remoteName]*Remote)
	}
	// A stale Region must not replace a newer one of the same slot, which is in use.
	if old := w.remotes[name]; old == nil || old.region.id < r.id {
		w.remotes[name] = x
	}
	w.lastRemote.Store(x)
	return x, nil
}

// remoteName names the slot of a rank.
type remoteName struct{ rank, slot uint32 }

// meet finds out how this rank accesses the region of x. The caller holds remotesMu.
func (w *Window) meet(x *Remote) error {
	r, t := &x.region, x.chosen
	w.port.Lock()
	if err := w.invalid(); err != nil {
		w.port.Unlock()
		return err
	}
	if t.isMapped && t.table != nil {
		x.word = wordOf(t.table, r.slot())
	}
	if t.rank == w.rank {
		if own := w.attached.find(r.id); own != nil && t.isMapped && r.flags&(regionMapped|regionLocal) != 0 {
			x.mapped = own.mem
		}
	} else {
		x.direct = t.rail < maxRails && r.direct&(1<<t.rail) != 0 &&
			w.port.Attr(t.rail).Caps.Has(transport.CapRead|transport.CapWrite) && w.port.Reaches(t.rank, r.keys[t.rail].Key)
	}
	w.port.Unlock()
	if r.flags&regionMapped == 0 || x.word == nil || t.rank == w.rank || x.live() != nil {
		return nil
	}
	mem := t.spans[r.key]
	if mem == nil {
		var err error
		if mem, err = w.cfg.Ctx.MapShared(t.rank, r.key); err != nil {
			return nil // RMA and messages remain
		}
		if t.spans == nil {
			t.spans = make(map[uint64][]byte)
		}
		t.spans[r.key] = mem
	}
	if off, size := int(r.offset), int(r.size); off <= len(mem) && size <= len(mem)-off {
		x.mapped = mem[off : off+size : off+size]
	}
	return nil
}

// forget drops all remotes, and returns the memory that they have mapped. The gate is closed.
func (w *Window) forget() (maps [][]byte) {
	w.remotesMu.Lock()
	defer w.remotesMu.Unlock()
	w.lastRemote.Store(nil)
	w.remotes = nil
	for i := range w.targets {
		for _, mem := range w.targets[i].spans {
			maps = append(maps, mem)
		}
		w.targets[i].spans = nil
	}
	return maps
}
