package inproc

import (
	"math/rand/v2"
	"sync"

	"github.com/weft-hpc/weft/transport"
)

// A key consists of a random number and, in the low slotBits bits, a slot: the index of the region
// in mailbox.regions. A region is reused after its Close, and each registration has another random
// number. So the key of a closed registration differs from the keys of later ones in the same slot.
const (
	slotBits = 20
	maxSlots = 1 << slotBits
	slotMask = maxSlots - 1
)

// copyChunk is the largest number of bytes that a peer copies without releasing the region's lock.
// So Close of a region, which needs that lock, waits for at most one such copy of each peer.
const copyChunk = 256 << 10

// region implements transport.MemoryRegion. A closed region is reused for other memory. So a peer
// that has found a region by its slot must lock mu and compare the key before it uses buf.
type region struct {
	mailbox *mailbox // of the rank that has registered the memory
	slot    int      // index in mailbox.regions

	mu     sync.RWMutex // guards the fields below; held for reading while bytes of buf are copied
	key    uint64       // 0: the region is closed
	base   uint64       // the remote address of the first byte of buf; see [region.Base]
	buf    []byte       // the registered memory
	access transport.Access
	shared bool // Alloc has allocated buf, so peers may map it
}

// Key returns the region's key. If the region is closed, Key returns 0.
func (r *region) Key() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.key
}

// Base returns the remote address of the region's first byte. Without MRVirtAddr that is 0. With
// MRVirtAddr it is a random number in place of a virtual address. If the region is closed, Base
// returns 0.
func (r *region) Base() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.base
}

// Close withdraws the region. It waits until no peer copies from or to the memory. A peer that is
// copying stops after at most copyChunk bytes. The caller must not use the region again, because
// the next RegisterMemory may return it for other memory.
func (r *region) Close() error {
	if r.withdraw() {
		r.mailbox.mu.Lock()
		r.mailbox.freeRegions = append(r.mailbox.freeRegions, r)
		r.mailbox.mu.Unlock()
	}
	return nil
}

// withdraw closes the region: after it has returned, no peer accesses the memory. If the region was
// closed before, withdraw returns false.
func (r *region) withdraw() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.key == 0 {
		return false
	}
	r.key, r.base, r.buf, r.access, r.shared = 0, 0, nil, 0, false
	return true
}

// read copies len(dst) bytes at the remote address addr of the region to dst. It returns the
// error of [region.windowLocked], for example if the region does not have that key any more. Then
// it may have copied a part of the bytes.
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

// write copies src to the remote address addr of the region. It returns the error of
// [region.windowLocked], for example if the region does not have that key any more. Then it may
// have copied a part of src.
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

// windowLocked checks that the region has the key, permits the access want, and has n bytes at the
// remote address addr. It returns these bytes. The caller holds r.mu.
func (r *region) windowLocked(key, addr uint64, n int, want transport.Access) ([]byte, error) {
	if r.key != key {
		return nil, transport.ErrKey
	}
	if r.access&want == 0 {
		return nil, transport.ErrAccess
	}
	size := uint64(len(r.buf))
	off := addr - r.base // if addr is less than base, off wraps around and is larger than size
	if off > size || uint64(n) > size-off {
		return nil, transport.ErrBounds
	}
	return r.buf[off : off+uint64(n)], nil
}

// register returns a region for buf. It reuses a closed region if there is one. If maxSlots regions
// are open, it returns ErrAgain.
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
	// The rank may have ended meanwhile, and its withdrawAll may have run before the region got
	// its key.
	if b.state.Load() != stateOpen {
		r.withdraw()
		return nil, transport.ErrClosed
	}
	return r, nil
}

// find returns the region in the slot of key, for an access by rank from. It does not compare the
// key: the caller must lock the region and do that.
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

// withdrawAll closes all regions of the rank. The rank has ended.
func (b *mailbox) withdrawAll() {
	b.mu.Lock()
	all := b.regions
	b.regions, b.freeRegions = nil, nil
	b.mu.Unlock()
	for _, r := range all {
		r.withdraw()
	}
}
