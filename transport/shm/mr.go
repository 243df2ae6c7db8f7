//go:build linux && !portable

package shm

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/weft-hpc/weft/transport"
)

// Memory regions
//
// A region of private memory has an entry in its owner's table in the segment. So a peer
// that can copy from and to the owner's memory needs no message for that. Only
// the owner writes entries.
//
//	entry  ┌─────────┬─────────┬──────┬────────┐
//	       │ key     │ address │ size │ access │   4 words, 32 bytes
//	       └─────────┴─────────┴──────┴────────┘
//	key    63 62 61        30 29      20 19     0
//	       ┌─┬──┬────────────┬──────────┬────────┐
//	       │1│ 0│ random     │generation│ slot   │   bit 62: of the shared heap
//	       └─┴──┴────────────┴──────────┴────────┘
//
// The owner stores the key last when it registers a region and removes it first when it
// closes the region. The last 1024 registrations of a slot have different keys. So the key is
// also the entry's sequence word: a reader that finds the same key before and after it reads
// the other words has read the words of one registration. If the table is full,
// RegisterMemory returns ErrAgain.
//
// Close promises that after it has returned no peer writes to the region, and no peer returns
// bytes of it that were stored later. But peers may be in the middle of a copy by the kernel
// when Close begins. So the ranks follow these rules:
//
//  1. Close does not wait for a peer's reads, because they change only the reader's buffer.
//     The reader looks for the key again after its last byte, and returns an error if the
//     key is not there any more.
//  2. Before a peer writes a piece, it publishes the key in its hazard line, as with hazard
//     pointers, and then checks that the entry still has the key. After the piece it
//     clears the hazard line. Close removes the key and then reads the hazard lines. Both
//     stores are full barriers. So either the writer finds that the key has been
//     removed, or Close finds the key in the hazard line and waits for the end of the piece.
//  3. A hazard line holds one key, because a domain makes one copy at a time. It needs no
//     repair if its rank dies: after the process has ended, none of its threads
//     writes, and Close stops waiting (awaitIdle in cma.go).
//  4. The owner itself touches the region, to help with a copy, only in calls of its own
//     domain, which the caller serialises with Close. For every piece it looks for the
//     region again by the key.

const (
	slotBits       = 20
	generationBits = 10
	randomBits     = 32
	slotMask       = 1<<slotBits - 1
	maxRegions     = (tableSize - dirSize) / entrySize // number of entries in a rank's table

	keyValid  = 1 << 63
	keyShared = 1 << 62 // a region of the shared heap
)

const entrySize = 32 // bytes of an entry

// entry describes a region to peers.
type entry struct {
	key    atomic.Uint64 // 0: the entry describes no region
	addr   atomic.Uint64 // address of the memory in the owner's process
	size   atomic.Uint64 // bytes
	access atomic.Uint64 // a transport.Access
}

// hazards is a rank's hazard line: it announces which memory of other ranks the rank is writing
// to or is about to write to.
type hazards struct {
	key     atomic.Uint64 // the key of the peer's region that the rank writes to; 0 if it writes to none
	helping atomic.Uint64 // [helpName] of the claim line that the rank helps with; 0 if it does not help
	closed  atomic.Uint64 // not 0: the rank has closed its domain, and with it all regions
	_       [lineSize - 24]byte
}

// region is registered memory. Regions are reused after their Close.
type region struct {
	d      *domain
	slot   uint64 // index in regions.slots and in the table
	gen    uint64 // number of registrations of the slot so far, modulo 1 << generationBits
	key    uint64 // 0 after Close
	buf    []byte // the registered memory; nil after Close
	access transport.Access
	open   bool    // it was registered, and neither it nor the domain was closed since
	next   *region // the next region in regions.free
}

// regions are the regions of this rank.
type regions struct {
	slots []*region // by slot: all regions, also closed ones
	// free is the list of the closed regions, linked by next. The last closed one is first, so
	// that few pages of the table are in use.
	free    *region
	keys    *rand.ChaCha8 // random bits of keys
	entries []entry       // this rank's table in the segment; nil before join and after Close
	// messages is the number of open regions whose access is messageAccess.
	messages int
}

// messageAccess is the access with which the engine registers the data of a message that a peer
// will fetch.
const messageAccess = transport.RemoteRead | transport.MayKeep

func (t *regions) init(entries []entry) {
	t.entries = entries
	for _, r := range t.slots {
		if r.open {
			t.publish(r)
		}
	}
}

// newKeys returns a random source for keys that are hard to guess.
func newKeys() *rand.ChaCha8 {
	var seed [32]byte
	random(seed[:])
	return rand.NewChaCha8(seed)
}

