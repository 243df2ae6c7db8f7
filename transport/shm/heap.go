//go:build linux && !portable

package shm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// The shared heap
//
// Each rank has a part of the memory file, its heap, from which its Alloc takes extents. A
// directory in the rank's table tells peers where the extents are:
//
//	heap of a rank  ┌────────┬──────┬─────────────┬───────────────────────┐
//	                │ extent │ free │ extent      │ free                  │ 1 TiB, sparse
//	                └────────┴──────┴─────────────┴───────────────────────┘
//	entry  ┌─────────┬────────┬──────┬───┐
//	       │ key     │ offset │ size │ – │   4 words, 32 bytes
//	       └─────────┴────────┴──────┴───┘
//	key    63 62 61          11 10     0
//	       ┌─┬──┬──────────────┬────────┐
//	       │1│ 1│ random       │ slot   │
//	       └─┴──┴──────────────┴────────┘
//	        bit 63: keyValid; bit 62: keyShared, the extent lies in the heap
//
// Only the owner writes entries. It stores an entry's key last and removes the key first, and
// the random bits make it very unlikely that two extents get the same key. So the key is the
// entry's sequence word: a reader that finds the same key before and after it reads the other
// words has read the words of one extent. Before a peer writes by Write, it publishes the key
// in its hazard line, as described in mr.go. So no such write is under way when Close of the
// region returns. Close does not wait for accesses by peers to memory that Map returned.
//
// The owner maps each extent separately, and unmaps it when it frees the extent. A peer maps
// the heap in windows of 1 GiB or a multiple, which stay mapped until the peer closes its
// domain. So all memory that a peer touches lies in the file, regardless of an entry's words,
// and no process can truncate the file. After a free, a peer may find zeros there, or a later
// extent, but its access never faults.
//
// Alloc gives an extent all its pages, so a lack of memory is an error of Alloc. Close of the
// region frees the pages, unless a disconnected peer may still use them.

const (
	dirBits    = 11
	dirEntries = 1 << dirBits
	heapKey    = uint64(keyValid | keyShared)

	fillMost = 64 << 20 // largest number of bytes of one fallocate(2)
	// Each signal that interrupts fallocate(2) halves the number of bytes of the calls that
	// follow, but not below fillLeast.
	fillLeast = 1 << 20
)

// dirEntry describes an extent to peers.
type dirEntry struct {
	key  atomic.Uint64 // 0: the entry describes no extent
	at   atomic.Uint64 // offset in bytes from the heap's beginning, a multiple of pageSize
	size atomic.Uint64 // the number of bytes that the caller of Alloc asked for
	_    uint64
}

// heap is the domain's state of the shared heap: its own part, and what it has mapped of
// other ranks' parts.
type heap struct {
	free      extents // the free parts of this rank's heap
	highWater int64   // this rank's heap has never been used from this offset on
	// slots has dirEntries entries, by index in the directory. The entry of a free index is nil.
	// slots is nil before the first Alloc.
	slots []*heapRegion
	next  int           // the index in slots from which Alloc looks for a free one
	keys  *rand.ChaCha8 // random bits of keys
	views []heapView    // by local rank; nil before the first Map
}

// heapRegion is the memory region of an extent of this rank.
type heapRegion struct {
	d    *domain // nil after Close of the region or the domain
	slot int     // index in the directory
	key  uint64
	extent
	mem     []byte // the mapping; nil after it was unmapped
	lasting bool   // the memory stays valid after the domain's Close
}

// heapView holds the windows that are mapped of one rank's heap.
type heapView struct {
	// windows has, by offset / windowSize, the mapping that begins at the offset, or nil. The
	// mapping may be longer than windowSize.
	windows [][]byte
	old     [][]byte // mappings that were replaced by longer ones; slices of them may still be in use
	// known is indexed like the peer's directory. An entry is the zero value if this rank has not
	// mapped that extent.
	known []known
}

