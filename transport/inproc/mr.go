package inproc

import (
	"math/rand/v2"
	"sync"

	"github.com/weft-hpc/weft/transport"
)

// A key is a slot of the owner's table below a random number, so that it is
// found without a map and a stale one is told from its successor.
const (
	slotBits = 20
	maxSlots = 1 << slotBits
	slotMask = maxSlots - 1
)

// copyChunk is how much is copied under one hold of a region's lock: Close
// waits for no more than that.
const copyChunk = 256 << 10

// region is registered memory. Regions are reused: a peer that finds one by its
// slot compares the key under the lock.
type region struct {
	mailbox *mailbox
	slot    int

	mu     sync.RWMutex // held for reading while bytes of buf are copied
	key    uint64       // 0: closed
	base   uint64
	buf    []byte
	access transport.Access
	shared bool // by Alloc: peers may map it
}

// Key names the region.
func (r *region) Key() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.key
}

// Base is 0, or under MRVirtAddr a number that stands for the address.
func (r *region) Base() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.base
}

// Close withdraws the region. It waits for a copy in flight, up to copyChunk
// bytes of it. The region must not be used again: the next RegisterMemory may
// give it to somebody else.
func (r *region) Close() error {
	if r.withdraw() {
		r.mailbox.mu.Lock()
		r.mailbox.freeRegions = append(r.mailbox.freeRegions, r)
		r.mailbox.mu.Unlock()
	}
	return nil
}

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

// windowLocked checks an access and returns the bytes that it is about.
func (r *region) windowLocked(key, addr uint64, n int, want transport.Access) ([]byte, error) {
	if r.key != key {
		return nil, transport.ErrKey
	}
	if r.access&want == 0 {
		return nil, transport.ErrAccess
	}
	size := uint64(len(r.buf))
	off := addr - r.base // below base it wraps round to more than size
	if off > size || uint64(n) > size-off {
		return nil, transport.ErrBounds
	}
	return r.buf[off : off+uint64(n)], nil
}

// register finds or makes a region for buf.
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
	if b.state.Load() != stateOpen { // killed in between: withdrawAll may have missed it
		r.withdraw()
		return nil, transport.ErrClosed
	}
	return r, nil
}

// find returns the region that a peer's key is for, and why there is none.
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
