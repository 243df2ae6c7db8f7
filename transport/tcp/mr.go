package tcp

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// A key names an entry of the table of regions (a slot), and a registration. A slot serves many
// registrations, one after the other. The generation counts those of its slot, modulo 4096. The
// random bits make a key hard to guess.
//
//	63            32 31      20 19        0
//	┌───────────────┬──────────┬───────────┐
//	│ random        │generation│ slot      │
//	└───────────────┴──────────┴───────────┘
const (
	slotBits       = 20
	generationBits = 12
	maxRegions     = 1 << slotBits
)

// region implements transport.MemoryRegion. After Close, a later registration may reuse it.
type region struct {
	d      *domain
	slot   uint32 // index in regions.slots
	gen    uint32 // generation of the current or last registration
	key    uint64 // 0: the region is closed
	buf    []byte // the registered memory; nil: the region is closed
	access transport.Access
	open   bool // registered and not closed
	// uses is the number of operations that refer to buf: unfinished replies to reads, and writes
	// whose data are being received.
	uses int
	next *region // the next region in regions.free
}

// regions is the table of regions, indexed by the slot of a key.
type regions struct {
	slots []*region
	free  *region   // closed regions, linked by next
	rnd   [512]byte // random bytes for keys
	left  int       // number of unused bytes at the end of rnd
}

func (t *regions) random() uint32 {
	if t.left < 4 {
		_, _ = rand.Read(t.rnd[:]) // Read never fails
		t.left = len(t.rnd)
	}
	b := t.rnd[len(t.rnd)-t.left:][:4]
	v := binary.LittleEndian.Uint32(b)
	clear(b)
	t.left -= 4
	return v
}

// RegisterMemory enters buf in the table of regions. It does not access the memory.
func (d *domain) RegisterMemory(buf []byte, access transport.Access) (transport.MemoryRegion, error) {
	if d.closed {
		return nil, fmt.Errorf("register memory: %w", transport.ErrClosed)
	}
	t := &d.mrs
	r := t.free
	switch {
	case r != nil:
		t.free, r.next = r.next, nil
	case len(t.slots) == maxRegions:
		return nil, fmt.Errorf("tcp: register memory: %d regions are open: %w", maxRegions, transport.ErrAgain)
	default:
		r = &region{d: d, slot: uint32(len(t.slots))}
		t.slots = append(t.slots, r)
	}
	r.gen = (r.gen + 1) % (1 << generationBits)
	r.key = uint64(t.random())<<32 | uint64(r.gen)<<slotBits | uint64(r.slot)
	r.buf, r.access, r.open = buf, access, true
	return r, nil
}

func (r *region) Key() uint64  { return r.key }
func (r *region) Base() uint64 { return 0 }

// Close withdraws the region. If a chunk of a reply to a peer's read is partly written to the
// socket, Close does not cut the chunk off, because the peer could not tell where the next frame
// begins: zeros take the place of the chunk's remaining bytes, and the status in the end frame that
// follows is an error. The caller must not use the region or close it again: a later registration
// may have reused it.
func (r *region) Close() error {
	if !r.open {
		return nil
	}
	if r.uses > 0 {
		for _, c := range r.d.live {
			c.dropRegion(r)
		}
	}
	r.open, r.buf, r.key = false, nil, 0
	r.next, r.d.mrs.free = r.d.mrs.free, r
	return nil
}

// find returns the open region with the key, and its n bytes at the offset addr, if there are such
// bytes and the region permits the access want. Otherwise it returns the status that says why not.
func (t *regions) find(key, addr, n uint64, want transport.Access) (*region, []byte, wire.TCPStatus) {
	slot := key & (maxRegions - 1)
	if slot >= uint64(len(t.slots)) {
		return nil, nil, wire.TCPKey
	}
	r := t.slots[slot]
	if !r.open || r.key != key {
		return nil, nil, wire.TCPKey
	}
	if r.access&want != want {
		return nil, nil, wire.TCPAccess
	}
	if size := uint64(len(r.buf)); addr > size || n > size-addr {
		return nil, nil, wire.TCPBounds
	}
	return r, r.buf[addr : addr+n], wire.TCPOK
}