// known is an extent of a peer that this rank has mapped. mem stays mapped, but holds the extent
// only while the peer's directory has the key.
type known struct {
	key uint64
	mem []byte
}

// initHeap prepares the heap. join calls it after it has mapped the segment and before it
// announces this rank.
func (d *domain) initHeap() {
	d.heap.free = extents{{0, heapSize}}
	d.heap.keys = newKeys()
}

// closeHeap unmaps this rank's extents, except lasting ones, and the windows of other heaps.
// Close calls it. closeHeap does not free the pages in the file, because peers that have not
// yet noticed the end of this rank may still read them.
func (d *domain) closeHeap() {
	if d.seg == nil {
		return
	}
	for _, s := range d.heap.slots {
		if s == nil {
			continue
		}
		d.unpublish(s)
		s.d = nil
		if !s.lasting {
			s.release()
		}
	}
	d.heap.slots = nil
	for i := range d.heap.views {
		v := &d.heap.views[i]
		for _, mem := range append(v.windows, v.old...) {
			if mem != nil {
				_ = unmapFile(mem) // it cannot fail for a mapping
			}
		}
	}
	d.heap.views = nil
}

func (d *domain) entry(local, slot int) *dirEntry {
	return &view[dirEntry](d.seg.directory(local))[slot]
}

// Alloc allocates an extent of this rank's heap.
func (d *domain) Alloc(n int) ([]byte, transport.MemoryRegion, error) { return d.allocate(n, false) }

// AllocLasting allocates an extent that stays valid until the region is closed, even after
// the domain's Close.
func (d *domain) AllocLasting(n int) ([]byte, transport.MemoryRegion, error) {
	return d.allocate(n, true)
}

func (d *domain) allocate(n int, lasting bool) ([]byte, transport.MemoryRegion, error) {
	switch {
	case d.closed:
		return nil, nil, fmt.Errorf("shm: allocate %d bytes: %w", n, transport.ErrClosed)
	case n <= 0:
		return nil, nil, fmt.Errorf("shm: allocate %d bytes: %w", n, transport.ErrBounds)
	case d.seg == nil:
		return nil, nil, fmt.Errorf("shm: allocate %d bytes before all addresses are inserted: %w", n, transport.ErrNotSupported)
	}
	s, err := d.alloc(int64(n))
	if err != nil {
		return nil, nil, fmt.Errorf("shm: allocate %d bytes: %w", n, err)
	}
	s.lasting = lasting
	return s.mem[:n:n], s, nil
}

func (d *domain) alloc(n int64) (*heapRegion, error) {
	h := &d.heap
	if h.slots == nil {
		h.slots = make([]*heapRegion, dirEntries)
	}
	slot, ok := h.slot()
	if !ok {
		return nil, fmt.Errorf("%w: a rank can have at most %d regions of shared memory", transport.ErrAgain, dirEntries)
	}
	page := max(pageSize, int64(os.Getpagesize()))
	align := page
	if n >= heapAlign {
		align = heapAlign
	}
	if n > heapSize {
		return nil, unix.ENOMEM
	}
	x := extent{n: roundUp(n, page)}
	if x.at, ok = h.free.take(x.n, align); !ok {
		return nil, unix.ENOMEM
	}
	mem, err := d.populate(x)
	if err != nil {
		h.free.give(x)
		return nil, err
	}
	s := &heapRegion{d: d, slot: slot, extent: x, mem: mem}
	s.key = heapKey | h.keys.Uint64()>>(64-62+dirBits)<<dirBits | uint64(slot)
	h.slots[slot] = s
	e := d.entry(d.self, slot)
	e.at.Store(uint64(x.at))
	e.size.Store(uint64(n))
	e.key.Store(s.key)
	return s, nil
}

// slot returns the index of a free slot, or false if there is none.
func (h *heap) slot() (int, bool) {
	for range dirEntries {
		slot := h.next
		h.next = (h.next + 1) % dirEntries
		if h.slots[slot] == nil {
			return slot, true
		}
	}
	return 0, false
}

