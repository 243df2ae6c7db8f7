package inproc

import (
	"math/rand/v2"
	"sync"

	"github.com/weft-hpc/weft/transport"
)

// A key consists of a random number and, in the low bits, a slot of the owner's table. The
// slot finds the region without a map; the random number distinguishes a stale key from
// the key of a later region in the slot.
const (
	slotBits = 20
	maxSlots = 1 << slotBits
	slotMask = maxSlots - 1
)

// copyChunk is the most bytes that are copied while a region's lock is held. Close of a region
// waits for at most one such copy of each peer.
const copyChunk = 256 << 10

// region is registered memory. Regions are reused, so a peer that has found a region by its
// slot compares the key under the lock.
type region struct {
	mailbox *mailbox
	slot    int

	mu     sync.RWMutex // held for reading while bytes of buf are copied
	key    uint64       // 0: closed
	base   uint64
	buf    []byte
	access transport.Access
	shared bool // allocated by Alloc: peers may map it
}

// Key returns the region's key, or 0 if it is closed.
func (r *region) Key() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.key
}

// Base returns 0, or under MRVirtAddr a random number that stands for the address.
func (r *region) Base() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.base
}

// Close withdraws the region. It waits for copies in flight, at most copyChunk
// bytes of each. The caller must not use the region again, because the next RegisterMemory may
// return it for other memory.
func (r *region) Close() error {
	if r.withdraw() {
		r.mailbox.mu.Lock()
		r.mailbox.freeRegions = append(r.mailbox.freeRegions, r)
		r.mailbox.mu.Unlock()
	}
	return nil
}

// withdraw ends all access to the region. It returns false if the region is closed already.
func (r *region) withdraw() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.key == 0 {
		return false
	}
	r.key, r.base, r.buf, r.access, r.shared = 0, 0, nil, 0, false
	return true
}

// read copies from the region to dst.
func (r *region) read(key, addr uint64, dst []byte) error {
	for {
		r.mu.RLock()
		src, err := r.windowLocked(key, addr, len(dst), transport.RemoteRead)
		if err != nil {
			r.mu.RUnlock()
			return err
		}
		n := copy(dst[:min(len(dst), copyChunk)], src)
		r.mu.RUnlock()
		if dst = dst[n:]; len(dst) == 0 {
			return nil
		}
		addr += uint64(n)
	}
}

// write copies src to the region.
func (r *region) write(key, addr uint64, src []byte) error {
	for {
		r.mu.RLock()
		dst, err := r.windowLocked(key, addr, len(src), transport.RemoteWrite)
		if err != nil {
			r.mu.RUnlock()
			return err
		}
		n := copy(dst, src[:min(len(src), copyChunk)])
		r.mu.RUnlock()
		if src = src[n:]; len(src) == 0 {
			return nil
		}
		addr += uint64(n)
	}
}

// windowLocked checks an access and returns n bytes of the region at addr.
func (r *region) windowLocked(key, addr uint64, n int, want transport.Access) ([]byte, error) {
	if r.key != key {
		return nil, transport.ErrKey
	}
	if r.access&want == 0 {
		return nil, transport.ErrAccess
	}
	size := uint64(len(r.buf))
	off := addr - r.base // if addr is below base, it wraps to more than size
	if off > size || uint64(n) > size-off {
		return nil, transport.ErrBounds
	}
	return r.buf[off : off+uint64(n)], nil
}

// register returns a region for buf: a closed one, or a new one.
func (b *mailbox) register(keys *rand.ChaCha8, mode transport.MRMode, buf []byte, access transport.Access) (*region, error) {
	b.mu.Lock()
	if b.state.Load() != stateOpen {
		b.mu.Unlock()
		return nil, transport.ErrClosed
	}
	var r *region
	if n := len(b.freeRegions); n > 0 {
		r = b.freeRegions[n-1]
		b.freeRegions = b.freeRegions[:n-1]
	} else {
		if len(b.regions) == maxSlots {
			b.mu.Unlock()
			return nil, transport.ErrAgain
		}
		r = &region{mailbox: b, slot: len(b.regions)}
		b.regions = append(b.regions, r)
	}
	b.mu.Unlock()

	r.mu.Lock()
	r.key = (keys.Uint64()|1<<63)&^slotMask | uint64(r.slot)
	if mode&transport.MRVirtAddr != 0 {
		r.base = keys.Uint64() >> 17 &^ 4095
	}
	r.buf, r.access = buf, access
	r.mu.Unlock()
	if b.state.Load() != stateOpen { // the rank ended meanwhile: withdrawAll may have missed the region
		r.withdraw()
		return nil, transport.ErrClosed
	}
	return r, nil
}

// find returns the region in the slot of key, for the peer from. The caller compares the key
// under the region's lock.
func (b *mailbox) find(from transport.Addr, key uint64) (*region, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.endErrorLocked(); err != nil {
		return nil, err
	}
	if b.refused[from] {
		return nil, errRefused
	}
	slot := key & slotMask
	if slot >= uint64(len(b.regions)) {
		return nil, transport.ErrKey
	}
	return b.regions[slot], nil
}

// withdrawAll closes all regions of a rank that has ended.
func (b *mailbox) withdrawAll() {
	b.mu.Lock()
	all := b.regions
	b.regions, b.freeRegions = nil, nil
	b.mu.Unlock()
	for _, r := range all {
		r.withdraw()
	}
}