// RegisterMemory adds buf to this rank's table; if this rank has not joined yet, [domain.join]
// does so later. It does not touch the memory.
//
// Hot path: no allocation, no system call, unless more regions are open than ever before.
func (d *domain) RegisterMemory(buf []byte, access transport.Access) (transport.MemoryRegion, error) {
	if d.closed {
		return nil, fmt.Errorf("register memory: %w", transport.ErrClosed)
	}
	t := &d.transfers.regions
	if t.keys == nil {
		t.keys = newKeys()
	}
	r := t.free
	switch {
	case r != nil:
		t.free, r.next = r.next, nil
	case len(t.slots) == maxRegions:
		return nil, fmt.Errorf("shm: register memory: %d regions are open: %w", maxRegions, transport.ErrAgain)
	default:
		r = &region{d: d, slot: uint64(len(t.slots))}
		t.slots = append(t.slots, r)
	}
	r.gen = (r.gen + 1) % (1 << generationBits)
	r.key = keyValid | t.keys.Uint64()>>(64-randomBits)<<(slotBits+generationBits) | r.gen<<slotBits | r.slot
	r.buf, r.access, r.open = buf, access, true
	if r.access == messageAccess {
		t.messages++
	}
	t.publish(r)
	return r, nil
}

// publish writes a region's entry, unless this rank has not joined yet.
func (t *regions) publish(r *region) {
	if t.entries == nil {
		return
	}
	e := &t.entries[r.slot]
	e.addr.Store(addressOf(r.buf))
	e.size.Store(uint64(len(r.buf)))
	e.access.Store(uint64(r.access))
	e.key.Store(r.key)
}

func (r *region) Key() uint64  { return r.key }
func (r *region) Base() uint64 { return 0 }

// Close withdraws the region. It waits until peers have ended the pieces that they are
// writing to it: up to some tens of microseconds if they run. The caller must not use or
// close the region again, because the domain reuses it.
func (r *region) Close() error {
	if !r.open {
		return nil
	}
	r.d.withdraw(r)
	t := &r.d.transfers.regions
	r.buf, r.key = nil, 0
	r.next, t.free = t.free, r
	return nil
}

// withdraw closes a region: it removes the key from the table, and waits until no peer writes to
// the region.
func (d *domain) withdraw(r *region) {
	r.open = false
	t := &d.transfers.regions
	if r.access == messageAccess {
		t.messages--
	}
	if t.entries == nil { // this rank has not joined
		return
	}
	t.entries[r.slot].key.Swap(0)
	if r.access&transport.RemoteWrite != 0 {
		d.awaitWriters(r.key)
	}
}

// withdrawAll withdraws every region, when the domain is closed. A later Close of a region
// does nothing.
func (d *domain) withdrawAll() {
	t := &d.transfers.regions
	for _, r := range t.slots {
		if r.open {
			d.withdraw(r)
		}
	}
	t.entries = nil
}

// awaitWriters waits until no peer writes to the region that had the key. The caller has removed
// the key, so no peer begins a new write.
func (d *domain) awaitWriters(key uint64) {
	for i := range d.locals {
		if i == d.self {
			continue
		}
		at := &d.seg.claims(i).hazards.key
		if at.Load() == key {
			d.awaitIdle(d.local(i), func() bool { return at.Load() != key })
		}
	}
}

// find returns n bytes at offset addr of this rank's region with a key, if the region permits the
// access want. Otherwise it returns ErrKey, ErrAccess or ErrBounds.
func (t *regions) find(key, addr, n uint64, want transport.Access) ([]byte, error) {
	slot := key & slotMask
	if slot >= uint64(len(t.slots)) {
		return nil, transport.ErrKey
	}
	r := t.slots[slot]
	if !r.open || r.key != key {
		return nil, transport.ErrKey
	}
	if err := permits(r.access, uint64(len(r.buf)), addr, n, want); err != nil {
		return nil, err
	}
	return r.buf[addr : addr+n], nil
}

// permits checks an access want to n bytes at offset addr of a region of size bytes, for which the
// access have is permitted.
func permits(have transport.Access, size, addr, n uint64, want transport.Access) error {
	switch {
	case have&want != want:
		return transport.ErrAccess
	case addr > size || n > size-addr:
		return transport.ErrBounds
	}
	return nil
}

// lookup finds a peer's private region in the peer's table, and checks that the region permits the
// access want to n bytes at offset addr. It returns the region's entry, and the address of these
// bytes in the peer's process.
func (d *domain) lookup(p *peer, key, addr, n uint64, want transport.Access) (*entry, uint64, error) {
	if key&keyValid == 0 {
		return nil, 0, transport.ErrKey
	}
	entries := view[entry](d.seg.regions(p.local))
	slot := key & slotMask
	if slot >= uint64(len(entries)) {
		return nil, 0, transport.ErrKey
	}
	e := &entries[slot]
	if e.key.Load() != key {
		return nil, 0, d.withdrawn(p)
	}
	base, size, access := e.addr.Load(), e.size.Load(), transport.Access(e.access.Load())
	if e.key.Load() != key {
		return nil, 0, d.withdrawn(p)
	}
	return e, base + addr, permits(access, size, addr, n, want)
}

// withdrawn returns the reason why a key is not in a peer's table any more.
func (d *domain) withdrawn(p *peer) error {
	if d.seg.claims(p.local).hazards.closed.Load() != 0 {
		return p.endReason()
	}
	return transport.ErrKey
}

// endReason returns the reason why a peer has ended.
func (p *peer) endReason() error {
	if p.state.state.Load() == cardLeft {
		return transport.ErrPeerLeft
	}
	return errDied
}