// populate maps an extent and allocates its pages, all zero.
func (d *domain) populate(x extent) (mem []byte, err error) {
	h := &d.heap
	if x.at < h.highWater {
		d.punch(x) // a peer may have written to it after it was freed
	}
	h.highWater = max(h.highWater, x.end())
	at := d.seg.heap(d.self) + x.at
	if err = d.fill(at, x.n); err == nil {
		mem, err = d.seg.mapFile(at, int(x.n))
	}
	if err != nil {
		d.punch(x)
		return nil, err
	}
	if x.n >= heapAlign {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // advice only: the system may not have huge pages
	}
	return mem, nil
}

// fill allocates the pages of n bytes of the file from offset at, in steps. Before each step for
// which heapAlign or more bytes are left, it returns ENOMEM if the available memory is less than
// these bytes.
func (d *domain) fill(at, n int64) error {
	step := int64(fillMost)
	for n > 0 {
		if n >= heapAlign && memoryLeft("/") < n {
			return unix.ENOMEM
		}
		now := min(step, n)
		switch err := unix.Fallocate(int(d.seg.file.Fd()), 0, at, now); {
		case err == nil:
			at, n = at+now, n-now
		case errors.Is(err, unix.EINTR):
			// The kernel has undone the call. A smaller step may succeed between two signals.
			step = max(step/2, fillLeast)
		default:
			return err
		}
	}
	return nil
}

// punch frees the pages of an extent. Reads of them return zeros.
func (d *domain) punch(x extent) {
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	for errors.Is(unix.Fallocate(int(d.seg.file.Fd()), mode, d.seg.heap(d.self)+x.at, x.n), unix.EINTR) {
	}
}

// Key returns the extent's key.
func (s *heapRegion) Key() uint64 { return s.key }

// Base returns 0.
func (s *heapRegion) Base() uint64 { return 0 }

// Close frees the extent. It waits for peers that are writing to it by Write: up to some tens of
// microseconds if they run. While the process of a disconnected peer may still run, Close only
// unmaps the extent, and this rank does not use that part of the heap again. After the domain's
// Close, Close only unmaps the memory of AllocLasting.
func (s *heapRegion) Close() error {
	if s.mem == nil {
		return nil
	}
	d := s.d
	if d != nil {
		d.unpublish(s)
	}
	s.release()
	if d == nil { // the domain is closed
		return nil
	}
	d.heap.slots[s.slot], s.d = nil, nil
	if d.disconnectedPeerRuns() {
		return nil
	}
	d.punch(s.extent)
	d.heap.free.give(s.extent)
	return nil
}

// disconnectedPeerRuns reports whether the process of a peer for which Disconnect was called may
// still run. Such a process may store to memory that it has mapped.
func (d *domain) disconnectedPeerRuns() bool {
	for _, p := range d.locals {
		if p != nil && p.disconnected && d.mayRun(p) {
			return true
		}
	}
	return false
}

// mayRun reports whether a thread of the process of a peer may still run. If this rank cannot use the peer's
// process id, mayRun assumes that the threads have ended once exitGrace has passed since it first found
// that the peer has ended.
func (d *domain) mayRun(p *peer) bool {
	switch {
	case p.pid != 0 && d.direct(p):
		return !d.vanished(p)
	case !p.ended():
		return true
	case p.endSeen.IsZero():
		p.endSeen = time.Now()
	}
	return time.Since(p.endSeen) < exitGrace
}

// unpublish removes an extent from the directory. When it returns, no transfer of a peer
// writes to the extent any more.
func (d *domain) unpublish(s *heapRegion) {
	d.entry(d.self, s.slot).key.Swap(0)
	d.awaitWriters(s.key)
}

// release unmaps the extent.
func (s *heapRegion) release() {
	_ = unmapFile(s.mem) // it cannot fail for a mapping
	s.mem = nil
}

