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
// A private region is an entry of its owner's table in the segment, so a peer
// that may copy from and to the owner's memory needs no message to do it. Only
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
// The key is stored last when a region is registered and removed first when it
// is closed, and no registration has the key of another of the last thousand in
// its slot. So the key is the entry's sequence word too: a reader that finds the
// same key before and after has seen the words of one registration. Slots beyond the
// table have no entry; peers reach their regions by messages (stream.go).
//
// Close says that no byte is touched after it, while peers may be in the middle
// of a copy by the kernel. This holds because of:
//
//  1. Close does not wait for a peer's reads. They harm no rank except the reader,
//     which looks for the key again after its last byte, and returns ErrKey if the
//     key is gone.
//  2. Before it writes, for each piece, a peer puts the key on its desk, a line
//     of its own in the segment, and only then looks for the key in the entry;
//     it clears the desk after the piece. Close removes the key and only then
//     looks at the desks. Both are full barriers, so either the writer finds
//     the key gone, or Close finds the desk and waits for the piece to end.
//  3. A desk holds one key, for a domain does one copy at a time. It needs no
//     repair when its rank dies: once the process has ended, nothing of it
//     writes, and Close stops waiting (awaitIdle in cma.go).
//  4. The owner itself touches the region (helping with a copy, serving a
//     stream) only in calls of its own domain, which its user serialises with
//     Close, and looks it up again by its key for every piece.

const (
	slotBits       = 20
	generationBits = 10
	randomBits     = 32
	maxRegions     = 1 << slotBits

	keyValid  = 1 << 63
	keyShared = 1 << 62 // a region of the shared heap
)

// entry is what a peer needs to know of a region.
type entry struct {
	key    atomic.Uint64 // 0: none
	addr   atomic.Uint64
	size   atomic.Uint64
	access atomic.Uint64
}

// hazards is a rank's line that says what it is at.
type hazards struct {
	key     atomic.Uint64 // of the region it is writing into; 0: none
	helping atomic.Uint64 // helpName of the claim line it is helping with; 0: none
	closed  atomic.Uint64 // not 0: its domain is, which is why regions are gone
	_       [lineSize - 24]byte
}

// region is registered memory. Regions are reused after their Close.
type region struct {
	d      *domain
	slot   uint64
	gen    uint64
	key    uint64
	buf    []byte
	access transport.Access
	open   bool
	next   *region
}

// regions is the owner's own table.
type regions struct {
	slots    []*region
	free     *region // the last closed first: few pages of the table are in use
	keys     *rand.ChaCha8
	entries  []entry // in the segment; nil while there is none
	readOnly int     // regions open that peers may read and not write: messages that they are to fetch
}

func (t *regions) init(entries []entry) {
	t.entries = entries
	for _, r := range t.slots {
		if r.open {
			t.publish(r)
		}
	}
}

// newKeys gives what makes keys hard to guess.
func newKeys() *rand.ChaCha8 {
	var seed [32]byte
	random(seed[:])
	return rand.NewChaCha8(seed)
}

// RegisterMemory is a table entry; pages need no preparation.
//
// Hot path: no allocation, no system call, once there have been as many
// regions at a time.
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
	if r.access == transport.RemoteRead {
		t.readOnly++
	}
	t.publish(r)
	return r, nil
}

// publish lets peers see a region.
func (t *regions) publish(r *region) {
	if r.slot >= uint64(len(t.entries)) {
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

// Close withdraws the region. It waits for the pieces that peers are writing
// into it, up to some tens of microseconds where they run. The region must not be used, nor
// closed again, after it: it may be somebody else's.
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

// withdraw ends all access to a region.
func (d *domain) withdraw(r *region) {
	r.open = false
	t := &d.transfers.regions
	if r.access == transport.RemoteRead {
		t.readOnly--
	}
	if r.slot >= uint64(len(t.entries)) {
		return
	}
	t.entries[r.slot].key.Swap(0)
	if r.access&transport.RemoteWrite != 0 {
		d.awaitWriters(r.key)
	}
}

// withdrawAll is withdraw for every region, at the domain's end; what is closed
// later finds nothing to do.
func (d *domain) withdrawAll() {
	t := &d.transfers.regions
	for _, r := range t.slots {
		if r.open {
			d.withdraw(r)
		}
	}
	t.entries = nil
}

// awaitWriters returns when no peer is writing under a key that new writers no
// longer find.
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

// find returns n bytes at addr of this rank's own region named by key, if peers
// may do so with them.
func (t *regions) find(key, addr, n uint64, want transport.Access) ([]byte, error) {
	slot := key % maxRegions
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

// permits checks an access of n bytes at addr of a region.
func permits(have transport.Access, size, addr, n uint64, want transport.Access) error {
	switch {
	case have&want != want:
		return transport.ErrAccess
	case addr > size || n > size-addr:
		return transport.ErrBounds
	}
	return nil
}

// lookup finds a peer's region that is in its table: its entry, and where the
// byte at addr lies in the peer's memory. An entry of nil without an error: the
// slot is beyond the table, and only the peer can tell.
func (d *domain) lookup(p *peer, key, addr, n uint64, want transport.Access) (*entry, uint64, error) {
	if key&keyValid == 0 {
		return nil, 0, transport.ErrKey
	}
	entries := view[entry](d.seg.regions(p.local))
	slot := key % maxRegions
	if slot >= uint64(len(entries)) {
		return nil, 0, nil
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

// withdrawn is the reason why a key is not there any more.
func (d *domain) withdrawn(p *peer) error {
	if d.seg.claims(p.local).hazards.closed.Load() != 0 {
		return p.endReason()
	}
	return transport.ErrKey
}

// endReason is the reason why a peer that has ended did.
func (p *peer) endReason() error {
	if p.state.state.Load() == cardLeft {
		return transport.ErrPeerLeft
	}
	return errDied
}
