//go:build linux && !portable

package shm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// The shared heap
//
// Each rank has a part of the memory file from which its Alloc cuts extents, and
// a directory in its table that tells peers where they are:
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
//
// Only the owner writes entries. The key is stored last and removed first, and
// no two extents ever have the same, so it is the entry's sequence word: a reader
// that finds it before and after has seen the words of one extent. A writer
// announces writes and atomics on its desk, as mr.go says, so that none is under
// way when Close of the region returns. Close does not wait for what peers do to
// memory that Map gave them.
//
// The owner maps an extent as it is, and memory that it has freed is memory that
// it cannot touch. Peers map the heap in windows of 1 GiB, which stay until the
// domain is closed. Regardless of an entry's words and of the extent's fate, what
// they touch is within the file, which no process can truncate. After a free they
// may find zeros there, or a later extent, and never a fault.
//
// An extent has its pages from the start, so that memory that is not there is an
// error of Alloc, and gives them back when it is freed.

// heapCaps is what the shared heap and atomics add to the domain's attributes.
const heapCaps = transport.CapSharedMemory | transport.CapAtomic

const (
	dirBits    = 11
	dirEntries = 1 << dirBits
	heapKey    = uint64(keyValid | keyShared)

	fillMost  = 64 << 20 // bytes that the kernel is asked for at a time
	fillLeast = 1 << 20
)

// dirEntry is what a peer needs to know of an extent.
type dirEntry struct {
	key  atomic.Uint64 // 0: none
	at   atomic.Uint64 // from the heap's beginning, a multiple of a page
	size atomic.Uint64 // bytes
	_    uint64
}

// heap is what the domain holds for its part of the shared heap and for what it
// maps of others'.
type heap struct {
	free      extents
	highWater int64         // what lies above has never been used
	slots     []*heapRegion // dirEntries of them; nil: there was never an extent
	next      int           // where to look for a free slot
	keys      *rand.ChaCha8
	views     []heapView // by local rank; nil: nothing was ever mapped

	unanswered int // answers in peer.calls that have found no room
	request    [atomicHeader + 2*atomicMax]byte
	answer     [atomicDoneLen + atomicMax]byte
	served     transport.Op
}

// heapRegion is an extent of this rank, or one that was.
type heapRegion struct {
	d    *domain
	slot int
	key  uint64
	extent
	mem     []byte // as this rank maps it; nil: closed
	lasting bool   // past the domain
}

// heapView is what is mapped of one rank's heap.
type heapView struct {
	windows [][]byte // by number; one may go on over those behind it
	old     [][]byte // those that others have taken the place of
	known   []known  // by slot
}

// known is an extent that was looked at before.
type known struct {
	key uint64
	mem []byte
}

// initHeap is called when the segment is mapped and this rank's card has not
// yet been shown to the others.
func (d *domain) initHeap() error {
	d.heap.free = extents{{0, heapSize}}
	d.heap.keys = newKeys()
	return nil
}

// closeHeap is called by Close before anything is unmapped. It leaves the
// memory that lasts. What is in the others stays too, for as long as a rank has the
// file: where one has died this rank does not wait for those that still read it.
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
				_ = unmapFile(mem) // it was mapped
			}
		}
	}
	d.heap.views = nil
	for _, p := range d.locals {
		if p != nil {
			p.calls = nil
		}
	}
}

func (d *domain) entry(local, slot int) *dirEntry {
	return &view[dirEntry](d.seg.directory(local))[slot]
}

// Alloc cuts an extent out of this rank's heap.
func (d *domain) Alloc(n int) ([]byte, transport.MemoryRegion, error) { return d.allocate(n, false) }

// AllocLasting is Alloc of memory that this rank may use until it closes the
// region, be it after the domain.
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
		return nil, nil, fmt.Errorf("shm: allocate %d bytes before there are addresses: %w", n, transport.ErrNotSupported)
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
		return nil, fmt.Errorf("%w: %d regions of shared memory are the most that a rank can have", transport.ErrAgain, dirEntries)
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

// slot finds one that is free.
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

// populate maps an extent and gives it its pages, all zero.
func (d *domain) populate(x extent) (mem []byte, err error) {
	h := &d.heap
	if x.at < h.highWater {
		d.punch(x) // a peer may have written where it should not any more
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
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE) // a wish: it may be switched off
	}
	return mem, nil
}

// fill gives a part of the file its pages, as far as there is room for them.
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
		case errors.Is(err, unix.EINTR): // and undone; it has to get through between two signals
			step = max(step/2, fillLeast)
		default:
			return err
		}
	}
	return nil
}

// punch gives the pages of an extent back; what is read there is zero.
func (d *domain) punch(x extent) {
	const mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	for errors.Is(unix.Fallocate(int(d.seg.file.Fd()), mode, d.seg.heap(d.self)+x.at, x.n), unix.EINTR) {
	}
}

// Key names the extent.
func (s *heapRegion) Key() uint64 { return s.key }

// Base is 0.
func (s *heapRegion) Base() uint64 { return 0 }

// Close frees the extent. It waits for what peers are writing there by Write or
// Atomic, a few microseconds where they run.
func (s *heapRegion) Close() error {
	if s.mem == nil {
		return nil
	}
	d := s.d
	if d != nil {
		d.unpublish(s)
	}
	s.release()
	if d == nil { // closed before
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

// disconnectedPeerRuns says whether a peer that was given up runs on, perhaps in the midst of
// a store to memory that it has mapped: of that nothing is used again.
func (d *domain) disconnectedPeerRuns() bool {
	for _, p := range d.locals {
		if p != nil && p.disconnected && (p.pid == 0 && !p.ended() || p.pid != 0 && !p.vanished()) {
			return true
		}
	}
	return false
}

// unpublish takes an extent out of the directory. No transfer of a peer touches
// it when it returns.
func (d *domain) unpublish(s *heapRegion) {
	d.entry(d.self, s.slot).key.Swap(0)
	d.awaitWriters(s.key)
}

// release unmaps the memory.
func (s *heapRegion) release() {
	_ = unmapFile(s.mem) // it was mapped
	s.mem = nil
}

// Map gives a window on an extent of a peer.
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

// Unmap has nothing to do: the window stays, for it may serve other extents.
func (d *domain) Unmap([]byte) error { return nil }

// mapRange gives n bytes at addr of a peer's shared-heap region, mapped here
// until the domain is closed; or ErrKey, where the key is of no such region,
// ErrBounds, where they are not all in it, or why it cannot be mapped.
//
// Hot path: no allocation and no system call, unless the region is new.
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

// mapRegion gives all of an extent that its owner has not freed.
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
		return nil, fmt.Errorf("region of %d bytes at %d of the heap: %w", size, at, transport.ErrProtocol)
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

// window gives bytes of a rank's heap by a window that is mapped on first use.
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
		_ = unix.Madvise(mem, unix.MADV_DONTDUMP) // or a core would be as large as the windows
		if w != nil {
			v.old = append(v.old, w)
		}
		v.windows[number] = mem
	}
	return v.windows[number][from : from+n : from+n], nil
}