// Map returns the memory of the extent of rank to with the given key. The memory stays mapped until
// the domain is closed.
func (d *domain) Map(to transport.Addr, key uint64) ([]byte, error) {
	if d.closed {
		return nil, transport.ErrClosed
	}
	if to < 0 || int(to) >= len(d.peers) {
		return nil, &transport.Error{Provider: name, Op: "map", Peer: to, Err: transport.ErrAddress}
	}
	p := d.peer(to)
	if p == nil || d.seg == nil {
		return nil, &transport.Error{Provider: name, Op: "map", Peer: to, Err: transport.ErrPeerDown}
	}
	mem, err := d.mapRegion(p, key)
	if err != nil {
		return nil, &transport.Error{Provider: name, Op: "map", Peer: to, Err: err}
	}
	return mem, nil
}

// Unmap does nothing: the window stays mapped, because it may hold other extents.
func (d *domain) Unmap([]byte) error { return nil }

// mapRange returns n bytes at offset addr of the peer's extent with the given key. The bytes stay
// mapped until the domain is closed. If the peer has no such extent, mapRange returns ErrKey; if
// the bytes are not all in the extent, ErrBounds.
//
// Hot path: no allocation and no system call, except at the first use of a region.
func (d *domain) mapRange(p *peer, key, addr uint64, n int) ([]byte, error) {
	mem, err := d.mapRegion(p, key)
	switch {
	case err != nil:
		return nil, err
	case addr > uint64(len(mem)) || uint64(n) > uint64(len(mem))-addr:
		return nil, transport.ErrBounds
	}
	return mem[addr : addr+uint64(n) : addr+uint64(n)], nil
}

// mapRegion returns the memory of the peer's extent with the given key, and maps it at its first
// use. If the peer has no such extent or has freed it, mapRegion returns ErrKey; if the directory
// has an impossible entry, a protocol error.
func (d *domain) mapRegion(p *peer, key uint64) ([]byte, error) {
	if key&heapKey != heapKey {
		return nil, transport.ErrKey
	}
	slot := int(key % dirEntries)
	e := d.entry(p.local, slot)
	if e.key.Load() != key {
		return nil, transport.ErrKey
	}
	if d.heap.views == nil {
		d.heap.views = make([]heapView, d.seg.n)
	}
	v := &d.heap.views[p.local]
	if slot < len(v.known) && v.known[slot].key == key {
		return v.known[slot].mem, nil
	}
	at, size := e.at.Load(), e.size.Load()
	if e.key.Load() != key {
		return nil, transport.ErrKey
	}
	if at%pageSize != 0 || at >= heapSize || size == 0 || size > heapSize-at {
		return nil, fmt.Errorf("a region of %d bytes at offset %d of its heap: %w", size, at, transport.ErrProtocol)
	}
	mem, err := d.window(p.local, int64(at), int64(size))
	if err != nil {
		return nil, err
	}
	for len(v.known) <= slot {
		v.known = append(v.known, known{})
	}
	v.known[slot] = known{key, mem}
	return mem, nil
}

// window returns n bytes at offset at of the heap of a local rank. Unless they are mapped, it maps
// them in whole windows.
func (d *domain) window(local int, at, n int64) ([]byte, error) {
	v := &d.heap.views[local]
	number := int(at / windowSize)
	for len(v.windows) <= number {
		v.windows = append(v.windows, nil)
	}
	from := at % windowSize
	if w := v.windows[number]; int64(len(w)) < from+n {
		mem, err := d.seg.mapFile(d.seg.heap(local)+at-from, int(roundUp(from+n, windowSize)))
		if err != nil {
			return nil, err
		}
		_ = unix.Madvise(mem, unix.MADV_DONTDUMP) // else a core dump would be as large as the windows
		if w != nil {
			v.old = append(v.old, w)
		}
		v.windows[number] = mem
	}
	return v.windows[number][from : from+n : from+n], nil
}
